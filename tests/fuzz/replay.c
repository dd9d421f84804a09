/* Feeds files to a fuzz target without libFuzzer: every file of the folders, and every file, on the command line. What
 * a sanitizer finds, or the target itself, ends the program; the file at work is then the last one named. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Runs one file; false when it cannot be read. */
static bool replay_file(const char *path)
{
    enum { MAX_SIZE = 1 << 20 };
    FILE *in = fopen(path, "rb");
    uint8_t *data = in ? malloc(MAX_SIZE) : NULL;
    size_t n = data ? fread(data, 1, MAX_SIZE, in) : 0;
    bool read = data && !ferror(in) && n < MAX_SIZE;
    if (in)
        fclose(in);
    if (read) {
        printf("%s\n", path);
        fflush(stdout);
        /* An exact copy, so that a sanitizer sees a read past its end. */
        uint8_t *exact = malloc(n ? n : 1);
        if (exact && n)
            memcpy(exact, data, n);
        read = exact && LLVMFuzzerTestOneInput(exact, n) == 0;
        free(exact);
    }
    free(data);
    return read;
}

/* Runs the files of a folder; how many, or -1 when something could not be read. */
static int replay_folder(const char *path)
{
    DIR *folder = opendir(path);
    int n = 0;
    for (const struct dirent *entry; folder && n >= 0 && (entry = readdir(folder));) {
        char name[4096];
        if (entry->d_name[0] == '.')
            continue;
        int len = snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
        n = len < (int)sizeof(name) && replay_file(name) ? n + 1 : -1;
    }
    if (folder)
        closedir(folder);
    return folder ? n : -1;
}

int main(int argc, char **argv)
{
    int total = 0;
    for (int i = 1; i < argc; i++) {
        struct stat status;
        bool is_folder = stat(argv[i], &status) == 0 && S_ISDIR(status.st_mode);
        int n = is_folder ? replay_folder(argv[i]) : replay_file(argv[i]) ? 1 : -1;
        if (n < 0) {
            fprintf(stderr, "%s: cannot be read\n", argv[i]);
            return 1;
        }
        total += n;
    }
    if (total == 0) {
        fprintf(stderr, "there is nothing to replay\n");
        return 1;
    }
    printf("replayed %d inputs\n", total);
    return 0;
}

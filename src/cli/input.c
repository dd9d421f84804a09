/* Where prompts and the bundled model come from. */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#define MAX_TEXT ((size_t)64 << 20) /* bytes of a prompt; far beyond any context */

/* `name` is what messages call the stream. */
static int read_stream(FILE *in, const char *name, char **text, size_t *len)
{
    char *data = NULL;
    size_t n = 0, cap = 0;
    for (;;) {
        if (cap - n < 2) {
            cap = cap ? cap * 2 : 65536;
            char *bigger = realloc(data, cap);
            if (!bigger) {
                free(data);
                return pm_cli_fail("%s: out of memory", name);
            }
            data = bigger;
        }
        size_t got = fread(data + n, 1, cap - n - 1, in);
        n += got;
        if (n > MAX_TEXT) {
            free(data);
            return pm_cli_fail("%s: longer than %zu bytes", name, MAX_TEXT);
        }
        if (got > 0 && !feof(in)) /* a terminal that said Ctrl-D is not asked again */
            continue;
        if (ferror(in)) {
            free(data);
            return pm_cli_fail("%s: cannot be read: %s", name, strerror(errno));
        }
        break;
    }
    data[n] = '\0';
    *text = data;
    *len = n;
    return PM_EXIT_OK;
}

int pm_read_stdin(char **text, size_t *len)
{
    return read_stream(stdin, "stdin", text, len);
}

int pm_read_text(const char *path, char **text, size_t *len)
{
    FILE *in = fopen(path, "rb");
    if (!in)
        return pm_cli_fail("%s: cannot be opened: %s", path, strerror(errno));
    int code = read_stream(in, path, text, len);
    fclose(in);
    return code;
}

int pm_check_utf8(const char *what, const char *text, size_t len)
{
    size_t bad;
    if (pm_utf8_valid(text, len, &bad))
        return PM_EXIT_OK;
    return pm_cli_fail("%s: not UTF-8 at byte offset %zu", what, bad);
}

int pm_check_message(const char *what, const char *text, size_t len)
{
    const char *nul = memchr(text, '\0', len);
    if (nul)
        return pm_cli_fail("%s: has a NUL byte at offset %zu", what, (size_t)(nul - text));
    return pm_check_utf8(what, text, len);
}

int pm_read_json(const char *path, json_t **out)
{
    bool from_stdin = strcmp(path, "-") == 0;
    const char *name = from_stdin ? "stdin" : path;
    char *text = NULL;
    size_t len = 0;
    json_error_t error;
    int code = from_stdin ? pm_read_stdin(&text, &len) : pm_read_text(path, &text, &len);
    if (code == PM_EXIT_OK)
        code = pm_check_utf8(name, text, len);
    if (code == PM_EXIT_OK && !(*out = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error)))
        code = pm_cli_fail("%s: line %d, column %d: %s", name, error.line, error.column, error.text);
    free(text);
    return code;
}

bool pm_is_directory(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* The folder of the running program, symbolic links resolved, in out[size]. */
static bool program_folder(char *out, size_t size)
{
#ifdef __APPLE__
    char path[4096];
    uint32_t room = sizeof(path);
    if (_NSGetExecutablePath(path, &room) != 0)
        return false;
    char *resolved = realpath(path, NULL);
#else
    char *resolved = realpath("/proc/self/exe", NULL);
#endif
    char *slash = resolved ? strrchr(resolved, '/') : NULL;
    bool fits = slash && (size_t)(slash - resolved) < size;
    if (fits) {
        *slash = '\0';
        memcpy(out, resolved, strlen(resolved) + 1);
    }
    free(resolved);
    return fits;
}

/* Writes the bundled model's directory to out[size]; an exit code. */
static int find_bundled(char *out, size_t size)
{
    /* From the program: beside it; the source tree (it lies in build/PRESET); the prefix (it lies in bin). */
    static const char *const places[] = {"models/default", "../../models/default", "../share/polymath/models/default"};
    char folder[2048];
    if (!program_folder(folder, sizeof(folder)))
        return pm_cli_fail("no MODEL was given, and where the bundled model lies cannot be found out");
    for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", folder, places[i]);
        char *resolved = realpath(path, NULL);
        bool found = resolved && pm_is_directory(resolved) && strlen(resolved) < size;
        if (found)
            memcpy(out, resolved, strlen(resolved) + 1);
        free(resolved);
        if (found)
            return PM_EXIT_OK;
    }
    return pm_cli_fail("no MODEL was given and the bundled model was not found; looked for %s, %s and %s from %s",
                       places[0], places[1], places[2], folder);
}

int pm_check_model(const char *dir)
{
    return pm_is_directory(dir) ? PM_EXIT_OK : pm_cli_fail("'%s' is not a directory, so it cannot be the MODEL", dir);
}

int pm_find_model(const char *given, char *bundled, size_t size, const char **out)
{
    *out = given ? given : bundled;
    return given ? pm_check_model(given) : find_bundled(bundled, size);
}

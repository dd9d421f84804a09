/* Weights that lie beside a checkpoint and are not part of it. */
#include "files/checkpoint.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static bool is_weights(const char *name)
{
    static const char suffix[] = ".safetensors";
    size_t n = strlen(name);
    return n > sizeof(suffix) - 1 && strcmp(name + n - (sizeof(suffix) - 1), suffix) == 0;
}

/* Adds what is in dir/sub (sub may be empty) and not in `read` to `out`; looks into folders when `deeper`. */
static int scan(const char *dir, const char *sub, const pm_map *read, bool deeper, pm_buf *out)
{
    char path[4096], relative[1024];
    int status = PM_OK;
    snprintf(path, sizeof(path), "%s%s%s", dir, *sub ? "/" : "", sub);
    DIR *folder = opendir(path);
    for (struct dirent *entry; status == PM_OK && folder && (entry = readdir(folder));) {
        if (*entry->d_name == '.')
            continue;
        snprintf(relative, sizeof(relative), "%s%s%s", sub, *sub ? "/" : "", entry->d_name);
        int n = snprintf(path, sizeof(path), "%s/%s", dir, relative);
        if (n < 0 || (size_t)n >= sizeof(path))
            continue;
        if (is_weights(entry->d_name) && pm_is_file(path) && !pm_map_get(read, path, (size_t)n, 0))
            status = pm_buf_printf(out, "%s%s", out->len ? ", " : "", relative);
        else if (deeper)
            status = scan(dir, relative, read, false, out);
    }
    if (folder)
        closedir(folder);
    return status;
}

int pm_checkpoint_unread(const pm_checkpoint *checkpoint, const char *dir, pm_buf *out, pm_error *err)
{
    pm_map read = {0};
    int status = PM_OK;
    for (size_t i = 0; status == PM_OK && i < pm_checkpoint_count(checkpoint); i++) {
        const char *path = pm_checkpoint_file(checkpoint, pm_checkpoint_at(checkpoint, i));
        status = pm_map_set(&read, path, strlen(path), 1);
    }
    if (status == PM_OK)
        status = scan(dir, "", &read, true, out);
    pm_map_free(&read);
    return status ? pm_fail_memory(err) : PM_OK;
}

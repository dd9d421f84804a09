/* An answer on stdout, as it comes: on a terminal reasoning is dim before the answer, elsewhere it is left out; calls
 * of tools are lines of their own. */
#include "cli.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void pm_show_text(pm_show *show, const char *text, size_t len)
{
    pm_progress_clear(&show->progress);
    if (!show->stream || len == 0 || show->write_error)
        return;
    show->last = text[len - 1];
    if (!pm_cli_write(text, len))
        show->write_error = errno;
}

void pm_show_dim(pm_show *show, bool dim)
{
    if (show->dim != dim && show->stream)
        pm_cli_dim(dim);
    show->dim = dim;
}

/* Ends a line that was begun. */
static void end_line(pm_show *show)
{
    if (show->last && show->last != '\n')
        pm_show_text(show, "\n", 1);
}

void pm_show_event(pm_show *show, const pm_event *event)
{
    bool reasoning = event->kind == PM_EVENT_REASONING;
    if (reasoning && !isatty(STDOUT_FILENO))
        return;
    if (show->dim && !reasoning) {
        pm_show_dim(show, false);
        end_line(show);
        pm_show_text(show, "\n", 1);
    }
    if (show->lines || event->kind == PM_EVENT_CALL)
        end_line(show);
    show->lines = event->kind == PM_EVENT_CALL_END;
    pm_show_dim(show, reasoning);
    if (event->kind == PM_EVENT_CALL)
        pm_show_text(show, "[call: ", 7);
    if (event->kind == PM_EVENT_ARGUMENTS)
        pm_show_text(show, " ", 1);
    pm_show_text(show, event->text, event->len);
    if (event->kind == PM_EVENT_CALL_END)
        pm_show_text(show, "]", 1);
}

int pm_show_end(pm_show *show)
{
    pm_show_dim(show, false);
    if (show->stream && show->last != '\n')
        pm_show_text(show, "\n", 1);
    return show->write_error ? pm_cli_fail("cannot write to stdout: %s", strerror(show->write_error)) : PM_EXIT_OK;
}

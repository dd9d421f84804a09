/* stderr, stdout, progress lines, Ctrl-C and the clock. */
#include "cli.h"

#include <ctype.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* "polymath: ", the sentence (what it quotes may hold control characters, which are shown as '?') and `hint`. */
static void complain(const char *format, va_list list, const char *hint)
{
    char sentence[2048];
    vsnprintf(sentence, sizeof(sentence), format, list);
    for (char *c = sentence; *c; c++)
        if (iscntrl((unsigned char)*c))
            *c = '?';
    fprintf(stderr, "polymath: %s%s\n", sentence, hint);
}

int pm_cli_fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    complain(format, list, "");
    va_end(list);
    return PM_EXIT_FAILED;
}

static const char *usage_of; /* the command whose --help is hinted at */

void pm_cli_usage_of(const char *command)
{
    usage_of = command;
}

int pm_cli_usage(const char *format, ...)
{
    char hint[64];
    va_list list;
    snprintf(hint, sizeof(hint), " (see 'polymath %s%s--help')", usage_of ? usage_of : "", usage_of ? " " : "");
    va_start(list, format);
    complain(format, list, hint);
    va_end(list);
    return PM_EXIT_USAGE;
}

bool pm_on_terminal(void)
{
    return isatty(STDOUT_FILENO) && isatty(STDERR_FILENO);
}

/* Bytes of the control character at the start of s[0..len), 0 when there is none: C0 but for newline and tab, DEL, and
 * C1, which UTF-8 writes as C2 80 to C2 9F. */
static size_t control_length(const unsigned char *s, size_t len)
{
    if ((s[0] < 0x20 && s[0] != '\n' && s[0] != '\t') || s[0] == 0x7f)
        return 1;
    return len > 1 && s[0] == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0 ? 2 : 0;
}

bool pm_cli_write(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;
    if (!isatty(STDOUT_FILENO)) {
        fwrite(text, 1, len, stdout);
    } else {
        for (size_t i = 0, skip; i < len; i += skip ? skip : 1) {
            skip = control_length(s + i, len - i);
            putchar(skip ? '?' : s[i]);
        }
    }
    return fflush(stdout) == 0 && !ferror(stdout);
}

void pm_cli_dim(bool dim)
{
    if (isatty(STDOUT_FILENO))
        fputs(dim ? "\033[2m" : "\033[0m", stdout);
}

void pm_progress_start(pm_progress *progress, const char *what)
{
    *progress = (pm_progress){.what = what, .start = pm_seconds()};
}

void pm_progress_show(pm_progress *progress, double fraction)
{
    double now = pm_seconds();
    if (now - progress->start < 0.3 || now - progress->shown < 0.05 || !isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\r%s %3.0f %%", progress->what, fraction * 100);
    fflush(stderr);
    progress->shown = now;
}

void pm_progress_clear(pm_progress *progress)
{
    if (progress->shown > 0)
        fputs("\r\033[K", stderr);
    progress->shown = 0;
}

/* What the handler needs; written only while no handler is installed. */
static pm_session *volatile interrupt_session;
static volatile sig_atomic_t interrupts;

static void on_interrupt(int number)
{
    (void)number;
    if (interrupts)
        _exit(PM_EXIT_INTERRUPTED);
    interrupts = 1;
    if (interrupt_session)
        pm_session_cancel(interrupt_session);
}

void pm_interrupt_begin(pm_session *session)
{
    interrupt_session = session;
    interrupts = 0;
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool pm_interrupted(void)
{
    return interrupts != 0;
}

static void on_idle_interrupt(int number)
{
    (void)number;
}

void pm_interrupt_end(bool stay)
{
    /* Without SA_RESTART: the read that waits for a line returns. */
    struct sigaction action = {.sa_handler = stay ? on_idle_interrupt : SIG_DFL};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

double pm_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

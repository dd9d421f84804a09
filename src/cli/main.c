/* The command `polymath`. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int (*const command_table[PM_COMMANDS])(const pm_args *args) = {
    [PM_RUN] = pm_cmd_run,           [PM_CHAT] = pm_cmd_chat,         [PM_SERVE] = pm_cmd_serve,
    [PM_INSPECT] = pm_cmd_inspect,   [PM_BENCH] = pm_cmd_bench,       [PM_PERPLEXITY] = pm_cmd_perplexity,
    [PM_TOKENIZE] = pm_cmd_tokenize, [PM_TEMPLATE] = pm_cmd_template,
};

/* A mapped file of weights that becomes shorter while a step reads it: the library notices between steps, in one the
 * kernel tells us so. */
static void on_bus_error(int number)
{
    static const char message[] = "polymath: a file of the model became shorter while it was being read\n";
    static atomic_flag said = ATOMIC_FLAG_INIT;
    (void)number;
    while (atomic_flag_test_and_set(&said)) /* several threads read; the first speaks and ends the process */
        pause();
    ssize_t ignored = write(STDERR_FILENO, message, sizeof(message) - 1);
    (void)ignored;
    _exit(PM_EXIT_FAILED);
}

/* Standard streams that are closed must not be taken by the files that we open. */
static void keep_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            _exit(PM_EXIT_FAILED); /* opened the wrong way round, so that using them is an error as before */
}

/* The user's locale for line editing (numbers keep the C locale), or any with UTF-8: text is UTF-8 here. */
static void use_utf8(void)
{
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

int main(int argc, char **argv)
{
    keep_streams();
    signal(SIGBUS, on_bus_error);
    signal(SIGPIPE, SIG_DFL); /* a reader that leaves ends us quietly, also when our parent ignores the signal */
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow any more is an error of the write */
    use_utf8();
    pm_args args;
    int code = pm_args_parse(argc, argv, &args);
    if (code != PM_EXIT_OK)
        return code;
    if (args.value[PM_OPT_HELP].given || (!args.has_command && !args.value[PM_OPT_VERSION].given))
        pm_args_help(&args);
    else if (args.value[PM_OPT_VERSION].given)
        printf("polymath %s\n", PM_VERSION);
    else
        code = command_table[args.command](&args);
    pm_args_free(&args);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == PM_EXIT_OK)
        code = pm_cli_fail("cannot write to stdout: %s", strerror(errno));
    return code;
}

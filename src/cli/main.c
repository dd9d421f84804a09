/* The command `polymath`. */
#include "cli.h"

#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static int (*const command_table[PM_COMMANDS])(const pm_args *args) = {
    [PM_RUN] = pm_cmd_run,
    [PM_CHAT] = pm_cmd_chat,
    [PM_INSPECT] = pm_cmd_inspect,
    [PM_BENCH] = pm_cmd_bench,
    [PM_PERPLEXITY] = pm_cmd_perplexity,
};

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_DFL); /* a reader that leaves ends us quietly, also when our parent ignores the signal */
    setlocale(LC_CTYPE, "");  /* for line editing; numbers keep the C locale */
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

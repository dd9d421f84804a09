/* The command line: what its files share. Of polymath it uses the public header only. */
#ifndef PM_CLI_H
#define PM_CLI_H

#include "polymath.h"

#include <jansson.h>

/* What the process ends with. */
enum { PM_EXIT_OK = 0, PM_EXIT_FAILED = 1, PM_EXIT_USAGE = 2, PM_EXIT_INTERRUPTED = 130 };

/* ---- options.c: one table of options drives parsing and --help ---- */

typedef enum pm_command {
    PM_RUN,
    PM_CHAT,
    PM_SERVE,
    PM_INSPECT,
    PM_BENCH,
    PM_PERPLEXITY,
    PM_TOKENIZE,
    PM_TEMPLATE,
    PM_COMMANDS
} pm_command;

typedef enum pm_option {
    PM_OPT_RAW,
    PM_OPT_IDS,
    PM_OPT_JSON,
    PM_OPT_TOP_LOGPROBS,
    PM_OPT_SYSTEM,
    PM_OPT_NO_THINK,
    PM_OPT_SET,
    PM_OPT_TOOLS,
    PM_OPT_SCHEMA,
    PM_OPT_MAX_TOKENS,
    PM_OPT_TEMPERATURE,
    PM_OPT_TOP_K,
    PM_OPT_TOP_P,
    PM_OPT_MIN_P,
    PM_OPT_XTC_PROBABILITY,
    PM_OPT_XTC_THRESHOLD,
    PM_OPT_REPETITION,
    PM_OPT_PRESENCE,
    PM_OPT_FREQUENCY,
    PM_OPT_LOGIT_BIAS,
    PM_OPT_SEED,
    PM_OPT_STOP,
    PM_OPT_HOST,
    PM_OPT_PORT,
    PM_OPT_ALIAS,
    PM_OPT_PARALLEL,
    PM_OPT_QUEUE,
    PM_OPT_CACHE_MEM,
    PM_OPT_CACHE_DIR,
    PM_OPT_CACHE_DISK,
    PM_OPT_API_KEY_FILE,
    PM_OPT_NO_AUTH,
    PM_OPT_CORS,
    PM_OPT_MAX_BODY,
    PM_OPT_TIMEOUT,
    PM_OPT_LOG_FORMAT,
    PM_OPT_LOG_FILE,
    PM_OPT_URL,
    PM_OPT_MODEL,
    PM_OPT_CONCURRENCY,
    PM_OPT_REQUESTS,
    PM_OPT_PROMPT_WORDS,
    PM_OPT_ANSWER_TOKENS,
    PM_OPT_IGNORE_EOS,
    PM_OPT_CONTEXTS,
    PM_OPT_REPEAT,
    PM_OPT_OPS,
    PM_OPT_CSV,
    PM_OPT_STRIDE,
    PM_OPT_DECODE,
    PM_OPT_PLAIN,
    PM_OPT_NO_GENERATION_PROMPT,
    PM_OPT_CTX,
    PM_OPT_KV_TYPE,
    PM_OPT_PRECISION,
    PM_OPT_DEVICE,
    PM_OPT_THREADS,
    PM_OPT_VERBOSE,
    PM_OPT_VERSION,
    PM_OPT_HELP,
    PM_OPTIONS
} pm_option;

typedef struct pm_value {
    bool given;
    int64_t integer;  /* whole numbers; bytes; the index of a choice */
    double number;    /* other numbers */
    const char *text; /* as it was written */
} pm_value;

typedef struct pm_args {
    pm_command command;
    bool has_command; /* false: only --help or --version was given */
    pm_value value[PM_OPTIONS];
    const char **stop; /* every --stop */
    int n_stop;
    const char **set; /* every --set, as NAME:VALUE */
    int n_set;
    pm_bias *bias; /* every --logit-bias */
    int n_bias;
    const char **words; /* what is left: MODEL, PROMPT */
    int n_words;
} pm_args;

/* Parses the command line. Returns PM_EXIT_OK, or another exit code after saying what is wrong; then `args` is empty.
 * Strings point into argv. */
int pm_args_parse(int argc, char **argv, pm_args *args);
void pm_args_free(pm_args *args);

/* Prints the manual of one command, or of all when has_command is false, to stdout. */
void pm_args_help(const pm_args *args);

/* Parses "1,2,3" into malloc'ed ids (or other numbers); false when it is not such a list or memory ran out. */
bool pm_parse_ids(const char *text, pm_token **ids, size_t *n);

/* ---- terminal.c: stderr, stdout, Ctrl-C ---- */

/* "polymath: ..." on stderr; returns PM_EXIT_FAILED. */
int pm_cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same, with a hint to --help; returns PM_EXIT_USAGE. From pm_cli_usage_of on the hint is to that of a command. */
int pm_cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
void pm_cli_usage_of(const char *command);

bool pm_on_terminal(void); /* stdout and stderr are both terminals */

/* Writes text to stdout at once. On a terminal control characters other than newline and tab are shown as '?', so that
 * a model cannot steer it. False when it cannot be written; errno says why. */
bool pm_cli_write(const char *text, size_t len);

/* What is written to stdout from here on is dim on a terminal, or is as usual again. */
void pm_cli_dim(bool dim);

/* A line on the terminal that is rewritten in place, shown when the work has already taken a moment; nothing when
 * stderr is no terminal. Zero-initialised plus pm_progress_start is ready. */
typedef struct pm_progress {
    const char *what;
    double start, shown;
} pm_progress;
void pm_progress_start(pm_progress *progress, const char *what);
void pm_progress_show(pm_progress *progress, double fraction);
void pm_progress_clear(pm_progress *progress);

/* ---- show.c: an answer on stdout, as it comes ---- */

/* Zero-initialised plus `stream` is ready; without `stream` nothing is written. */
typedef struct pm_show {
    pm_progress progress; /* cleared when something is written */
    bool stream;
    bool dim;        /* reasoning is being shown */
    bool lines;      /* what comes next begins a line, unless nothing has been written */
    int write_error; /* errno of a failed write, else 0 */
    char last;       /* the last byte written, else 0 */
} pm_show;

/* Shows text as it is, or a part of the answer: reasoning apart from it on a terminal and not at all elsewhere, a call
 * as a line. */
void pm_show_text(pm_show *show, const char *text, size_t len);
void pm_show_event(pm_show *show, const pm_event *event);
void pm_show_dim(pm_show *show, bool dim);

/* Ends the last line; an exit code. */
int pm_show_end(pm_show *show);

/* ---- terminal.c again: Ctrl-C ---- */

/* From here to pm_interrupt_end the first Ctrl-C cancels `session` (NULL: only pm_interrupted tells) and the second
 * ends the process with 130. */
void pm_interrupt_begin(pm_session *session);
bool pm_interrupted(void); /* since pm_interrupt_begin */

/* After an answer: Ctrl-C ends the process again, or with `stay` only interrupts the reading of a line. */
void pm_interrupt_end(bool stay);

double pm_seconds(void); /* monotonic */

/* ---- input.c ---- */

/* Reads all of stdin, or of the file at `path`, malloc'ed and terminated; an error when it is long beyond reason or
 * cannot be read. */
int pm_read_stdin(char **text, size_t *len);
int pm_read_text(const char *path, char **text, size_t *len);

/* Parses the file at `path`, or stdin for "-"; an exit code. *out is the caller's to json_decref. */
int pm_read_json(const char *path, json_t **out);

/* PM_EXIT_OK when text is UTF-8; otherwise says where it is not (`what` names it). */
int pm_check_utf8(const char *what, const char *text, size_t len);

/* The same of a message to a chat template, which has no NUL bytes either. */
int pm_check_message(const char *what, const char *text, size_t len);

/* The directory of MODEL as it was given, or when `given` is NULL that of the bundled model: beside the program, in the
 * source tree, or in the install prefix. An exit code; *out points to `given` or to bundled[size]. */
int pm_find_model(const char *given, char *bundled, size_t size, const char **out);

/* PM_EXIT_OK when `dir` is a directory; otherwise says that it cannot be the MODEL. */
int pm_check_model(const char *dir);

bool pm_is_directory(const char *path);

/* ---- variables.c ---- */

/* Adds what --no-think and --set ask for to an object of template variables; an exit code. */
int pm_variable_flags(const pm_args *args, json_t *variables);

/* The same as JSON text, malloc'ed; an exit code. */
int pm_variable_text(const pm_args *args, char **out);

/* Reads a file (- is stdin) that must hold a list of tools, each a function with a name; an exit code. */
int pm_read_tools(const char *path, json_t **out);

/* The list in the file of --tools as JSON text, malloc'ed, or NULL without that option; an exit code. */
int pm_tools_text(const pm_args *args, char **out);

/* The JSON Schema in the file of --schema as JSON text, malloc'ed, or NULL without that option; an exit code. */
int pm_schema_text(const pm_args *args, char **out);

/* Says on stderr that tools do nothing, when two prompts of a chat template, with them and without, are the same. */
void pm_say_tools_unused(const char *with, size_t n_with, const char *without, size_t n_without);

/* The same of a model, by a short question; tools may be NULL or an empty list. */
void pm_check_tools_used(const pm_engine *engine, const char *tools);

/* ---- answer.c: what run and chat have in common ---- */

typedef struct pm_opened {
    pm_engine *engine;
    pm_session *session;
    pm_constraint *constraint; /* of --schema, NULL: none */
    const char *dir;
    char bundled[4096]; /* what dir points to when no MODEL was given */
    double load_seconds;
} pm_opened;

/* Opens MODEL (`dir`, or the bundled model when NULL) with a fresh session, and reads --schema. Returns an exit code.
 */
int pm_open(pm_opened *opened, const char *dir, const pm_args *args);
void pm_close(pm_opened *opened);

/* The engine options that the flags ask for. */
pm_engine_options pm_engine_flags(const pm_args *args);

/* Generates one answer, streaming it to stdout when `stream`; *seed receives what the sampler used (-1: greedy). On a
 * terminal reasoning is shown dim before the answer, elsewhere it is left out; calls are lines of their own. --raw and
 * --ids show everything as it comes. On PM_EXIT_OK `result` is the caller's to free. */
int pm_answer(pm_opened *opened, const pm_args *args, const pm_prompt *prompt, bool stream, pm_result *result,
              int64_t *seed);

/* The answer's message, as pm_parse_message has it; an exit code. */
int pm_answer_message(const pm_opened *opened, const pm_prompt *prompt, const pm_result *result, json_t **message);

/* Tokens per second of a result's decoding, 0 when there was nothing to measure. */
double pm_decode_speed(const pm_result *result);

/* ---- one function a command; each returns the exit code ---- */
int pm_cmd_run(const pm_args *args);
int pm_cmd_chat(const pm_args *args);
int pm_cmd_serve(const pm_args *args);
int pm_cmd_inspect(const pm_args *args);
int pm_cmd_bench(const pm_args *args);
int pm_cmd_perplexity(const pm_args *args);
int pm_cmd_tokenize(const pm_args *args);
int pm_cmd_template(const pm_args *args);

#endif

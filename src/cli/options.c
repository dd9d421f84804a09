/* The table of options, and what reads it: the parser and --help. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { FLAG, INTEGER, SIZE, NUMBER, TEXT, LIST, NUMBERS, BIAS, SETTING, CHOICE } kind;

enum {
    RUN = 1 << PM_RUN,
    CHAT = 1 << PM_CHAT,
    SERVE = 1 << PM_SERVE,
    INSPECT = 1 << PM_INSPECT,
    BENCH = 1 << PM_BENCH,
    PERPLEXITY = 1 << PM_PERPLEXITY,
    TOKENIZE = 1 << PM_TOKENIZE,
    TEMPLATE = 1 << PM_TEMPLATE,
    ENGINE = RUN | CHAT | SERVE | INSPECT | BENCH | PERPLEXITY, /* what opens the model */
    ALL = ENGINE | TOKENIZE | TEMPLATE
};

static const struct option {
    const char *name;
    const char *value; /* what --help calls its value; of a CHOICE, the choices separated by '|' */
    kind kind;
    int commands;
    double min, max; /* of INTEGER, SIZE and NUMBER; a max of 0 is INT64_MAX */
    const char *help;
} options[PM_OPTIONS] = {
    [PM_OPT_RAW] = {"--raw", NULL, FLAG, RUN, 0, 0, "continue PROMPT as it is, without the chat template"},
    [PM_OPT_IDS] = {"--ids", "LIST", NUMBERS, RUN, 0, 0, "token ids separated by commas, in place of PROMPT"},
    [PM_OPT_JSON] = {"--json", NULL, FLAG, RUN | INSPECT | BENCH | PERPLEXITY | TOKENIZE, 0, 0,
                     "print one JSON object instead of text"},
    [PM_OPT_TOP_LOGPROBS] = {"--top-logprobs", "N", INTEGER, RUN, 0, 1000,
                             "with --json: log-probabilities of each token and of the N likeliest in its place"},
    [PM_OPT_SYSTEM] = {"--system", "TEXT", TEXT, RUN | CHAT, 0, 0, "the system message"},
    [PM_OPT_NO_THINK] = {"--no-think", NULL, FLAG, RUN | CHAT | TEMPLATE, 0, 0,
                         "ask the chat template to leave reasoning out (enable_thinking false)"},
    [PM_OPT_SET] = {"--set", "NAME:VALUE", SETTING, RUN | CHAT | TEMPLATE, 0, 0,
                    "give the chat template a variable: VALUE is JSON, else text; may be repeated"},
    [PM_OPT_TOOLS] = {"--tools", "FILE", TEXT, RUN | CHAT | TEMPLATE, 0, 0,
                      "the tools that the model may call: a JSON list of them"},
    [PM_OPT_SCHEMA] = {"--schema", "FILE", TEXT, RUN, 0, 0,
                       "hold the answer to a JSON Schema: it is JSON that satisfies it"},
    [PM_OPT_MAX_TOKENS] = {"--max-tokens", "N", INTEGER, RUN | CHAT, 1, INT_MAX,
                           "end an answer after N tokens (default: the model's, else when the context is full)"},
    [PM_OPT_TEMPERATURE] = {"--temperature", "T", NUMBER, RUN | CHAT, 0, 100,
                            "0 always takes the likeliest token (default: the model's, else 0)"},
    [PM_OPT_TOP_K] = {"--top-k", "K", INTEGER, RUN | CHAT, 0, INT_MAX,
                      "sample from the K likeliest tokens (0: off; default: the model's, else 50)"},
    [PM_OPT_TOP_P] = {"--top-p", "P", NUMBER, RUN | CHAT, 1e-6, 1,
                      "sample from the likeliest tokens with probability P together (1: off; default: the model's)"},
    [PM_OPT_MIN_P] = {"--min-p", "P", NUMBER, RUN | CHAT, 0, 1,
                      "leave out tokens less likely than P times the likeliest (0: off; default: the model's)"},
    [PM_OPT_XTC_PROBABILITY] = {"--xtc-probability", "P", NUMBER, RUN | CHAT, 0, 1,
                                "how often to exclude the top choices but the least likely of them (default: 0)"},
    [PM_OPT_XTC_THRESHOLD] = {"--xtc-threshold", "P", NUMBER, RUN | CHAT, 0, 1,
                              "with --xtc-probability: how likely a token must be to be a top choice (default: 0.1)"},
    [PM_OPT_REPETITION] =
        {"--repetition-penalty", "X", NUMBER, RUN | CHAT, 0.01, 100,
         "divide positive logits of tokens so far by X, multiply others (1: off; default: the model's)"},
    [PM_OPT_PRESENCE] = {"--presence-penalty", "X", NUMBER, RUN | CHAT, -2, 2,
                         "subtract X from the logits of tokens in the answer (0: off)"},
    [PM_OPT_FREQUENCY] = {"--frequency-penalty", "X", NUMBER, RUN | CHAT, -2, 2,
                          "subtract X as many times as the token stands in the answer (0: off)"},
    [PM_OPT_LOGIT_BIAS] = {"--logit-bias", "ID:X", BIAS, RUN | CHAT, -100, 100,
                           "add X, from -100 to 100, to the logit of token ID; may be repeated"},
    [PM_OPT_SEED] = {"--seed", "N", INTEGER, RUN | CHAT, 0, 0, "make sampling repeatable (default: a random seed)"},
    [PM_OPT_STOP] = {"--stop", "TEXT", LIST, RUN | CHAT, 0, 0, "end an answer before TEXT; may be repeated"},
    [PM_OPT_HOST] = {"--host", "ADDRESS", TEXT, SERVE, 0, 0, "the address to listen on (default: 127.0.0.1)"},
    [PM_OPT_PORT] = {"--port", "N", INTEGER, SERVE, 0, 65535,
                     "the port to listen on; 0: one that is free (default: 8080)"},
    [PM_OPT_ALIAS] = {"--alias", "NAME", TEXT, SERVE, 0, 0,
                      "what requests call the model (default: the name of its directory)"},
    [PM_OPT_PARALLEL] = {"--parallel", "N", INTEGER, SERVE, 1, 512, "answers written at once, at most (default: 8)"},
    [PM_OPT_QUEUE] = {"--queue", "N", INTEGER, SERVE, 1, 100000,
                      "answers that wait for their turn, at most; more are refused (default: 64)"},
    [PM_OPT_CACHE_MEM] = {"--cache-mem", "SIZE", SIZE, SERVE, 1, 0,
                          "memory for conversations, such as 8G (default: what is free, as far as it is of use)"},
    [PM_OPT_CACHE_DIR] = {"--cache-dir", "DIR", TEXT, SERVE, 0, 0,
                          "keep conversations in DIR too, where the next start and other servers find them"},
    [PM_OPT_CACHE_DISK] = {"--cache-disk", "SIZE", SIZE, SERVE, 1, 0,
                           "bytes of them there, at most, such as 50G (default: 10G)"},
    [PM_OPT_API_KEY_FILE] = {"--api-key-file", "FILE", TEXT, SERVE | CHAT | BENCH, 0, 0,
                             "keys, one a line: serve answers only those who have one, --url sends the first"},
    [PM_OPT_NO_AUTH] = {"--no-auth", NULL, FLAG, SERVE, 0, 0,
                        "listen on an address that others reach, without keys: anybody may ask"},
    [PM_OPT_CORS] = {"--cors", "ORIGIN", TEXT, SERVE, 0, 0,
                     "let web pages of ORIGIN, such as https://example.org, ask; *: those of any"},
    [PM_OPT_MAX_BODY] = {"--max-body", "SIZE", SIZE, SERVE, 1, (double)(1 << 30),
                         "bytes of a request, at most (default: 8M)"},
    [PM_OPT_TIMEOUT] =
        {"--timeout", "SECONDS", NUMBER, SERVE | CHAT | BENCH, 1, 86400,
         "give up a connection on which the other side does nothing for so long (default: 60; with --url: 600)"},
    [PM_OPT_LOG_FORMAT] = {"--log-format", "text|json", CHOICE, SERVE, 0, 0,
                           "how the line is written that each request leaves (default: text)"},
    [PM_OPT_LOG_FILE] = {"--log-file", "FILE", TEXT, SERVE, 0, 0,
                         "append these lines to FILE, opened again at SIGHUP (default: stderr)"},
    [PM_OPT_URL] = {"--url", "URL", TEXT, CHAT | BENCH, 0, 0,
                    "ask the server at URL, such as http://127.0.0.1:8080, in place of a MODEL"},
    [PM_OPT_MODEL] = {"--model", "NAME", TEXT, CHAT | BENCH, 0, 0,
                      "with --url: the model to ask for (default: the first that the server lists)"},
    [PM_OPT_CONCURRENCY] = {"--concurrency", "N", INTEGER, BENCH, 1, 512,
                            "sequences decoded in one step, with --url requests under way at once (default: 1)"},
    [PM_OPT_REQUESTS] = {"--requests", "N", INTEGER, BENCH, 1, 100000,
                         "with --url: requests altogether (default: 16, or as many as are under way at once)"},
    [PM_OPT_PROMPT_WORDS] = {"--prompt-words", "N", INTEGER, BENCH, 1, 1000000,
                             "with --url: words of each prompt, drawn at random (default: 64)"},
    [PM_OPT_ANSWER_TOKENS] = {"--answer-tokens", "N", INTEGER, BENCH, 1, 1000000,
                              "with --url: tokens of each answer, at most (default: 64)"},
    [PM_OPT_IGNORE_EOS] = {"--ignore-eos", NULL, FLAG, BENCH, 0, 0,
                           "with --url: ask that no answer ends earlier, which not all servers know"},
    [PM_OPT_CONTEXTS] = {"--contexts", "LIST", NUMBERS, BENCH, 0, 0,
                         "measure after so many tokens (default: 0,512,2048, each at most the model's limit less 512)"},
    [PM_OPT_REPEAT] = {"--repeat", "N", INTEGER, BENCH, 1, 1000,
                       "measure everything N times and report medians (default: 5)"},
    [PM_OPT_OPS] = {"--ops", NULL, FLAG, BENCH, 0, 0, "tell the operations of a step apart"},
    [PM_OPT_CSV] = {"--csv", NULL, FLAG, BENCH, 0, 0, "print comma-separated values instead of a table"},
    [PM_OPT_STRIDE] = {"--stride", "N", INTEGER, PERPLEXITY, 1, INT_MAX,
                       "tokens from one window of --ctx tokens to the next (default: half a window)"},
    [PM_OPT_NO_GENERATION_PROMPT] = {"--no-generation-prompt", NULL, FLAG, TEMPLATE, 0, 0,
                                     "leave the opening of the assistant's answer out"},
    [PM_OPT_DECODE] = {"--decode", NULL, FLAG, TOKENIZE, 0, 0,
                       "TEXT is token ids, separated by commas or white space: print what they say"},
    [PM_OPT_PLAIN] = {"--plain", NULL, FLAG, TOKENIZE, 0, 0,
                      "recognise no control tokens in TEXT and add none; with --decode: leave them out"},
    [PM_OPT_CTX] = {"--ctx", "N", INTEGER, ENGINE, 1, INT_MAX,
                    "most tokens of prompt and answer, or of a window (default: the model's limit)"},
    [PM_OPT_KV_TYPE] = {"--kv-type", "f16|f32|q8", CHOICE, ENGINE, 0, 0, /* in the order of pm_kv_type */
                        "element type of the attention cache; q8: 8 bits, a scale for each 64 (default: f16)"},
    [PM_OPT_PRECISION] = {"--precision", "exact|fast", CHOICE, RUN | CHAT | SERVE | BENCH | PERPLEXITY, 0, 0,
                          "round activations to 16 or to 8 bits for quantised weights (default: exact)"},
    [PM_OPT_DEVICE] = {"--device", "auto|cpu|mlx|mlx:gpu", CHOICE, ENGINE, 0, 0, /* in the order of pm_device */
                       "where the model runs; mlx: where it is built in (default: auto, which is cpu)"},
    [PM_OPT_THREADS] = {"--threads", "N", INTEGER, RUN | CHAT | SERVE | BENCH | PERPLEXITY, 1, 1024,
                        "threads (default: one per physical core)"},
    [PM_OPT_VERBOSE] = {"--verbose", NULL, FLAG, RUN | CHAT | PERPLEXITY, 0, 0,
                        "say on stderr what was loaded, what is not applied, the seed, and timings"},
    [PM_OPT_VERSION] = {"--version", NULL, FLAG, ALL, 0, 0, "print the version"},
    [PM_OPT_HELP] = {"--help", NULL, FLAG, ALL, 0, 0, "print this help (also: -h)"},
};

static const struct command {
    const char *name, *words;
    int max_words;
    const char *summary;
} commands[PM_COMMANDS] = {
    [PM_RUN] = {"run", "[MODEL] [PROMPT]", 2, "answer one prompt; a PROMPT of - is read from stdin"},
    [PM_CHAT] = {"chat", "[MODEL]", 1, "hold a conversation; Ctrl-C ends an answer, Ctrl-D the conversation"},
    [PM_SERVE] = {"serve", "[MODEL]", 1, "answer over HTTP, as OpenAI's API does, for many at once"},
    [PM_INSPECT] = {"inspect", "[MODEL]", 1, "say whether a checkpoint can be run and what memory it takes"},
    [PM_BENCH] = {"bench", "[MODEL]", 1, "measure how fast a model runs and how far that is from the machine's limit"},
    [PM_PERPLEXITY] = {"perplexity", "[MODEL] FILE", 2, "say how well a model foresees a text; a FILE of - is stdin"},
    [PM_TOKENIZE] = {"tokenize", "[MODEL] [TEXT]", 2, "print the tokens of a text; without TEXT, or for -, of stdin"},
    [PM_TEMPLATE] = {"template", "[MODEL] FILE", 2, "print the prompt that the chat template makes of a conversation"},
};

/* Options that say nothing, or contradict each other, when given together. */
static const struct conflict {
    pm_option one, other;
} conflicts[] = {
    {PM_OPT_RAW, PM_OPT_SYSTEM},    {PM_OPT_RAW, PM_OPT_NO_THINK}, {PM_OPT_IDS, PM_OPT_RAW},
    {PM_OPT_IDS, PM_OPT_SYSTEM},    {PM_OPT_IDS, PM_OPT_NO_THINK}, {PM_OPT_JSON, PM_OPT_CSV},
    {PM_OPT_RAW, PM_OPT_SET},       {PM_OPT_IDS, PM_OPT_SET},      {PM_OPT_RAW, PM_OPT_TOOLS},
    {PM_OPT_IDS, PM_OPT_TOOLS},     {PM_OPT_URL, PM_OPT_CTX},      {PM_OPT_URL, PM_OPT_KV_TYPE},
    {PM_OPT_URL, PM_OPT_PRECISION}, {PM_OPT_URL, PM_OPT_THREADS},  {PM_OPT_URL, PM_OPT_CONTEXTS},
    {PM_OPT_URL, PM_OPT_REPEAT},    {PM_OPT_URL, PM_OPT_OPS},      {PM_OPT_URL, PM_OPT_DEVICE},
};

enum { URL_COMMANDS = CHAT | BENCH };

/* Options that say nothing without another. */
static const struct need {
    pm_option one, other;
    int commands; /* where that is so */
} needs[] = {
    {PM_OPT_XTC_THRESHOLD, PM_OPT_XTC_PROBABILITY, ALL},
    {PM_OPT_TOP_LOGPROBS, PM_OPT_JSON, ALL},
    {PM_OPT_API_KEY_FILE, PM_OPT_URL, URL_COMMANDS},
    {PM_OPT_TIMEOUT, PM_OPT_URL, URL_COMMANDS},
    {PM_OPT_MODEL, PM_OPT_URL, URL_COMMANDS},
    {PM_OPT_REQUESTS, PM_OPT_URL, URL_COMMANDS},
    {PM_OPT_PROMPT_WORDS, PM_OPT_URL, URL_COMMANDS},
    {PM_OPT_ANSWER_TOKENS, PM_OPT_URL, URL_COMMANDS},
    {PM_OPT_IGNORE_EOS, PM_OPT_URL, URL_COMMANDS},
};

bool pm_parse_ids(const char *text, pm_token **ids, size_t *n)
{
    size_t count = 1;
    for (const char *p = text; *p; p++)
        count += *p == ',';
    pm_token *list = calloc(count, sizeof(*list));
    if (!list)
        return false;
    const char *p = text;
    for (size_t i = 0; i < count; i++) {
        while (*p == ' ')
            p++;
        char *end = NULL;
        errno = 0;
        long id = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : -1;
        if (!end || errno || id > INT32_MAX)
            goto bad;
        while (*end == ' ')
            end++;
        if (*end != (i + 1 < count ? ',' : '\0'))
            goto bad;
        list[i] = (pm_token)id;
        p = end + 1;
    }
    *ids = list;
    *n = count;
    return true;
bad:
    free(list);
    return false;
}

/* A whole decimal number in the option's range. */
static bool parse_integer(const struct option *option, const char *text, int64_t *out)
{
    const char *digits = *text == '-' ? text + 1 : text;
    if (!isdigit((unsigned char)*digits))
        return false;
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (*end || errno)
        return false;
    *out = n;
    return (double)n >= option->min && (option->max == 0 || (double)n <= option->max);
}

/* A whole number of bytes in the option's range, in the units that a K, M, G or T at its end says. */
static bool parse_size(const struct option *option, const char *text, int64_t *out)
{
    static const char units[] = "KMGT";
    size_t n = strlen(text);
    const char *unit = n > 1 ? strchr(units, toupper((unsigned char)text[n - 1])) : NULL;
    char digits[24];
    if (n >= sizeof(digits))
        return false;
    snprintf(digits, sizeof(digits), "%.*s", (int)(unit ? n - 1 : n), text);
    if (*digits == '-' || !parse_integer(option, digits, out))
        return false;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (*out > INT64_MAX >> shift)
        return false;
    *out <<= shift;
    return option->max == 0 || (double)*out <= option->max;
}

/* A decimal number in the option's range; no hexadecimal, infinities or spaces, which strtod would take. */
static bool parse_number(const struct option *option, const char *text, double *out)
{
    if (!*text || text[strspn(text, "0123456789+-.eE")])
        return false;
    char *end;
    double x = strtod(text, &end);
    if (*end || end == text)
        return false;
    *out = x;
    return x >= option->min && x <= option->max;
}

/* "42:-1.5". */
static bool parse_bias(const struct option *option, const char *text, pm_bias *out)
{
    double bias;
    if (!isdigit((unsigned char)*text))
        return false;
    char *colon;
    errno = 0;
    long id = strtol(text, &colon, 10);
    if (errno || id > INT32_MAX || *colon != ':' || !parse_number(option, colon + 1, &bias))
        return false;
    *out = (pm_bias){.id = (pm_token)id, .bias = (float)bias};
    return true;
}

/* The place of `text` in "f16|f32", or -1. */
static int parse_choice(const char *choices, const char *text)
{
    size_t len = strlen(text);
    for (int i = 0; choices; i++) {
        const char *bar = strchr(choices, '|');
        size_t width = bar ? (size_t)(bar - choices) : strlen(choices);
        if (width == len && memcmp(choices, text, len) == 0)
            return i;
        choices = bar ? bar + 1 : NULL;
    }
    return -1;
}

/* Stores the value of an option; an exit code. */
static int set_value(pm_args *args, pm_option id, const char *text)
{
    const struct option *option = &options[id];
    pm_value *value = &args->value[id];
    value->given = true;
    value->text = text;
    switch (option->kind) {
    case FLAG:
    case TEXT: return PM_EXIT_OK;
    case INTEGER:
        if (parse_integer(option, text, &value->integer))
            return PM_EXIT_OK;
        return pm_cli_usage("%s takes a whole number from %.0f to %" PRId64 ", not '%s'", option->name, option->min,
                            option->max == 0 ? INT64_MAX : (int64_t)option->max, text);
    case SIZE:
        if (parse_size(option, text, &value->integer))
            return PM_EXIT_OK;
        return pm_cli_usage("%s takes a number of bytes, such as 512M or 8G, not '%s'", option->name, text);
    case NUMBER:
        if (parse_number(option, text, &value->number))
            return PM_EXIT_OK;
        return pm_cli_usage("%s takes a number from %g to %g, not '%s'", option->name, option->min, option->max, text);
    case LIST:
        if (!*text)
            return pm_cli_usage("%s takes a text that is not empty", option->name);
        args->stop[args->n_stop++] = text;
        return PM_EXIT_OK;
    case NUMBERS: {
        pm_token *ids;
        size_t n;
        if (!pm_parse_ids(text, &ids, &n))
            return pm_cli_usage("%s takes whole numbers separated by commas, such as 1,2,3, not '%s'", option->name,
                                text);
        free(ids);
        return PM_EXIT_OK;
    }
    case BIAS:
        if (parse_bias(option, text, &args->bias[args->n_bias])) {
            args->n_bias++;
            return PM_EXIT_OK;
        }
        return pm_cli_usage("%s takes a token id, a colon and a number from %g to %g, such as 42:-1.5, not '%s'",
                            option->name, option->min, option->max, text);
    case SETTING: {
        const char *colon = strchr(text, ':');
        if (!colon || colon == text)
            return pm_cli_usage("%s takes a name, a colon and a value, such as reasoning_effort:high, not '%s'",
                                option->name, text);
        args->set[args->n_set++] = text;
        return PM_EXIT_OK;
    }
    case CHOICE:
        value->integer = parse_choice(option->value, text);
        if (value->integer >= 0)
            return PM_EXIT_OK;
        return pm_cli_usage("%s takes %s, not '%s'", option->name, option->value, text);
    }
    return PM_EXIT_FAILED;
}

/* Says that there is no such option, and which one may be meant: the only one of the command that begins so. */
static int unknown_option(const pm_args *args, const char *word, size_t len)
{
    const char *meant = NULL;
    int found = 0;
    for (int id = 0; id < PM_OPTIONS && len > 2; id++) {
        if ((options[id].commands & 1 << args->command) && strncmp(options[id].name, word, len) == 0) {
            meant = options[id].name;
            found++;
        }
    }
    return found == 1 ? pm_cli_usage("unknown option '%.*s'; is %s meant?", (int)len, word, meant)
                      : pm_cli_usage("unknown option '%.*s'", (int)len, word);
}

/* Parses the option at argv[*i], moving *i over a value in the next word; an exit code. */
static int parse_option(pm_args *args, int argc, char **argv, int *i)
{
    const char *word = strcmp(argv[*i], "-h") == 0 ? "--help" : argv[*i];
    const char *equals = strchr(word, '=');
    size_t len = equals ? (size_t)(equals - word) : strlen(word);
    int id = 0;
    while (id < PM_OPTIONS && (strlen(options[id].name) != len || memcmp(options[id].name, word, len) != 0))
        id++;
    if (id == PM_OPTIONS)
        return unknown_option(args, word, len);
    const struct option *option = &options[id];
    if (args->has_command && !(option->commands & 1 << args->command))
        return pm_cli_usage("%s is not an option of 'polymath %s'", option->name, commands[args->command].name);
    if (option->kind == FLAG)
        return equals ? pm_cli_usage("%s takes no value", option->name) : set_value(args, (pm_option)id, NULL);
    if (equals)
        return set_value(args, (pm_option)id, equals + 1);
    if (*i + 1 == argc)
        return pm_cli_usage("%s needs a value (%s)", option->name, option->value);
    return set_value(args, (pm_option)id, argv[++*i]);
}

static int find_command(pm_args *args, const char *name)
{
    for (int c = 0; c < PM_COMMANDS; c++) {
        if (strcmp(name, commands[c].name) == 0) {
            args->command = (pm_command)c;
            args->has_command = true;
            pm_cli_usage_of(commands[c].name);
            return PM_EXIT_OK;
        }
    }
    return pm_cli_usage(
        "unknown command '%s'; there are run, chat, serve, inspect, bench, perplexity, tokenize and template", name);
}

/* The first word of the command line: a command, help, --help or --version. */
static int parse_command(pm_args *args, int argc, char **argv)
{
    if (argc < 2)
        return pm_cli_usage("say what to do, such as: polymath run \"What is a dog?\"");
    if (strcmp(argv[1], "help") == 0 && argc <= 3) {
        args->value[PM_OPT_HELP].given = true;
        return argc == 3 ? find_command(args, argv[2]) : PM_EXIT_OK;
    }
    if (argv[1][0] != '-')
        return find_command(args, argv[1]);
    bool question = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--version") == 0;
    if (argc > 2 || !question)
        return pm_cli_usage(
            "the first word is a command: run, chat, serve, inspect, bench, perplexity, tokenize or template");
    return PM_EXIT_OK;
}

/* Refuses to read two things from stdin; an exit code. */
static int check_stdin(const pm_args *args)
{
    static const char *const inputs[PM_COMMANDS] = {
        [PM_RUN] = "PROMPT", [PM_CHAT] = "the conversation", [PM_TEMPLATE] = "FILE"};
    static const pm_option files[] = {PM_OPT_TOOLS, PM_OPT_SCHEMA};
    const char *last = args->n_words > 0 ? args->words[args->n_words - 1] : "";
    bool words = args->command == PM_CHAT || strcmp(last, "-") == 0;
    const char *before = words ? inputs[args->command] : NULL;
    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
        const pm_value *file = &args->value[files[i]];
        if (!file->given || strcmp(file->text, "-") != 0)
            continue;
        if (before)
            return pm_cli_usage("%s and %s cannot both be read from stdin", before, options[files[i]].name);
        before = options[files[i]].name;
    }
    return PM_EXIT_OK;
}

/* What the words of a command mean only together; an exit code. */
static int check_together(const pm_args *args)
{
    const pm_value *value = args->value;
    for (size_t i = 0; i < sizeof(conflicts) / sizeof(*conflicts); i++) {
        if (value[conflicts[i].one].given && value[conflicts[i].other].given)
            return pm_cli_usage("%s and %s do not go together", options[conflicts[i].one].name,
                                options[conflicts[i].other].name);
    }
    for (size_t i = 0; i < sizeof(needs) / sizeof(*needs); i++) {
        if ((needs[i].commands & 1 << args->command) && value[needs[i].one].given && !value[needs[i].other].given)
            return pm_cli_usage("%s needs %s", options[needs[i].one].name, options[needs[i].other].name);
    }
    if (value[PM_OPT_URL].given && args->n_words > 0)
        return pm_cli_usage("--url takes the place of a MODEL, and '%s' is one", args->words[0]);
    const struct command *command = &commands[args->command];
    if (args->n_words > command->max_words)
        return pm_cli_usage("'%s' is one word too many for 'polymath %s %s'%s", args->words[command->max_words],
                            command->name, command->words,
                            args->command == PM_RUN        ? "; a PROMPT of several words goes in quotes"
                            : args->command == PM_TOKENIZE ? "; a TEXT of several words goes in quotes"
                                                           : "");
    return check_stdin(args);
}

int pm_args_parse(int argc, char **argv, pm_args *args)
{
    *args = (pm_args){0};
    args->stop = calloc((size_t)argc + 1, sizeof(*args->stop));
    args->bias = calloc((size_t)argc + 1, sizeof(*args->bias));
    args->set = calloc((size_t)argc + 1, sizeof(*args->set));
    args->words = calloc((size_t)argc + 1, sizeof(*args->words));
    if (!args->stop || !args->bias || !args->set || !args->words) {
        pm_args_free(args);
        return pm_cli_fail("out of memory");
    }
    int code = parse_command(args, argc, argv);
    bool only_words = false;
    for (int i = args->has_command ? 2 : 1; code == PM_EXIT_OK && i < argc; i++) {
        if (only_words || argv[i][0] != '-' || argv[i][1] == '\0')
            args->words[args->n_words++] = argv[i];
        else if (strcmp(argv[i], "--") == 0)
            only_words = true;
        else
            code = parse_option(args, argc, argv, &i);
    }
    bool question = args->value[PM_OPT_HELP].given || args->value[PM_OPT_VERSION].given;
    if (code == PM_EXIT_OK && !question)
        code = check_together(args);
    if (code != PM_EXIT_OK)
        pm_args_free(args);
    return code;
}

void pm_args_free(pm_args *args)
{
    free((void *)args->stop);
    free((void *)args->set);
    free(args->bias);
    free((void *)args->words);
    *args = (pm_args){0};
}

void pm_args_help(const pm_args *args)
{
    if (!args->has_command) {
        printf("polymath runs mixture-of-experts and hybrid language models from safetensors checkpoints.\n\n");
        for (int c = 0; c < PM_COMMANDS; c++)
            printf("  polymath %-10s %-16s  %s\n", commands[c].name, commands[c].words, commands[c].summary);
        printf("\nMODEL is a directory; where it may be left out, that means the bundled model.\n"
               "'polymath COMMAND --help' lists the options of a command.\n");
        return;
    }
    const struct command *command = &commands[args->command];
    printf("usage: polymath %s [OPTIONS] %s\n\n%c%s\n\n", command->name, command->words,
           toupper((unsigned char)command->summary[0]), command->summary + 1);
    for (int id = 0; id < PM_OPTIONS; id++) {
        const struct option *option = &options[id];
        if (!(option->commands & 1 << args->command))
            continue;
        char left[64];
        snprintf(left, sizeof(left), "%s%s%s", option->name, option->value ? " " : "",
                 option->value ? option->value : "");
        printf("  %-24s %s\n", left, option->help);
    }
    if (args->command == PM_CHAT)
        printf("\nA line that ends in \\ goes on in the next. One that begins with / is a command to the chat; /help "
               "lists them.\n");
    if (args->command == PM_PERPLEXITY)
        printf("\nA window has 2048 tokens, or the model's limit, unless --ctx says otherwise. Each token is judged "
               "once, in "
               "the\nfirst window that has it, after all that stands before it there.\n");
    if (args->command == PM_TEMPLATE)
        printf("\nFILE (- is stdin) is a JSON list of messages, or an object with messages, tools, "
               "add_generation_prompt and further\nvariables of the template; options win over it. On a terminal "
               "control tokens stand out.\n");
    if (args->command == PM_TOKENIZE)
        printf("\nEach token is a line: its id, a tab, and the token as the model's tokenizer.json spells it.\n");
    if (args->command == PM_RUN || args->command == PM_TOKENIZE)
        printf("\nA single word that is an existing directory is the MODEL, any other the %s. '--' ends the "
               "options.\n",
               args->command == PM_RUN ? "PROMPT" : "TEXT");
    bool answers = args->command == PM_RUN || args->command == PM_CHAT;
    bool alone = args->command == PM_INSPECT || args->command == PM_BENCH || args->command == PM_SERVE;
    printf("%sMODEL left out is the bundled model.%s\n", alone ? "\n" : "",
           answers ? " Defaults come from the model's generation_config.json." : "");
}

/* Asks a model one question and prints the answer as it comes: generate MODEL QUESTION */
#include <polymath.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print(void *user, const char *text, size_t len)
{
    return fwrite(text, 1, len, user) != len || fflush(user) != 0; /* anything but 0 ends the answer */
}

int main(int argc, char **argv)
{
    char *messages = malloc(argc == 3 ? 6 * strlen(argv[2]) + 64 : 1); /* a byte becomes 6 at most */
    if (argc != 3 || !messages)
        return fprintf(stderr, "usage: generate MODEL QUESTION\n"), 2;
    char *end = messages + sprintf(messages, "[{\"role\":\"user\",\"content\":\"");
    for (const char *c = argv[2]; *c; c++)
        end += sprintf(end, *c == '"' || *c == '\\' || (unsigned char)*c < 32 ? "\\u%04x" : "%c", *c);
    strcpy(end, "\"}]");

    pm_engine *engine = NULL;
    pm_session *session = NULL;
    pm_prompt prompt = {0};
    pm_result result = {0};
    pm_generate_options options = {.on_text = print, .user = stdout};
    pm_error err;
    bool ok = pm_engine_open(&engine, argv[1], NULL, &err) == PM_OK && pm_session_new(&session, engine, &err) == PM_OK;
    ok = ok && pm_chat_prompt(engine, &(pm_chat){.messages = messages}, &prompt, &err) == PM_OK;
    if (ok)
        pm_engine_sampling(engine, &options.sampling);
    ok = ok && pm_generate(session, &prompt, &options, &result, &err) == PM_OK;
    ok ? printf("\n") : fprintf(stderr, "generate: %s\n", err.message);
    pm_result_free(&result);
    pm_prompt_free(&prompt);
    pm_session_free(session);
    pm_engine_close(engine);
    return free(messages), !ok;
}

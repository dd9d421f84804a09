#include "job.h"

#include "constrain.h"
#include "fields.h"
#include "state.h"
#include "worker.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { LOGPROBS_HELD = 32 }; /* a stream has them without text when no text comes for so many tokens */

/* ---- refusals ---- */

static const struct {
    int status, http;
    const char *code;
} statuses[] = {
    {PM_ERR_INVALID, 400, NULL},
    {PM_ERR_UNSUPPORTED, 400, "unsupported"},
    {PM_ERR_LIMIT, 400, "context_length_exceeded"},
    {PM_ERR_MEMORY, 400, "prompt_too_large"}, /* it cannot fit into the memory for timelines */
    {PM_ERR_BUSY, 429, "queue_full"},
};

/* Takes the folder of the model out of a message; returns whether it stood at its beginning. */
static bool hide_folder(char *message, const char *folder)
{
    size_t n = strlen(folder);
    bool first = n && strncmp(message, folder, n) == 0;
    for (char *at = message; n && (at = strstr(at, folder));)
        memmove(at, at + n + strspn(at + n, "/"), strlen(at + n + strspn(at + n, "/")) + 1);
    return first;
}

/* The field that a sentence of the library's begins with is the one to blame. */
static void blame_field(pm_refusal *refusal)
{
    static const char *const fields[][2] = {
        {"messages", "messages"}, {"tools", "tools"}, {"variables", "chat_template_kwargs"}};
    char text[sizeof(refusal->message)];
    size_t n = strcspn(refusal->message, "[.: "), all = strcspn(refusal->message, " ");
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        if (n != strlen(fields[i][0]) || strncmp(refusal->message, fields[i][0], n) != 0)
            continue;
        snprintf(text, sizeof(text), "%s", refusal->message + n);
        all -= n + (all > n && text[all - n - 1] == ':');
        snprintf(refusal->param, sizeof(refusal->param), "%s%.*s", fields[i][1], (int)all, text);
        snprintf(refusal->message, sizeof(refusal->message), "%s%s", fields[i][1], text);
        return;
    }
}

void pm_refuse_status(const pm_exchange *exchange, pm_refusal *refusal, int status, const pm_error *err)
{
    pm_server *server = exchange->server;
    const pm_dialect *dialect = exchange->route->dialect;
    const char *chat = dialect ? dialect->chat : "messages";
    pm_refuse(refusal, 500, NULL, NULL, "%s", err->message);
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
        if (statuses[i].status == status) {
            refusal->status = statuses[i].http;
            refusal->code = statuses[i].code;
        }
    }
    if (refusal->status == 429)
        refusal->retry_after = 1;
    bool file = hide_folder(refusal->message, server->options.model);
    /* What comes after the place in a template may quote what was asked, which is not for the log. */
    if (file)
        pm_log_say(&server->log, "%s: %.*s", exchange->id,
                   refusal->status == 400 ? (int)strcspn(err->message, " ") : (int)strlen(err->message), err->message);
    if (refusal->status != 400)
        return;
    blame_field(refusal);
    if (file && chat && status == PM_ERR_INVALID) {
        char complaint[sizeof(refusal->message)];
        snprintf(complaint, sizeof(complaint), "%s", refusal->message);
        pm_refuse(refusal, 400, "invalid_value", chat, "'%s': %.480s", chat, complaint);
    } else if (chat && strcmp(chat, "messages") != 0 && strncmp(refusal->param, "messages", 8) == 0) {
        snprintf(refusal->param, sizeof(refusal->param), "%s", chat); /* it was made into messages */
    }
}

/* ---- life ---- */

static void choice_free(pm_choice *choice)
{
    pm_parser_free(choice->parser);
    pm_str_free(&choice->text);
    pm_str_free(&choice->reasoning);
    for (size_t i = 0; i < choice->n_calls; i++) {
        free(choice->calls[i].id);
        free(choice->calls[i].name);
        pm_str_free(&choice->calls[i].arguments);
    }
    free(choice->calls);
    json_decref(choice->logprobs);
    free(choice->state);
}

/* Takes the exchange out of the list of those that are being answered, and frees everything. */
static void job_free(pm_job *job)
{
    pm_exchange *exchange = job->exchange;
    pm_job_release(job);
    if (exchange->before) {
        *exchange->before = exchange->next;
        if (exchange->next)
            exchange->next->before = exchange->before;
        exchange->before = NULL;
        exchange->next = NULL;
    }
    exchange->job = NULL;
    for (size_t i = 0; i < job->n_choices; i++)
        choice_free(&job->choices[i]);
    for (size_t i = 0; i < job->n_prompts; i++)
        pm_prompt_free(&job->prompts[i]);
    free(job->choices);
    free(job->prompts);
    free(job->tools);
    free(job->ask.bias);
    pm_str_free(&job->line);
    json_decref(job->body);
    free(job);
    pm_exchange_drop(exchange);
}

static void cancel_all(pm_job *job)
{
    for (size_t i = 0; i < job->n_choices; i++)
        if (job->choices[i].request && !job->choices[i].done)
            pm_request_cancel(job->choices[i].request);
}

void pm_job_cancel(pm_job *job)
{
    job->failed = true;
    cancel_all(job);
}

void pm_job_fail(pm_job *job, const pm_refusal *refusal)
{
    if (job->failed)
        return;
    job->failed = true;
    cancel_all(job);
    if (!job->begun) {
        pm_exchange_refuse(job->exchange, refusal);
        return;
    }
    if (job->dialect->broken)
        job->dialect->broken(job, refusal);
    pm_exchange_end(job->exchange);
}

/* ---- the stream ---- */

void pm_job_begin(pm_job *job)
{
    if (job->begun)
        return;
    job->begun = true;
    pm_exchange_begin(job->exchange, 200, "text/event-stream");
    if (job->dialect->begin)
        job->dialect->begin(job);
}

void pm_job_send(pm_job *job, const char *event, json_t *value)
{
    pm_job_begin(job);
    job->line.len = 0;
    if (event)
        pm_str_print(&job->line, "event: %s\n", event);
    pm_str_text(&job->line, "data: ");
    pm_str_json(&job->line, value);
    pm_str_text(&job->line, "\n\n");
    if (job->line.failed)
        pm_job_cancel(job);
    else
        pm_exchange_write(job->exchange, job->line.data, job->line.len);
    job->exchange->written = pm_clock();
}

void pm_job_ping(pm_job *job)
{
    const char *ping = job->dialect->ping ? job->dialect->ping : ": at work\n\n";
    pm_job_begin(job);
    pm_exchange_write(job->exchange, ping, strlen(ping));
    job->exchange->written = pm_clock();
}

/* ---- an answer takes shape ---- */

/* An id for a call: nine letters and digits, which the templates of all models take. */
static bool make_id(char out[10])
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t number;
    if (getentropy(&number, sizeof(number)) != 0)
        return false;
    for (int i = 0; i < 9; i++, number /= sizeof(digits) - 1)
        out[i] = digits[number % (sizeof(digits) - 1)];
    out[9] = '\0';
    return true;
}

/* Room for another call, begun with its name and id. */
static pm_call *new_call(pm_choice *choice, const pm_event *event)
{
    if (choice->n_calls == choice->calls_cap) {
        size_t cap = choice->calls_cap * 2 + 4;
        pm_call *calls = realloc(choice->calls, cap * sizeof(*calls));
        if (!calls)
            return NULL;
        choice->calls = calls;
        choice->calls_cap = cap;
    }
    pm_call *call = &choice->calls[choice->n_calls];
    char made[10];
    if (!event->id && !make_id(made))
        return NULL;
    *call = (pm_call){.name = strndup(event->text, event->len),
                      .id = event->id ? strndup(event->id, event->id_len) : strdup(made)};
    if (!call->name || !call->id) {
        free(call->name);
        free(call->id);
        return NULL;
    }
    choice->n_calls++;
    return call;
}

/* Adds a piece to what the choice has; false without memory. */
static bool gather(pm_choice *choice, const pm_event *event)
{
    switch (event->kind) {
    case PM_EVENT_TEXT: pm_str_add(&choice->text, event->text, event->len); return !choice->text.failed;
    case PM_EVENT_REASONING: pm_str_add(&choice->reasoning, event->text, event->len); return !choice->reasoning.failed;
    case PM_EVENT_CALL: return new_call(choice, event) != NULL;
    case PM_EVENT_ARGUMENTS: {
        pm_str *arguments = &choice->calls[choice->n_calls - 1].arguments;
        pm_str_add(arguments, event->text, event->len);
        return !arguments->failed;
    }
    case PM_EVENT_CALL_END: return true;
    }
    return true;
}

/* Tokens belong to what their text turned out to be. */
static void place_tokens(pm_choice *choice)
{
    if (choice->thinking)
        choice->thoughts += choice->unplaced;
    choice->unplaced = 0;
}

static void on_event(void *user, const pm_event *event)
{
    pm_choice *choice = user;
    pm_job *job = choice->job;
    pm_refusal refusal;
    if (job->failed || choice->called)
        return;
    choice->thinking = event->kind == PM_EVENT_REASONING;
    place_tokens(choice);
    if (!gather(choice, event)) {
        pm_refuse(&refusal, 500, NULL, NULL, "out of memory");
        pm_job_fail(job, &refusal);
        return;
    }
    if ((job->ask.stream || job->dialect->always) && job->dialect->piece)
        job->dialect->piece(choice, event);
    if (event->kind == PM_EVENT_CALL_END && job->ask.one_call)
        choice->called = true;
}

static void on_token(void *user, pm_token id, float logprob, const pm_logprob *top)
{
    pm_choice *choice = user;
    const pm_job *job = choice->job;
    if (job->failed || choice->called || job->ask.max_tokens == 0)
        return;
    choice->tokens++;
    choice->unplaced++;
    if (!job->ask.logprobs || !job->dialect->token)
        return;
    if (!choice->logprobs)
        choice->logprobs = json_array();
    json_array_append_new(choice->logprobs, job->dialect->token(choice, id, logprob, top));
    if (job->ask.stream && json_array_size(choice->logprobs) >= LOGPROBS_HELD)
        job->dialect->piece(choice, &(pm_event){.kind = PM_EVENT_TEXT, .text = ""});
}

static int on_text(void *user, const char *text, size_t len)
{
    pm_choice *choice = user;
    pm_job *job = choice->job;
    pm_error err;
    pm_refusal refusal;
    if (job->ask.max_tokens == 0)
        return 1;
    if (!choice->parser) {
        on_event(choice, &(pm_event){.kind = PM_EVENT_TEXT, .text = text, .len = len});
    } else if (pm_parser_feed(choice->parser, text, len, &err) != PM_OK) {
        pm_refuse_status(job->exchange, &refusal, PM_ERR_IO, &err);
        pm_job_fail(job, &refusal);
    }
    return job->failed || choice->called;
}

json_t *pm_choice_take_logprobs(pm_choice *choice)
{
    json_t *entries = choice->logprobs;
    choice->logprobs = NULL;
    return entries;
}

/* ---- the end ---- */

pm_usage pm_job_usage(const pm_job *job)
{
    pm_usage usage = {0};
    for (size_t i = 0; i < job->n_choices; i++) {
        const pm_choice *choice = &job->choices[i];
        usage.answer += choice->tokens;
        usage.reasoning += choice->thoughts;
        if (i % (size_t)job->ask.n == 0) { /* the others share the prompt with it */
            usage.prompt += choice->prompt->n;
            usage.cached += choice->cost.reused;
        }
    }
    return usage;
}

/* For the log: tokens of all answers, times of the first. */
static void leave_record(pm_job *job, const pm_result *result)
{
    static const char *const names[] = {
        [PM_ENDING_STOP] = "stop", [PM_ENDING_LENGTH] = "length", [PM_ENDING_CALLS] = "tool_calls"};
    pm_usage usage = pm_job_usage(job);
    pthread_mutex_lock(&job->exchange->lock);
    job->exchange->record = (pm_record){.prompt = usage.prompt,
                                        .cached = usage.cached,
                                        .answer = usage.answer,
                                        .queue = result->queue_seconds,
                                        .prefill = result->first_token_seconds,
                                        .decode = result->decode_seconds,
                                        .finish = job->failed ? "cancelled" : names[job->choices[0].ending]};
    pthread_mutex_unlock(&job->exchange->lock);
}

/* An answer that has ended well, or that its own job has ended. */
static void settle(pm_choice *choice, const pm_result *result)
{
    pm_job *job = choice->job;
    pm_error err;
    pm_refusal refusal;
    choice->cost = result->prompt;
    choice->stop_string = result->stop;
    int (*end)(pm_parser *, pm_error *) = result->finish == PM_FINISH_LENGTH ? pm_parser_cut : pm_parser_end;
    if (choice->parser && !job->failed && end(choice->parser, &err) != PM_OK) {
        pm_refuse_status(job->exchange, &refusal, PM_ERR_IO, &err);
        pm_job_fail(job, &refusal);
    }
    place_tokens(choice);
    if (choice->called || (choice->n_calls && result->finish == PM_FINISH_STOP))
        choice->ending = PM_ENDING_CALLS;
    else if (result->finish == PM_FINISH_LENGTH || job->ask.max_tokens == 0)
        choice->ending = PM_ENDING_LENGTH;
    else if (result->finish == PM_FINISH_CANCELLED)
        pm_job_cancel(job);
    if (!job->failed && (job->ask.stream || job->dialect->always) && job->dialect->finish)
        job->dialect->finish(choice);
}

static void on_end(void *user, int status, const pm_error *err, pm_result *result)
{
    pm_choice *choice = user;
    pm_job *job = choice->job;
    pm_refusal refusal;
    choice->done = true;
    pm_worker_publish(job->server); /* before it is sent: who has the answer finds it counted */
    if (status == PM_OK) {
        settle(choice, result);
    } else {
        pm_refuse_status(job->exchange, &refusal, status, err);
        refusal.status = status == PM_ERR_MEMORY ? 500 : refusal.status;
        pm_job_fail(job, &refusal);
    }
    if (++job->n_ended == job->n_choices) {
        leave_record(job, result);
        if (!job->failed)
            job->dialect->end(job);
        pm_exchange_end(job->exchange);
        job_free(job);
    }
    pm_result_free(result);
}

/* ---- the beginning ---- */

json_t *pm_body_read(pm_exchange *exchange, pm_refusal *refusal)
{
    json_error_t error;
    json_t *body = json_loadb(exchange->body.data ? exchange->body.data : "", exchange->body.len, 0, &error);
    pm_exchange_free_body(exchange);
    if (!body)
        pm_refuse(refusal, 400, "invalid_json", NULL, "the body is not JSON: line %d, column %d: %s", error.line,
                  error.column, error.text);
    else if (!json_is_object(body))
        pm_refuse(refusal, 400, "invalid_json", NULL, "the body is not a JSON object");
    else
        return body;
    json_decref(body);
    return NULL;
}

/* A model whose chat template has no place for tools never hears of them: it cannot be made to call one, and may go on
 * without them. */
static bool check_tools(const pm_job *job, pm_refusal *refusal)
{
    if (!job->server->no_tools || json_array_size(job->ask.tools) == 0 || job->ask.tool_use == PM_TOOLS_NONE)
        return true;
    if (job->ask.tool_use == PM_TOOLS_REQUIRED)
        return pm_refuse(refusal, 400, "unsupported_parameter", "tools",
                         "'tools' cannot be called: the model's chat template has no place for them");
    pm_log_say(&job->server->log, "%s: warning: 'tools' are left out: the model's chat template has no place for them",
               job->exchange->id);
    return true;
}

/* The one prompt of a chat. */
static bool chat_prompt(pm_job *job, pm_refusal *refusal)
{
    pm_chat chat;
    pm_error err;
    if (!check_tools(job, refusal) || !pm_ask_chat(&job->ask, &chat, refusal))
        return false;
    int status = pm_chat_prompt(job->server->engine, &chat, &job->prompts[0], &err);
    if (status == PM_OK) {
        job->n_prompts = 1;
        job->tools = (char *)chat.tools;
        chat.tools = NULL;
    } else {
        pm_refuse_status(job->exchange, refusal, status, &err);
    }
    pm_ask_chat_free(&chat);
    return status == PM_OK;
}

static bool is_ids(const json_t *value)
{
    return json_is_array(value) && json_is_integer(json_array_get(value, 0));
}

/* One prompt of a completion: text or ids. */
static bool raw_prompt(const pm_job *job, const json_t *value, pm_prompt *out, pm_refusal *refusal)
{
    const pm_engine *engine = job->server->engine;
    pm_error err;
    int status;
    if (json_is_string(value)) {
        status = pm_text_prompt(engine, json_string_value(value), json_string_length(value), out, &err);
    } else {
        size_t n = json_array_size(value);
        pm_token *ids = calloc(n + 1, sizeof(*ids));
        for (size_t i = 0; ids && i < n; i++) {
            const json_t *id = json_array_get(value, i);
            json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;
            ids[i] = number < 0 || number > INT32_MAX ? -1 : (pm_token)number;
        }
        if (!ids)
            return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
        status = pm_ids_prompt(engine, ids, n, out, &err);
        free(ids);
    }
    if (status == PM_OK)
        return true;
    pm_refuse_status(job->exchange, refusal, status, &err);
    snprintf(refusal->param, sizeof(refusal->param), "prompt");
    return false;
}

/* Turns what is asked into prompts. */
static bool make_prompts(pm_job *job, pm_refusal *refusal)
{
    const json_t *prompt = job->ask.prompt;
    bool chat = job->dialect->chat != NULL, many = !chat && json_is_array(prompt) && !is_ids(prompt);
    size_t most = (size_t)(job->server->options.queue ? job->server->options.queue : PM_QUEUE);
    most = most < PM_CHOICES_MAX ? most : PM_CHOICES_MAX;
    size_t n = many ? json_array_size(prompt) : 1;
    if (!chat && (!prompt || n == 0 || (!json_is_string(prompt) && !json_is_array(prompt))))
        return pm_refuse(refusal, 400, "invalid_type", "prompt",
                         "'prompt' must be a text, a list of token ids, or a list of these");
    if (n * (size_t)job->ask.n > most)
        return pm_refuse(refusal, 400, "invalid_value", many ? "prompt" : "n",
                         "%zu answers are more than the %zu that a request may ask for", n * (size_t)job->ask.n, most);
    job->prompts = calloc(n, sizeof(*job->prompts));
    if (!job->prompts)
        return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    if (chat)
        return chat_prompt(job, refusal);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = many ? json_array_get(prompt, i) : prompt;
        if (!json_is_string(one) && !is_ids(one))
            return pm_refuse(refusal, 400, "invalid_type", "prompt",
                             "'prompt' must be a text, a list of token ids, or a list of these");
        if (!raw_prompt(job, one, &job->prompts[i], refusal))
            return false;
        job->n_prompts++;
    }
    return true;
}

/* Hands one answer's request to the scheduler. */
static bool make_choice(pm_job *job, size_t index, pm_refusal *refusal)
{
    const pm_ask *ask = &job->ask;
    pm_choice *choice = &job->choices[index];
    pm_error err;
    *choice = (pm_choice){.job = job, .index = (int)index, .prompt = &job->prompts[index / (size_t)ask->n]};
    choice->stop_string = -1;
    choice->thinking = choice->prompt->reasoning;
    pm_generate_options options = {
        .sampling = ask->sampling,
        .max_tokens = ask->max_tokens > 0 ? (size_t)ask->max_tokens : (size_t)(ask->max_tokens == 0),
        .stop = ask->stop,
        .n_stop = ask->n_stop,
        .logprobs = ask->logprobs,
        .top_logprobs = ask->logprobs ? (int)ask->top_logprobs : 0,
        .ignore_eos = ask->ignore_eos,
        .markers = job->dialect->chat != NULL,
        .constraint = job->constraint,
        .on_text = on_text,
        .on_token = on_token,
        .user = choice,
    };
    options.sampling.bias = ask->bias;
    options.sampling.n_bias = ask->n_bias;
    options.sampling.seed = (uint64_t)ask->seed + index % (uint64_t)ask->n;
    if (!ask->seeded && getentropy(&options.sampling.seed, sizeof(options.sampling.seed)) != 0)
        return pm_refuse(refusal, 500, NULL, NULL, "a random seed cannot be drawn");
    pm_parser_options parser = {.tools = job->tools,
                                .no_calls = !job->tools,
                                .only_calls = ask->tool_use == PM_TOOLS_REQUIRED,
                                .reasoning = choice->prompt->reasoning,
                                .on_event = on_event,
                                .user = choice};
    int status = job->dialect->chat ? pm_parser_new(&choice->parser, job->server->engine, &parser, &err) : PM_OK;
    if (status == PM_OK)
        status = pm_request_new(&choice->request, job->server->scheduler, choice->prompt, &options, on_end, &err);
    if (status == PM_OK)
        return true;
    choice_free(choice);
    pm_refuse_status(job->exchange, refusal, status, &err);
    if (strncmp(err.message, "the logit bias", 14) == 0)
        snprintf(refusal->param, sizeof(refusal->param), "logit_bias");
    return false;
}

/* Makes the requests of a job. Where one is refused those before it are cancelled, and their end frees the job. */
static bool make_choices(pm_job *job, pm_refusal *refusal)
{
    size_t n = job->n_prompts * (size_t)job->ask.n;
    job->choices = calloc(n, sizeof(*job->choices));
    if (!job->choices)
        return pm_refuse(refusal, 500, NULL, NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        if (!make_choice(job, i, refusal))
            return false;
        job->n_choices++;
    }
    return true;
}

static bool read_ask(pm_job *job, pm_refusal *refusal)
{
    pm_ask *ask = &job->ask;
    job->body = pm_body_read(job->exchange, refusal);
    if (!job->body)
        return false;
    ask->max_tokens = -1;
    ask->n = 1;
    pm_engine_sampling(job->server->engine, &ask->sampling);
    return pm_fields_read(job->dialect->fields, job->body, NULL, ask, refusal) &&
           pm_ask_check_model(job->server, ask->model, refusal) && job->dialect->read(job, refusal) &&
           pm_ask_choose_tools(job, refusal);
}

/* Frees what has become the prompt, and what means nothing: as JSON it takes many times what the client sent. */
static void forget_read(pm_job *job)
{
    static const char *const read[] = {"messages",   "chat_messages",       "input", "prompt", "system",
                                       "logit_bias", "chat_template_kwargs"};
    for (size_t i = 0; i < sizeof(read) / sizeof(*read); i++)
        json_object_del(job->body, read[i]);
    for (const pm_field *field = job->dialect->fields; field->kind != PM_FIELD_END; field++)
        if (field->kind == PM_FIELD_VOID && !job->dialect->echoes)
            json_object_del(job->body, field->name);
    job->ask.messages = job->ask.prompt = job->ask.system = job->ask.variables = NULL;
}

/* Puts the exchange among those that are being answered. */
static void enlist(pm_job *job)
{
    pm_exchange *exchange = job->exchange;
    pm_server *server = job->server;
    exchange->job = job;
    exchange->next = server->answering;
    exchange->before = &server->answering;
    if (exchange->next)
        exchange->next->before = &exchange->next;
    server->answering = exchange;
}

void pm_job_read(pm_exchange *exchange)
{
    pm_refusal refusal = {0};
    pm_job *job = calloc(1, sizeof(*job));
    if (!job) {
        pm_refuse(&refusal, 500, NULL, NULL, "out of memory");
        pm_exchange_refuse(exchange, &refusal);
        return;
    }
    pm_exchange_hold(exchange);
    *job = (pm_job){.exchange = exchange,
                    .server = exchange->server,
                    .dialect = exchange->route->dialect,
                    .created = (int64_t)time(NULL)};
    snprintf(job->id, sizeof(job->id), "%s%s", job->dialect->prefix, exchange->id);
    if (read_ask(job, &refusal) && make_prompts(job, &refusal))
        exchange->job = job;
    else
        pm_job_drop(job, &refusal);
}

void pm_job_drop(pm_job *job, const pm_refusal *refusal)
{
    if (refusal)
        pm_exchange_refuse(job->exchange, refusal);
    job_free(job);
}

void pm_job_start(pm_job *job)
{
    pm_refusal refusal = {0};
    if (pm_job_constrain(job, &refusal) && make_choices(job, &refusal))
        forget_read(job);
    else
        pm_job_fail(job, &refusal);
    if (job->n_choices)
        enlist(job);
    else
        job_free(job);
}

/* ---- tokens ---- */

double pm_finite(double logprob)
{
    return isfinite(logprob) ? logprob : -9999.0;
}

json_t *pm_token_byte_list(const pm_server *server, pm_token id)
{
    char *bytes;
    size_t len;
    if (pm_token_bytes(server->engine, id, &bytes, &len, NULL) != PM_OK)
        return json_null();
    json_t *list = len ? json_array() : json_null();
    for (size_t i = 0; i < len; i++)
        json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    pm_free(bytes);
    return list;
}

json_t *pm_token_text(const pm_server *server, pm_token id)
{
    char *text;
    size_t len;
    if (pm_token_bytes(server->engine, id, &text, &len, NULL) == PM_OK) {
        bool whole = len > 0 && pm_utf8_valid(text, len, NULL);
        json_t *value = whole ? json_stringn(text, len) : NULL;
        pm_free(text);
        if (value)
            return value;
    }
    if (pm_decode(server->engine, &id, 1, true, &text, &len, NULL) != PM_OK)
        return json_string("");
    json_t *value = json_stringn(text, len);
    pm_free(text);
    return value;
}

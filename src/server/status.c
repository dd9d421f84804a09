/* Answers about the server. */
#include "state.h"

#include <string.h>

static const char *const stages[] = {
    [PM_LOADING] = "loading", [PM_READY] = "ok", [PM_DRAINING] = "stopping", [PM_FAILED] = "failed"};

void pm_answer_health(pm_exchange *exchange)
{
    pm_stage stage = exchange->server->stage;
    if (stage != PM_READY) {
        pthread_mutex_lock(&exchange->lock);
        exchange->retry_after = 1;
        pthread_mutex_unlock(&exchange->lock);
    }
    pm_exchange_json(exchange, stage == PM_READY ? 200 : 503, json_pack("{s:s}", "status", stages[stage]));
}

void pm_answer_version(pm_exchange *exchange)
{
    pm_exchange_json(exchange, 200, json_pack("{s:s}", "version", PM_VERSION));
}

/* A model as the list of models has it. */
static json_t *model_object(pm_server *server)
{
    pthread_mutex_lock(&server->lock);
    const pm_info *info = &server->gauges.model;
    json_t *object = json_pack("{s:s, s:s, s:I, s:s}", "id", server->name, "object", "model", "created",
                               (json_int_t)server->started, "owned_by", "polymath");
    if (info->ctx > 0)
        json_object_update_new(object,
                               json_pack("{s:i, s:s, s:s, s:I, s:I}", "max_model_len", info->ctx, "model_type",
                                         info->model_type, "formats", info->formats, "parameters",
                                         (json_int_t)info->parameters, "active_parameters", (json_int_t)info->active));
    pthread_mutex_unlock(&server->lock);
    return object;
}

/* The same as Anthropic has it; when it was made is not known. */
static json_t *anthropic_object(pm_server *server)
{
    pthread_mutex_lock(&server->lock);
    int ctx = server->gauges.model.ctx;
    pthread_mutex_unlock(&server->lock);
    json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:s}", "type", "model", "id", server->name, "display_name",
                               server->name, "created_at", "1970-01-01T00:00:00Z", "lifecycle", "active");
    if (ctx > 0)
        json_object_update_new(object, json_pack("{s:i, s:i}", "max_input_tokens", ctx, "max_tokens", ctx));
    return object;
}

void pm_answer_models(pm_exchange *exchange)
{
    pm_server *server = exchange->server;
    pm_exchange_json(exchange, 200,
                     exchange->anthropic ? json_pack("{s:[o], s:b, s:s, s:s}", "data", anthropic_object(server),
                                                     "has_more", 0, "first_id", server->name, "last_id", server->name)
                                         : json_pack("{s:s, s:[o]}", "object", "list", "data", model_object(server)));
}

void pm_answer_model(pm_exchange *exchange)
{
    pm_refusal refusal;
    if (strcmp(exchange->rest, exchange->server->name) == 0) {
        pm_exchange_json(exchange, 200,
                         exchange->anthropic ? anthropic_object(exchange->server) : model_object(exchange->server));
        return;
    }
    pm_refuse(&refusal, 404, "model_not_found", "model", "there is no model '%.128s' here, only '%.128s'",
              exchange->rest, exchange->server->name);
    pm_exchange_refuse(exchange, &refusal);
}

/* ---- metrics, in the text format of Prometheus ---- */

static void metric(pm_str *out, const char *name, const char *type, const char *help, double value)
{
    pm_str_print(out, "# HELP polymath_%s %s\n# TYPE polymath_%s %s\npolymath_%s %.17g\n", name, help, name, type, name,
                 value);
}

static void requests(pm_str *out, const pm_counters *counters)
{
    static const char *const classes[] = {"499", NULL, "2xx", "3xx", "4xx", "5xx"};
    pm_str_text(out, "# HELP polymath_requests_total requests that have ended, by status (499: the client left)\n"
                     "# TYPE polymath_requests_total counter\n");
    for (size_t i = 0; i < sizeof(classes) / sizeof(*classes); i++)
        if (classes[i])
            pm_str_print(out, "polymath_requests_total{status=\"%s\"} %llu\n", classes[i],
                         (unsigned long long)counters->requests[i]);
}

void pm_answer_metrics(pm_exchange *exchange)
{
    pm_server *server = exchange->server;
    const pm_counters *c = &server->counters;
    pthread_mutex_lock(&server->lock);
    pm_scheduler_info s = server->gauges.scheduler;
    pthread_mutex_unlock(&server->lock);
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"answers_total", "counter", "requests that the model answered", (double)c->answered},
        {"prompt_tokens_total", "counter", "tokens of prompts", (double)c->prompt},
        {"cached_tokens_total", "counter", "of these, found in the cache", (double)c->cached},
        {"answer_tokens_total", "counter", "tokens of answers", (double)c->answer},
        {"queue_seconds_total", "counter", "time that requests waited for their turn", c->queue},
        {"prefill_seconds_total", "counter", "time from a request's turn to its first token", c->prefill},
        {"decode_seconds_total", "counter", "time from the first token of requests to their last", c->decode},
        {"request_seconds_total", "counter", "time from requests to the end of their answers", c->total},
        {"computed_tokens_total", "counter", "tokens of prompts that went through the model", (double)s.computed},
        {"sampled_tokens_total", "counter", "tokens that were sampled", (double)s.sampled},
        {"evicted_total", "counter", "kept timelines dropped for want of memory", (double)s.evicted},
        {"put_back_total", "counter", "answers interrupted for want of memory", (double)s.put_back},
        {"live", "gauge", "answers in the making", s.live},
        {"waiting", "gauge", "answers that wait for their turn", s.waiting},
        {"kept", "gauge", "timelines kept for later prompts", s.kept},
        {"cache_bytes", "gauge", "memory of all timelines", (double)s.held_bytes},
        {"cache_limit_bytes", "gauge", "its bound", (double)s.cache_bytes},
        {"stored", "gauge", "timelines of this model on disk", s.stored},
        {"disk_bytes", "gauge", "all timelines on disk", (double)s.stored_bytes},
        {"disk_limit_bytes", "gauge", "their bound", (double)s.disk_bytes},
        {"fetched_total", "counter", "timelines read from the disk", (double)s.fetched},
        {"disk_ignored_total", "counter", "files there that are damaged or not of this model", (double)s.disk_ignored},
        {"disk_failed_total", "counter", "timelines that could not be written", (double)s.disk_failed},
        {"log_lines_lost_total", "counter", "lines of the log that could not be written",
         (double)pm_log_lost(&server->log)},
        {"open_requests", "gauge", "requests that have come and not been answered", (double)server->open},
    };
    pm_str out = {0};
    requests(&out, c);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        metric(&out, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
    pm_exchange_text(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}

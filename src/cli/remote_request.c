/* A request for an answer, out of the command line's options. */
#include "remote.h"

#include <stdio.h>
#include <stdlib.h>

/* Options that are fields of their own. */
static const struct field {
    pm_option option;
    const char *name;
    bool whole;
} fields[] = {
    {PM_OPT_MAX_TOKENS, "max_tokens", true},
    {PM_OPT_TEMPERATURE, "temperature", false},
    {PM_OPT_TOP_K, "top_k", true},
    {PM_OPT_TOP_P, "top_p", false},
    {PM_OPT_MIN_P, "min_p", false},
    {PM_OPT_XTC_PROBABILITY, "xtc_probability", false},
    {PM_OPT_XTC_THRESHOLD, "xtc_threshold", false},
    {PM_OPT_REPETITION, "repetition_penalty", false},
    {PM_OPT_PRESENCE, "presence_penalty", false},
    {PM_OPT_FREQUENCY, "frequency_penalty", false},
    {PM_OPT_SEED, "seed", true},
};

static bool add_fields(json_t *body, const pm_args *args)
{
    bool fine = true;
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        const pm_value *value = &args->value[fields[i].option];
        if (value->given)
            fine &= json_object_set_new(body, fields[i].name,
                                        fields[i].whole ? json_integer(value->integer) : json_real(value->number)) == 0;
    }
    return fine;
}

static bool add_lists(json_t *body, const pm_args *args)
{
    json_t *stop = json_array(), *bias = json_object();
    bool fine = stop && bias;
    for (int i = 0; fine && i < args->n_stop; i++)
        fine = json_array_append_new(stop, json_string(args->stop[i])) == 0;
    for (int i = 0; fine && i < args->n_bias; i++) {
        char id[16];
        snprintf(id, sizeof(id), "%d", (int)args->bias[i].id);
        double sum = json_number_value(json_object_get(bias, id)) + (double)args->bias[i].bias;
        fine = json_object_set_new(bias, id, json_real(sum)) == 0;
    }
    if (fine && args->n_stop)
        fine = json_object_set(body, "stop", stop) == 0;
    if (fine && args->n_bias)
        fine = json_object_set(body, "logit_bias", bias) == 0;
    json_decref(stop);
    json_decref(bias);
    return fine;
}

json_t *pm_remote_request(const pm_remote *remote, const pm_args *args, json_t *messages, const char *tools)
{
    json_t *variables = json_object();
    if (!variables || pm_variable_flags(args, variables) != PM_EXIT_OK) {
        json_decref(variables);
        return NULL;
    }
    json_t *body = json_pack("{s:s, s:O, s:b, s:{s:b}}", "model", remote->model, "messages", messages, "stream", 1,
                             "stream_options", "include_usage", 1);
    bool fine = body && add_fields(body, args) && add_lists(body, args);
    if (fine && json_object_size(variables))
        fine = json_object_set(body, "chat_template_kwargs", variables) == 0;
    if (fine && tools)
        fine = json_object_set_new(body, "tools", json_loads(tools, 0, NULL)) == 0;
    json_decref(variables);
    if (fine)
        return body;
    json_decref(body);
    pm_cli_fail("out of memory");
    return NULL;
}

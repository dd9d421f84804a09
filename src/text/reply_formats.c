/* How the families write reasoning and calls. */
#include "text/reply_parts.h"

#include <string.h>

static const pm_reasoning_format reasoning_formats[] = {
    {"<think>", "</think>"},
    {"<seed:think>", "</seed:think>"},
    {"<longcat_think>", "</longcat_think>"},
    {"[THINK]", "[/THINK]"},
};

/* The first row whose signs the template has is taken, so that those with more to tell them by come first. */
const pm_call_format pm_call_formats[] = {
    {.name = "DeepSeek V3.2",
     .sign = {"｜DSML｜", "function_calls>"},
     .open = "<｜DSML｜function_calls>",
     .close = "</｜DSML｜function_calls>",
     .call = "<｜DSML｜invoke name=\"%n\">%_%(<｜DSML｜parameter name=\"%k\" string=\"%t\">%v</｜DSML｜parameter>%_%)"
             "</｜DSML｜invoke>"},
    {.name = "DeepSeek V4",
     .sign = {"｜DSML｜", "tool_calls>"},
     .open = "<｜DSML｜tool_calls>",
     .close = "</｜DSML｜tool_calls>",
     .call = "<｜DSML｜invoke name=\"%n\">%_%(<｜DSML｜parameter name=\"%k\" string=\"%t\">%v</｜DSML｜parameter>%_%)"
             "</｜DSML｜invoke>"},
    {.name = "DeepSeek V3",
     .sign = {"<｜tool▁call▁begin｜>", "```json"},
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>",
     .call = "<｜tool▁call▁begin｜>%_function<｜tool▁sep｜>%n%_```json%_%a%_```%_<｜tool▁call▁end｜>"},
    {.name = "DeepSeek V3.1",
     .sign = {"<｜tool▁call▁begin｜>"},
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>",
     .call = "<｜tool▁call▁begin｜>%_%n%_<｜tool▁sep｜>%_%a%_<｜tool▁call▁end｜>"},
    {.name = "Kimi K2",
     .sign = {"<|tool_call_begin|>"},
     .open = "<|tool_calls_section_begin|>",
     .close = "<|tool_calls_section_end|>",
     .call = "<|tool_call_begin|>%_%i%_<|tool_call_argument_begin|>%_%a%_<|tool_call_end|>"},
    {.name = "Seed",
     .sign = {"<seed:tool_call>", "<function="},
     .call = "<seed:tool_call>%_<function=%n>%_%(<parameter=%k>%v</parameter>%_%)</function>%_</seed:tool_call>"},
    {.name = "MiniMax M2",
     .sign = {"<minimax:tool_call>", "<invoke name="},
     .open = "<minimax:tool_call>",
     .close = "</minimax:tool_call>",
     .call = "<invoke name=\"%n\">%_%(<parameter name=\"%k\">%v</parameter>%_%)</invoke>"},
    {.name = "Qwen3-Coder",
     .sign = {"<tool_call>", "<function="},
     .call = "<tool_call>%_<function=%n>%_%(<parameter=%k>%V</parameter>%_%)</function>%_</tool_call>"},
    {.name = "GLM",
     .sign = {"<tool_call>", "<arg_key>"},
     .call = "<tool_call>%_%n%_%(<arg_key>%k</arg_key>%_<arg_value>%v</arg_value>%_%)</tool_call>"},
    {.name = "Apriel", .sign = {"<tool_calls>["}, .call = "<tool_calls>%_%l%_</tool_calls>"},
    {.name = "Hermes", .sign = {"<tool_call>"}, .call = "<tool_call>%_%c%_</tool_call>"},
    {.name = "Nemotron", .sign = {"<TOOLCALL>"}, .call = "<TOOLCALL>%_%l%_</TOOLCALL>"},
    {.name = "LFM2", .sign = {"<|tool_call_start|>"}, .call = "<|tool_call_start|>%_%p%_<|tool_call_end|>"},
    /* A template that only lists tools leaves it to the messages to have the calls in their text. */
    {.name = "LFM2", .sign = {"<|tool_list_start|>"}, .call = "<|tool_call_start|>%_%p%_<|tool_call_end|>"},
    {.name = "Mistral",
     .sign = {"[TOOL_CALLS]", "[ARGS]"},
     .call = "[TOOL_CALLS]%n%([CALL_ID]%d%)[ARGS]%_%a",
     .short_ids = true},
    {.name = "Mistral Nemo", .sign = {"[TOOL_CALLS]"}, .call = "[TOOL_CALLS]%_%l", .short_ids = true},
    {.name = "Granite", .sign = {"<|tool_call|>"}, .call = "<|tool_call|>%_%l"},
    {.name = "Llama 3", .sign = {"\"parameters\": ", "ipython"}, .open = "<|python_tag|>", .call = "%c"},
};
const size_t pm_n_call_formats = PM_COUNT(pm_call_formats);

static bool contains(const char *text, size_t len, const char *part)
{
    size_t n = strlen(part);
    for (const char *end = text + len; (size_t)(end - text) >= n; text++) {
        text = memchr(text, part[0], (size_t)(end - text) - n + 1);
        if (!text)
            return false;
        if (memcmp(text, part, n) == 0)
            return true;
    }
    return false;
}

pm_reply_format pm_reply_detect(const char *source, size_t len)
{
    pm_reply_format format = {0};
    for (size_t i = 0; !format.reasoning && i < PM_COUNT(reasoning_formats); i++)
        if (contains(source, len, reasoning_formats[i].open) || contains(source, len, reasoning_formats[i].close))
            format.reasoning = &reasoning_formats[i];
    for (size_t i = 0; !format.calls && i < pm_n_call_formats; i++) {
        const pm_call_format *row = &pm_call_formats[i];
        if (contains(source, len, row->sign[0]) && (!row->sign[1] || contains(source, len, row->sign[1])))
            format.calls = row;
    }
    return format;
}

bool pm_reply_opened(pm_reply_format format, const char *prompt, const char *trust, size_t len)
{
    size_t n = format.reasoning ? strlen(format.reasoning->open) : 0;
    while (len > 0 && pm_is_space(prompt[len - 1]))
        len--;
    if (n == 0 || len < n || memcmp(prompt + len - n, format.reasoning->open, n) != 0)
        return false;
    return !memchr(trust + len - n, 0, n);
}

bool pm_reply_marker(pm_reply_format format, const char *token)
{
    const char *markers[] = {format.reasoning ? format.reasoning->open : NULL,
                             format.reasoning ? format.reasoning->close : NULL,
                             format.calls ? format.calls->open : NULL, format.calls ? format.calls->close : NULL,
                             format.calls ? format.calls->call : NULL};
    for (size_t i = 0; *token && i < PM_COUNT(markers); i++)
        if (markers[i] && strstr(markers[i], token))
            return true;
    return false;
}

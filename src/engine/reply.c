/* Parsers of a model's answers. */
#include "text/reply.h"

#include "engine/engine.h"

/* With tools the prompt was made by the template for tools. */
static pm_reply_format format(const pm_engine *engine, const pm_parser_options *options)
{
    return options->tools ? engine->reply_tools : engine->reply;
}

int pm_parser_new(pm_parser **out, const pm_engine *engine, const pm_parser_options *options, pm_error *err)
{
    return pm_reply_new(out, format(engine, options), options, err);
}

int pm_parse_message(const pm_engine *engine, const pm_parser_options *options, const char *text, size_t len,
                     char **message, pm_error *err)
{
    return pm_reply_message(format(engine, options), options, text, len, message, err);
}

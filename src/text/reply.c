/* The parser of answers: where reasoning and calls begin and end.
 *
 * It goes byte by byte, so that pieces make no difference. What may be the beginning of a marker, or is the beginning
 * of a call, is held until that is decided; and white space until it is known whether it stands beside a block. */
#include "text/reply_parts.h"

#include "files/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_HELD = 4 << 20, /* of one block of calls */
    MAX_GAP = 64 << 10, /* white space that is held at most */
    MARKERS = 4         /* that are looked for at once */
};

typedef enum mode { IN_TEXT, IN_REASONING, IN_CALL } mode;

struct pm_parser {
    pm_reply_format format;
    void (*on_event)(void *user, const pm_event *event);
    void *user;
    json_t *tools; /* NULL: none */
    bool only_calls;
    pm_call_reader reader;
    size_t n_calls; /* given out */

    mode mode;
    bool edge;        /* nothing but white space since the beginning or since a block */
    bool after_block; /* there was a block; with edge it is what stands before the white space */
    bool after_call;  /* the same of a block of calls */
    bool lead;        /* in a call: white space before its pattern may follow */
    char quote;       /* an end of reasoning that is quoted if this comes next, else 0 */
    char last[2];     /* bytes of this text, the newest last; 0 before it */
    char opener[64];  /* the first literal of a call */
    pm_buf held;      /* not decided */
    pm_buf gap;       /* white space, not decided */
    pm_buf out;       /* text or reasoning, as the mode is, for the next event */
};

/* A marker, and what it does when it is whole. */
typedef struct marker {
    const char *text;
    void (*found)(pm_parser *parser);
} marker;

/* ---- events ---- */

static void send(pm_parser *parser, pm_event event)
{
    if (parser->on_event)
        parser->on_event(parser->user, &event);
}

static void flush(pm_parser *parser)
{
    pm_event_kind kind = parser->mode == IN_REASONING ? PM_EVENT_REASONING : PM_EVENT_TEXT;
    if (parser->out.len)
        send(parser, (pm_event){.kind = kind, .text = parser->out.data, .len = parser->out.len});
    parser->out.len = 0;
}

/* Gives out the white space before other text; after a block its lines are part of the block. */
static int put_gap(pm_parser *parser)
{
    size_t from = 0;
    for (size_t i = 0; parser->edge && parser->after_block && i < parser->gap.len; i++)
        if (parser->gap.data[i] == '\n')
            from = i + 1;
    int status = parser->gap.len ? pm_buf_add(&parser->out, parser->gap.data + from, parser->gap.len - from) : PM_OK;
    parser->gap.len = 0;
    parser->edge = false;
    return status;
}

/* A byte of text or reasoning. A call without a marker may be divided from the next one by a semicolon. */
static int put(pm_parser *parser, char c)
{
    parser->last[0] = parser->last[1];
    parser->last[1] = c;
    bool bare = parser->format.calls && parser->format.calls->call[0] == '%';
    if (pm_is_space(c) || (c == ';' && bare && parser->edge && parser->after_call)) {
        int status = pm_buf_add(&parser->gap, &c, 1);
        return status == PM_OK && parser->gap.len >= MAX_GAP ? put_gap(parser) : status;
    }
    int status = parser->gap.len || parser->edge ? put_gap(parser) : PM_OK;
    return status == PM_OK ? pm_buf_add(&parser->out, &c, 1) : status;
}

/* A block begins or ends here: the white space before it is its own. */
static void border(pm_parser *parser, mode next)
{
    flush(parser);
    parser->gap.len = parser->held.len = 0;
    parser->last[0] = parser->last[1] = 0;
    parser->edge = parser->after_block = true;
    parser->after_call = false;
    parser->mode = next;
}

/* ---- markers ---- */

static void found_reasoning(pm_parser *parser)
{
    border(parser, IN_REASONING);
}

/* An end of reasoning between quotes is one that is spoken of. That the quotes close is seen at the next byte. */
static void found_reasoning_end(pm_parser *parser)
{
    char before = parser->last[0], quote = parser->last[1];
    bool opens = before == 0 || pm_is_space(before) || strchr("([{", before);
    if (quote && strchr("`\"'", quote) && opens)
        parser->quote = quote;
    else
        border(parser, IN_TEXT);
}

static void found_section(pm_parser *parser)
{
    parser->mode = IN_CALL;
    parser->lead = true;
    pm_call_begin(&parser->reader, 0);
}

static void found_call(pm_parser *parser)
{
    parser->mode = IN_CALL;
    parser->lead = false;
    pm_call_begin(&parser->reader, strlen(parser->opener));
}

static void found_section_end(pm_parser *parser)
{
    border(parser, IN_TEXT);
}

/* The markers that mean something here; returns how many. A reasoning block stands before text, and so does the end of
 * a section after its calls. */
static int markers(const pm_parser *parser, marker *out)
{
    const pm_reasoning_format *reasoning = parser->format.reasoning;
    const pm_call_format *calls = parser->format.calls;
    int n = 0;
    if (reasoning && parser->edge)
        out[n++] = (marker){reasoning->open, found_reasoning};
    if (parser->mode == IN_REASONING) {
        out[n++] = (marker){reasoning->close, found_reasoning_end};
        return n;
    }
    if (calls && calls->open)
        out[n++] = (marker){calls->open, found_section};
    if (*parser->opener)
        out[n++] = (marker){parser->opener, found_call};
    if (calls && calls->close && parser->edge && parser->after_call)
        out[n++] = (marker){calls->close, found_section_end};
    return n;
}

/* ---- calls ---- */

/* Gives out the calls of a block. */
static void send_calls(pm_parser *parser)
{
    border(parser, IN_TEXT);
    parser->after_call = true;
    for (size_t i = 0; i < parser->reader.n_calls; i++) {
        const pm_call *call = &parser->reader.calls[i];
        size_t number = parser->n_calls++;
        send(parser, (pm_event){.kind = PM_EVENT_CALL,
                                .call = number,
                                .text = call->name.data,
                                .len = call->name.len,
                                .id = call->id.data,
                                .id_len = call->id.len});
        send(parser,
             (pm_event){
                 .kind = PM_EVENT_ARGUMENTS, .call = number, .text = call->arguments.data, .len = call->arguments.len});
        send(parser, (pm_event){.kind = PM_EVENT_CALL_END, .call = number});
    }
}

/* Gives back as text the first n bytes held, and forgets the others. */
static int give_back(pm_parser *parser, size_t n)
{
    int status = PM_OK;
    parser->mode = parser->mode == IN_CALL ? IN_TEXT : parser->mode;
    for (size_t i = 0; status == PM_OK && i < n; i++)
        status = put(parser, parser->held.data[i]);
    parser->held.len = 0;
    return status;
}

static int take(pm_parser *parser, char c);

/* A byte of what may be a call. */
static int take_in_call(pm_parser *parser, char c)
{
    pm_buf *held = &parser->held;
    bool space = parser->lead && pm_is_space(c);
    pm_reading read = PM_READ_MORE;
    if (pm_buf_add(held, &c, 1) != PM_OK)
        return PM_ERR_MEMORY;
    parser->lead = space;
    for (size_t at = held->len - 1; !space && read == PM_READ_MORE && at < held->len;)
        read = pm_call_read(&parser->reader, held->data, held->len, &at);
    if (read == PM_READ_MORE && held->len >= MAX_HELD)
        read = PM_READ_FAIL;
    if (read == PM_READ_DONE)
        send_calls(parser);
    if (read != PM_READ_FAIL)
        return read == PM_READ_MEMORY ? PM_ERR_MEMORY : PM_OK;
    int status = give_back(parser, held->len - 1);
    return status == PM_OK ? take(parser, c) : status;
}

/* ---- the whole ---- */

/* A byte that may be part of a marker. Where the bytes held are no beginning of one, they are text. */
static int take_outside(pm_parser *parser, char c)
{
    pm_buf *held = &parser->held;
    marker possible[MARKERS];
    int n = markers(parser, possible);
    bool goes_on = false;
    if (pm_buf_add(held, &c, 1) != PM_OK)
        return PM_ERR_MEMORY;
    for (int i = 0; i < n; i++) {
        size_t len = strlen(possible[i].text);
        if (held->len > len || memcmp(possible[i].text, held->data, held->len) != 0)
            continue;
        if (held->len == len) {
            possible[i].found(parser);
            return PM_OK;
        }
        goes_on = true;
    }
    if (goes_on)
        return PM_OK;
    bool again = held->len > 1;
    int status = give_back(parser, again ? held->len - 1 : 1);
    return status == PM_OK && again ? take(parser, c) : status;
}

static int take(pm_parser *parser, char c)
{
    if (parser->quote) { /* behind a whole marker, which is held */
        bool closes = c == parser->quote;
        int status = PM_OK;
        parser->quote = 0;
        if (closes)
            status = give_back(parser, parser->held.len);
        else
            border(parser, IN_TEXT);
        return status == PM_OK ? take(parser, c) : status;
    }
    if (parser->mode == IN_TEXT && parser->held.len == 0 && parser->edge && c == '{' && parser->format.calls &&
        parser->format.calls->call[0] == '%')
        found_call(parser);
    return parser->mode == IN_CALL ? take_in_call(parser, c) : take_outside(parser, c);
}

int pm_reply_new(pm_parser **out, pm_reply_format format, const pm_parser_options *options, pm_error *err)
{
    json_t *tools = NULL;
    int status = options->tools ? pm_json_text("tools", options->tools, strlen(options->tools), &tools, err) : PM_OK;
    if (status == PM_OK && tools && !json_is_null(tools) && !json_is_array(tools))
        status = pm_fail(err, PM_ERR_INVALID, "tools is not a list");
    pm_parser *parser = status == PM_OK ? calloc(1, sizeof(*parser)) : NULL;
    if (status == PM_OK && !parser)
        status = pm_fail_memory(err);
    if (status != PM_OK) {
        json_decref(tools);
        return status;
    }
    parser->format = format;
    if (options->no_calls)
        parser->format.calls = NULL;
    parser->on_event = options->on_event;
    parser->user = options->user;
    parser->tools = tools;
    parser->only_calls = options->only_calls;
    parser->edge = true;
    if (parser->format.calls) {
        const char *call = format.calls->call;
        parser->reader = (pm_call_reader){.pattern = call, .tools = json_array_size(tools) ? tools : NULL};
        snprintf(parser->opener, sizeof(parser->opener), "%.*s", (int)strcspn(call, "%"), call);
    }
    if (options->reasoning && format.reasoning)
        border(parser, IN_REASONING);
    *out = parser;
    return PM_OK;
}

int pm_parser_feed(pm_parser *parser, const char *text, size_t len, pm_error *err)
{
    int status = PM_OK;
    for (size_t i = 0; status == PM_OK && i < len; i++)
        status = take(parser, text[i]);
    if (status != PM_OK)
        return pm_fail_memory(err);
    flush(parser);
    return PM_OK;
}

int pm_parser_end(pm_parser *parser, pm_error *err)
{
    if (parser->quote)
        border(parser, IN_TEXT);
    parser->quote = 0;
    int status = give_back(parser, parser->held.len);
    if (status == PM_OK && !(parser->edge && parser->after_block))
        status = put_gap(parser);
    if (status != PM_OK)
        return pm_fail_memory(err);
    flush(parser);
    return PM_OK;
}

/* Whether what is held can be nothing but the beginning of a call. Where calls have no marker it may be other JSON. */
static bool begins_call(const pm_parser *parser)
{
    const pm_buf *held = &parser->held;
    if (parser->mode == IN_REASONING || held->len == 0)
        return false;
    return parser->only_calls ||
           (parser->mode == IN_CALL ? *parser->opener || held->data[0] != '{' : parser->edge && parser->after_call);
}

int pm_parser_cut(pm_parser *parser, pm_error *err)
{
    pm_reading read = PM_READ_FAIL;
    bool begins = begins_call(parser);
    if (parser->mode == IN_CALL)
        read = pm_call_cut(&parser->reader, parser->held.data);
    if (read == PM_READ_MEMORY)
        return pm_fail_memory(err);
    if (read == PM_READ_DONE)
        send_calls(parser);
    else if (begins)
        border(parser, IN_TEXT);
    return pm_parser_end(parser, err);
}

void pm_parser_free(pm_parser *parser)
{
    if (!parser)
        return;
    pm_call_reader_free(&parser->reader);
    json_decref(parser->tools);
    pm_buf_free(&parser->held);
    pm_buf_free(&parser->gap);
    pm_buf_free(&parser->out);
    free(parser);
}

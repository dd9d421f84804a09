/* Text with markers in it, and text up to one. */
#include "text/grammar.h"

#include <stdlib.h>
#include <string.h>

/* The longest marker at the start of a text; 0: none. */
static size_t marker_at(const pm_marker_texts *markers, const char *text, size_t len)
{
    size_t longest = 0;
    for (size_t i = 0; i < markers->n; i++) {
        size_t n = strlen(markers->texts[i]);
        if (n > longest && n <= len && memcmp(markers->texts[i], text, n) == 0)
            longest = n;
    }
    return longest;
}

/* Appends a text as tokens spell it. */
static int mark(const pm_marker_texts *markers, const char *text, size_t len, pm_buf *out)
{
    const char open = (char)PM_MARKER_OPEN, close = (char)PM_MARKER_CLOSE;
    int status = pm_buf_reserve(out, len);
    for (size_t i = 0; i < len && status == PM_OK;) {
        size_t n = marker_at(markers, text + i, len - i);
        if (n && (status = pm_buf_add(out, &open, 1)) != PM_OK)
            break;
        status = pm_buf_add(out, text + i, n ? n : 1);
        if (n && status == PM_OK)
            status = pm_buf_add(out, &close, 1);
        i += n ? n : 1;
    }
    return status;
}

int32_t pm_node_marked(pm_grammar *grammar, const pm_marker_texts *markers, const char *text, size_t len, int32_t next)
{
    pm_buf marked = {0};
    if (mark(markers, text, len, &marked) != PM_OK)
        grammar->status = PM_ERR_MEMORY;
    else
        next = pm_node_text(grammar, marked.data, marked.len, next);
    pm_buf_free(&marked);
    return next;
}

/* How much of `end` stands at the end of a text that had `matched` bytes of it and goes on with this one. */
static size_t matched_after(const pm_buf *end, size_t matched, char byte)
{
    for (size_t n = matched + 1; n > 0; n--) {
        bool same = end->data[n - 1] == byte;
        if (same && memcmp(end->data, end->data + matched + 1 - n, n - 1) == 0)
            return n;
    }
    return 0;
}

/* Whether a text may go on otherwise than `end` where its first n bytes stand: not inside of a character or a marker.
 */
static bool may_differ(const pm_buf *end, size_t n)
{
    size_t opened = 0;
    for (size_t i = 0; i < n; i++) {
        opened += (uint8_t)end->data[i] == PM_MARKER_OPEN;
        opened -= (uint8_t)end->data[i] == PM_MARKER_CLOSE;
    }
    return !opened && ((uint8_t)end->data[n] & 0xC0) != 0x80;
}

/* Nodes first.. are those where 0, 1, ... bytes of `end` stand at the end of the text (Knuth, Morris and Pratt 1977).
 * `token` is where the token leads that the whole end is; 0: it is none. */
static void add_matches(pm_grammar *grammar, const pm_buf *end, int32_t first, int32_t token, int32_t next)
{
    int32_t other = pm_node_bytes(grammar);
    pm_edge_add(grammar, other, '\t', '\n', first);
    pm_edge_add(grammar, other, '\r', '\r', first);
    pm_edge_add(grammar, other, ' ', 0x7F, first);
    pm_edges_utf8(grammar, other, first);
    for (size_t k = 0; k < end->len && grammar->status == PM_OK; k++) {
        int32_t node = first + (int32_t)k;
        uint8_t byte = (uint8_t)end->data[k];
        int32_t to = k + 1 < end->len ? node + 1 : token ? -1 : next;
        if (to > 0)
            pm_edge_add(grammar, node, byte, byte, to);
        if (!may_differ(end, k))
            continue;
        for (size_t i = 0; i < end->len; i++) {
            size_t n = matched_after(end, k, end->data[i]);
            uint8_t c = (uint8_t)end->data[i];
            if (n && c != byte && pm_edge_find(grammar, node, c) < 0)
                pm_edge_add(grammar, node, c, c, first + (int32_t)n);
        }
        pm_edges_others(grammar, node, other, to < 0 ? byte : -1);
        if (token)
            pm_edge_add(grammar, node, PM_MARKER_OPEN, PM_MARKER_OPEN, token);
    }
}

int32_t pm_node_until(pm_grammar *grammar, const pm_marker_texts *markers, const char *end, int32_t next)
{
    size_t len = strlen(end);
    bool is_token = marker_at(markers, end, len) == len;
    pm_buf marked = {0};
    int32_t token = 0, first = 0;
    int status = mark(markers, end, len, &marked);
    if (status == PM_OK && is_token) {
        token = pm_node_text(grammar, marked.data + 1, marked.len - 1, next);
        marked.len = 0;
        status = pm_buf_add(&marked, end, len);
    }
    if (status != PM_OK) {
        grammar->status = PM_ERR_MEMORY;
    } else {
        first = pm_node_bytes(grammar);
        for (size_t k = 1; k < marked.len; k++)
            pm_node_bytes(grammar);
        add_matches(grammar, &marked, first, token, next);
    }
    pm_buf_free(&marked);
    return grammar->status == PM_OK ? first : 0;
}

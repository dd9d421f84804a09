/* The tokeniser for pytest.
 *
 *     drive_tokenize DIR encode FLAGS < texts    FLAGS: c control tokens, p post-processor, t trust masks, - none
 *     drive_tokenize DIR decode FLAGS < ids      FLAGS: s special tokens are written, - none
 *
 * A text is its length (32 bits, little-endian) and its bytes, then with t as many bytes of mask; its answer is one
 * line of ids. Ids are one line a text, pushed into the detokeniser one by one; the answer is length and bytes. An
 * answer that is an error is the line or text "error: MESSAGE". On stderr it says what processor time loading and
 * encoding took. */
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Milliseconds of processor time so far. */
static double spent(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Reads n bytes; NULL at the end of the input. The caller frees. */
static char *read_bytes(size_t n)
{
    char *data = malloc(n + 1);
    if (data && fread(data, 1, n, stdin) != n) {
        free(data);
        return NULL;
    }
    return data;
}

static int encode_all(const pm_tokenizer *tokenizer, const char *flags)
{
    bool masks = strchr(flags, 't') != NULL;
    unsigned char header[4];
    double took = 0;
    while (fread(header, 1, 4, stdin) == 4) {
        size_t len = header[0] | header[1] << 8 | header[2] << 16 | (size_t)header[3] << 24, n;
        char *text = read_bytes(len), *mask = masks ? read_bytes(len) : NULL;
        if (!text || (masks && !mask))
            return 1;
        pm_encode_options options = {strchr(flags, 'c') != NULL, (const uint8_t *)mask, strchr(flags, 'p') != NULL};
        pm_token *ids;
        pm_error err;
        double start = spent();
        int status = pm_tokenizer_encode(tokenizer, text, len, &options, &ids, &n, &err);
        took += spent() - start;
        if (status == PM_OK) {
            for (size_t i = 0; i < n; i++)
                printf("%s%d", i ? " " : "", (int)ids[i]);
            free(ids);
        } else {
            printf("error: %s", err.message);
        }
        printf("\n");
        free(text);
        free(mask);
    }
    fprintf(stderr, "encoded in %.2f ms\n", took);
    return 0;
}

static void write_answer(const char *text, size_t len)
{
    unsigned char header[4] = {len & 255, len >> 8 & 255, len >> 16 & 255, len >> 24 & 255};
    fwrite(header, 1, 4, stdout);
    fwrite(text, 1, len, stdout);
}

static int decode_all(const pm_tokenizer *tokenizer, const char *flags)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    while ((len = getline(&line, &cap, stdin)) >= 0) {
        pm_buf text = {0};
        pm_error err;
        pm_detok detok;
        int status = pm_detok_init(&detok, tokenizer, strchr(flags, 's') != NULL, &err);
        char *p = line, *end;
        for (long id = strtol(p, &end, 10); end != p && status == PM_OK; id = strtol(p = end, &end, 10))
            status = pm_detok_push(&detok, (pm_token)id, &text, &err);
        if (status == PM_OK)
            status = pm_detok_finish(&detok, &text, &err);
        pm_detok_free(&detok);
        if (status != PM_OK) {
            text.len = 0;
            pm_buf_printf(&text, "error: %s", err.message);
        }
        write_answer(text.data ? text.data : "", text.len);
        pm_buf_free(&text);
    }
    free(line);
    return 0;
}

int main(int argc, char **argv)
{
    pm_tokenizer *tokenizer;
    pm_error err;
    if (argc != 4) {
        fprintf(stderr, "usage: drive_tokenize DIR encode|decode FLAGS\n");
        return 2;
    }
    double start = spent();
    if (pm_tokenizer_open(&tokenizer, argv[1], &err) != PM_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    fprintf(stderr, "loaded in %.1f ms\n", spent() - start);
    int rc = strcmp(argv[2], "decode") == 0 ? decode_all(tokenizer, argv[3]) : encode_all(tokenizer, argv[3]);
    pm_tokenizer_close(tokenizer);
    return rc;
}

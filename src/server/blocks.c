#include "blocks.h"

#include <stdlib.h>

/* The state of a choice: one piece of memory, as it is freed by free(). */
typedef struct blocks {
    size_t n, cap;
    bool open; /* the last one goes on */
    pm_block block[];
} blocks;

static const pm_block_kind kinds[] = {
    [PM_EVENT_TEXT] = PM_BLOCK_TEXT,      [PM_EVENT_REASONING] = PM_BLOCK_REASONING, [PM_EVENT_CALL] = PM_BLOCK_CALL,
    [PM_EVENT_ARGUMENTS] = PM_BLOCK_CALL, [PM_EVENT_CALL_END] = PM_BLOCK_CALL,
};

static void close_last(pm_choice *choice, const pm_block_form *form)
{
    blocks *list = choice->state;
    if (!list || !list->open)
        return;
    list->open = false;
    if (choice->job->ask.stream)
        form->close(choice, list->n - 1);
}

/* Begins a block, before whose text the choice has `begin` bytes; false without memory, which ends the job. */
static bool open_block(pm_choice *choice, pm_block_kind kind, size_t begin, const pm_block_form *form)
{
    blocks *list = choice->state;
    pm_refusal refusal;
    close_last(choice, form);
    if (!list || list->n == list->cap) {
        size_t cap = list ? 2 * list->cap : 4;
        blocks *longer = realloc(list, sizeof(*list) + cap * sizeof(*list->block));
        if (!longer) {
            pm_refuse(&refusal, 500, NULL, NULL, "out of memory");
            pm_job_fail(choice->job, &refusal);
            return false;
        }
        longer->n = list ? longer->n : 0;
        longer->cap = cap;
        choice->state = list = longer;
    }
    list->block[list->n++] =
        (pm_block){.kind = kind, .begin = begin, .call = choice->n_calls ? choice->n_calls - 1 : 0};
    list->open = true;
    if (choice->job->ask.stream)
        form->open(choice, list->n - 1);
    return true;
}

void pm_blocks_piece(pm_choice *choice, const pm_event *event, const pm_block_form *form)
{
    blocks *list = choice->state;
    pm_block_kind kind = kinds[event->kind];
    if (event->kind == PM_EVENT_CALL_END) {
        close_last(choice, form);
        return;
    }
    bool goes_on = list && list->open && list->block[list->n - 1].kind == kind && event->kind != PM_EVENT_CALL;
    size_t all = kind == PM_BLOCK_REASONING ? choice->reasoning.len : choice->text.len;
    if (!goes_on && !open_block(choice, kind, kind == PM_BLOCK_CALL ? 0 : all - event->len, form))
        return;
    if (event->kind == PM_EVENT_CALL)
        return;
    list = choice->state;
    list->block[list->n - 1].len += event->len;
    if (choice->job->ask.stream && event->len)
        form->delta(choice, list->n - 1, event->text, event->len);
}

void pm_blocks_finish(pm_choice *choice, const pm_block_form *form)
{
    if (!choice->state && !open_block(choice, PM_BLOCK_TEXT, 0, form))
        return;
    close_last(choice, form);
}

size_t pm_blocks_count(const pm_choice *choice)
{
    const blocks *list = choice->state;
    return list ? list->n : 0;
}

const pm_block *pm_block_at(const pm_choice *choice, size_t index, const char **text, size_t *len)
{
    const pm_block *block = &((const blocks *)choice->state)->block[index];
    const pm_str *from = block->kind == PM_BLOCK_CALL        ? &choice->calls[block->call].arguments
                         : block->kind == PM_BLOCK_REASONING ? &choice->reasoning
                                                             : &choice->text;
    *text = from->data ? from->data + block->begin : "";
    *len = block->len;
    return block;
}

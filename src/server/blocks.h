/* An answer as blocks, in the order in which they began: text, reasoning, calls. For protocols whose answers are lists
 * of these (responses.c, messages.c). */
#ifndef PM_BLOCKS_H
#define PM_BLOCKS_H

#include "job.h"

typedef enum pm_block_kind { PM_BLOCK_TEXT, PM_BLOCK_REASONING, PM_BLOCK_CALL } pm_block_kind;

typedef struct pm_block {
    pm_block_kind kind;
    size_t begin, len; /* in the choice's text or reasoning */
    size_t call;       /* of a call: which one */
} pm_block;

/* How a protocol streams a block: its beginning, a piece of its text or arguments, its end. */
typedef struct pm_block_form {
    void (*open)(pm_choice *choice, size_t index);
    void (*delta)(pm_choice *choice, size_t index, const char *text, size_t len);
    void (*close)(pm_choice *choice, size_t index);
} pm_block_form;

/* Adds an event to the blocks (pm_dialect.piece), and with ask.stream streams it. */
void pm_blocks_piece(pm_choice *choice, const pm_event *event, const pm_block_form *form);

/* Ends the last block; an answer with none becomes an empty text. */
void pm_blocks_finish(pm_choice *choice, const pm_block_form *form);

/* How many there are, and one of them with its text or arguments. */
size_t pm_blocks_count(const pm_choice *choice);
const pm_block *pm_block_at(const pm_choice *choice, size_t index, const char **text, size_t *len);

#endif

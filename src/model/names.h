/* Names of tensors: from a checkpoint's to the canonical ones, and back for messages. Private to the loader. */
#ifndef PM_NAMES_H
#define PM_NAMES_H

#include "model/weights.h"

enum { PM_NAME_MAX = 512 };

bool pm_name_ends(const char *name, const char *tail);

/* `name` with the tail `tail` replaced; false when it has another, or does not fit. */
bool pm_name_with_tail(const char *name, const char *tail, const char *with, char out[PM_NAME_MAX]);

/* `name` with the beginning that `from` describes (pm_rename) replaced by `to`; false when it does not begin so, or
 * does not fit. */
bool pm_name_respell(const char *from, const char *to, const char *name, char out[PM_NAME_MAX]);

/* The canonical name of a stored one, which is no longer than half of PM_NAME_MAX; *dropped when a rule says so. */
void pm_name_canonical(const pm_layout *layout, const char *stored, char out[PM_NAME_MAX], bool *dropped);

/* What the checkpoint would call the tensor of that canonical name, which it lacks: of all spellings that the layout
 * knows the one that is most like what is there. `matrix`: the name is a module's. */
void pm_name_stored(const pm_layout *layout, const pm_checkpoint *checkpoint, const char *name, bool matrix,
                    char out[PM_NAME_MAX]);

#endif

/* A model: a checkpoint's weights under their names, on a backend, and the step of its family. */
#ifndef PM_MODEL_H
#define PM_MODEL_H

#include "backend/backend.h"
#include "files/checkpoint.h"
#include "files/config.h"

typedef struct pm_model pm_model;

/* Loads strictly: the gate first, then every tensor. `step_tokens` is the most tokens of a pm_batch. The checkpoint
 * stays mapped (and owned by the caller) until pm_model_close; so do config and backend. */
int pm_model_open(pm_model **out, const pm_checkpoint *checkpoint, const pm_config *config, pm_backend *backend,
                  int step_tokens, void (*progress)(void *user, double fraction), void *user, pm_error *err);
void pm_model_close(pm_model *model);

int pm_model_vocab(const pm_model *model);   /* width of the logits */
int pm_model_context(const pm_model *model); /* max_position_embeddings */
const pm_cache_spec *pm_model_cache(const pm_model *model);

/* Fills family, formats, layers, vocab, parameters, active and weight_bytes. */
void pm_model_info(const pm_model *model, pm_info *info);

/* Computes the batch (at most step_tokens tokens): appends to the rows and advances the states of its segments, and
 * writes the logits of batch->outputs, [n_outputs, vocab] f32. After a failure the rows and states of the segments are
 * unspecified. */
int pm_model_step(pm_model *model, const pm_batch *batch, float *logits, pm_error *err);

/* Hands every tensor that the config's family expects to `plan` (model/weights.h), in order of use; no checkpoint is
 * needed. */
struct pm_planned;
int pm_model_plan(const pm_config *config, int (*plan)(void *user, const struct pm_planned *planned, pm_error *err),
                  void *user, pm_error *err);

/* ---- the support gate ---- */

/* PM_OK when this build runs the config; otherwise PM_ERR_UNSUPPORTED or PM_ERR_FORMAT naming the family as the config
 * spells it and the field. `family` (may be NULL) receives the family's name or NULL. */
int pm_family_check(const pm_config *config, const char **family, pm_error *err);

/* The i-th supported family and the model_types it answers to, for lists and the README's table; false past the end. */
bool pm_family_at(size_t i, const char **name, const char **model_types, const char **checkpoints);

#endif

#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void admit(pm_model *model, const pm_admission *admission, const pm_config *config)
{
    model->family = admission->family;
    model->model_type = admission->model_type;
    model->layers = admission->layers;
    model->more_layers = admission->more_layers;
    model->config = config;
}

int pm_model_open(pm_model **out, const pm_checkpoint *checkpoint, const pm_config *config, pm_backend *backend,
                  int step_tokens, void (*progress)(void *user, double fraction), void *user, pm_error *err)
{
    pm_admission admission;
    int status = pm_family_admit(config, &admission, err);
    if (status != PM_OK)
        return status;
    pm_model *model = calloc(1, sizeof(*model));
    if (!model)
        return pm_fail_memory(err);
    admit(model, &admission, config);
    model->backend = backend;
    model->progress = progress;
    model->user = user;
    model->weight_bytes = pm_checkpoint_bytes(checkpoint);
    model->loader = (pm_loader){.checkpoint = checkpoint, .config = config, .backend = backend, .arena = &model->arena};
    status = model->family->load(model, step_tokens, err);
    pm_loader_close(&model->loader);
    if (status != PM_OK) {
        pm_model_close(model);
        return status;
    }
    *out = model;
    return PM_OK;
}

int pm_model_plan(const pm_config *config, pm_plan_fn *plan, void *user, pm_error *err)
{
    pm_admission admission;
    int status = pm_family_admit(config, &admission, err);
    if (status != PM_OK)
        return status;
    pm_model model = {0};
    admit(&model, &admission, config);
    model.loader = (pm_loader){.config = config, .arena = &model.arena, .plan = plan, .plan_user = user};
    status = model.family->load(&model, 0, err);
    pm_arena_free(&model.arena);
    return status;
}

void pm_model_close(pm_model *model)
{
    if (!model)
        return;
    for (size_t i = 0; i < model->loader.n_tensors; i++)
        model->backend->ops->tensor_free(model->backend, model->loader.tensors[i]);
    free(model->loader.tensors);
    if (model->chosen)
        model->backend->ops->indices_free(model->backend, model->chosen);
    pm_arena_free(&model->arena);
    free(model);
}

static bool same_bytes(const void *a, const void *b, size_t n)
{
    return a && b ? memcmp(a, b, n) == 0 : !a && !b;
}

static bool same_matrix(const pm_weight *a, const pm_weight *b)
{
    const size_t rows = (size_t)a->out;
    return a->format == b->format && a->bits == b->bits && a->group == b->group && a->scale_type == b->scale_type &&
           same_bytes(a->data, b->data, rows * pm_weight_row_bytes(a)) &&
           (a->format == PM_FORMAT_FP8 || same_bytes(a->scales, b->scales, rows * pm_weight_scale_bytes(a)));
}

int pm_model_head(pm_model *model, const pm_weight *embedding, bool tied, pm_weight *head, pm_error *err)
{
    if (!head->data && !tied)
        return pm_fail(err, PM_ERR_FORMAT, "%s: tensor lm_head.weight is missing, and tie_word_embeddings is not true",
                       model->config->path);
    if (!head->data) {
        *head = *embedding;
        return PM_OK;
    }
    model->own_head = tied && !same_matrix(head, embedding);
    model->loader.active -= (int64_t)(embedding->out - 1) * embedding->in; /* of the embedding one row is read */
    return PM_OK;
}

int pm_model_vocab(const pm_model *model)
{
    return model->vocab;
}

int pm_model_context(const pm_model *model)
{
    return model->context;
}

const pm_cache_spec *pm_model_cache(const pm_model *model)
{
    return &model->cache;
}

void pm_model_info(const pm_model *model, pm_info *info)
{
    snprintf(info->family, sizeof(info->family), "%s", model->family->name);
    pm_loader_formats(&model->loader, info->formats, sizeof(info->formats));
    info->layers = model->layers;
    info->vocab = model->vocab;
    info->parameters = model->loader.parameters;
    info->active = model->loader.active;
    info->weight_bytes = model->weight_bytes;
    if (model->own_head)
        snprintf(info->notes, sizeof(info->notes),
                 "tie_word_embeddings is true, but the file's lm_head differs from the embedding and is used");
}

int pm_model_step(pm_model *model, const pm_batch *batch, float *logits, pm_error *err)
{
    return model->family->step(model, batch, logits, err);
}

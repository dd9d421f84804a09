/* What a family is: one file with one pm_family, and one row in the table of gate.c. */
#ifndef PM_FAMILY_H
#define PM_FAMILY_H

#include "model/model.h"
#include "model/weights.h"

/* A config field that changes the maths and the values that the family computes: JSON scalars separated by '|', or a
 * range of whole numbers, "2..64"; after a '[' what each entry of a list may be, "[#" the numbers of layers. NULL: the
 * family reads the field itself. Absent and null are always allowed here. */
typedef struct pm_gate_rule {
    const char *field, *allowed;
} pm_gate_rule;

/* A kind of layer that the family computes: its letter in patterns (0: none), its names in lists, separated by '|', and
 * what the family makes of it. */
typedef struct pm_layer_kind {
    char letter;
    const char *names;
    unsigned kind;
} pm_layer_kind;

/* What an entry for a layer is. */
typedef enum pm_layer_form {
    PM_LAYER_NAMES,   /* a list of names */
    PM_LAYER_NUMBERS, /* a list of numbers, spelt as names in the table; those of layers that predict further tokens may
                         follow */
    PM_LAYER_LETTERS  /* a text of letters, or a list of names */
} pm_layer_form;

/* A config field with an entry for every layer. Fields with the same kinds must agree. */
typedef struct pm_layer_rule {
    const char *field;
    pm_layer_form form;
    const pm_layer_kind *kinds; /* ended by {0, NULL, 0} */
} pm_layer_rule;

typedef struct pm_family pm_family;

/* What the gate found out of a config that it let through. */
typedef struct pm_admission {
    const pm_family *family;
    const char *model_type;  /* as the config spells it */
    int layers, more_layers; /* num_hidden_layers; num_nextn_predict_layers, which predict further tokens */
} pm_admission;

struct pm_family {
    const char *name;
    const char *model_types;    /* separated by spaces */
    const char *checkpoints;    /* examples, for people */
    const pm_gate_rule *gate;   /* ended by {NULL, NULL}; before the rules common to all families */
    const pm_layer_rule *lists; /* ended by {NULL, 0, NULL}, or NULL; likewise */
    bool listed;                /* one of the lists has to be there, and num_hidden_layers need not */
    int more_layers;            /* num_nextn_predict_layers where the config does not say */
    const void *spec;           /* what load and step are told */
    /* NULL, or refuses combinations of values that the tables allow one by one. */
    int (*check)(const pm_admission *admission, const pm_config *config, pm_error *err);
    /* Reads the config (all bounds checked), loads the weights and fills model->impl, vocab, context and cache. */
    int (*load)(pm_model *model, int step_tokens, pm_error *err);
    int (*step)(pm_model *model, const pm_batch *batch, float *logits, pm_error *err);
};

enum { PM_MAX_LAYERS = 1 << 12 };

/* Widths of convolutions, those of all families. */
#define PM_CONV_WIDTHS "2..64"

struct pm_model {
    const pm_family *family;
    const char *model_type;
    const pm_config *config;
    pm_backend *backend;
    pm_arena arena;
    pm_loader loader; /* owns the tensors; the rest is closed after loading */
    uint64_t weight_bytes;
    int vocab, context, layers, more_layers;
    bool own_head; /* tied, but the file's lm_head is another matrix and is used */
    pm_cache_spec cache;
    pm_indices *chosen; /* of a model with a sparse index, or NULL */
    void (*progress)(void *user, double fraction);
    void *user;
    void *impl; /* the family's own, in the arena */
};

/* The families in the order of the table, NULL past the end. */
const pm_family *pm_family_number(size_t i);

/* The whole gate: pm_family_check with what it found out. */
int pm_family_admit(const pm_config *config, pm_admission *out, pm_error *err);

/* What the family's list `field` says of layer i of a config that the gate let through; NULL where it is absent. */
const pm_layer_kind *pm_layer_listed(const pm_family *family, const pm_config *config, const char *field, int i);

/* True when the config's list of numbers `field` has layer i. */
bool pm_layer_numbered(const pm_config *config, const char *field, int i);

/* Settles the head when all of the model's matrices are loaded: the file's where it has one (of a tied model it need
 * not be the embedding), else, in a tied model, the embedding. */
int pm_model_head(pm_model *model, const pm_weight *embedding, bool tied, pm_weight *head, pm_error *err);

/* Rotary frequencies over `dims` elements of a head from rope_theta and the scaling in rope_parameters or rope_scaling:
 * theta^(-2i / rotary), rotary = dims * partial_rotary_factor. Where the config does not say them the factor is
 * `partial` and theta is `base`, or with base 0 the 10,000 that Llama 1 and 2 leave out. inv_freq is in the arena. */
int pm_rope_read(const pm_config *config, int dims, double partial, double base, pm_arena *arena, pm_rope *out,
                 pm_error *err);

/* YaRN's mscale and mscale_all_dim as DeepSeek's own code reads them: *of_rope is what sine and cosine are multiplied
 * by (unchanged when the config has an attention_factor), *of_scores the softmax's scale; both unchanged without YaRN.
 */
int pm_rope_mscale(const pm_config *config, float *of_rope, float *of_scores, pm_error *err);

/* Where a rope that is not the only one of its model is described. */
typedef struct pm_rope_place {
    const char *objects[3]; /* that hold the fields of its scaling, the first that has one counts: "rope_scaling." */
    const char *theta;      /* the field with its base, whole */
    double base;            /* where that is not given */
    double attention; /* what YaRN's attention_factor is where it is not given; 0: what YaRN makes of the others */
} pm_rope_place;

/* The same for `rotary` elements. */
int pm_rope_read_at(const pm_config *config, const pm_rope_place *place, int rotary, pm_arena *arena, pm_rope *out,
                    pm_error *err);

extern const pm_family pm_nemotron_h, pm_deepseek_v3, pm_deepseek_v32, pm_deepseek_v4, pm_glm_moe_dsa, pm_lfm2,
    pm_lfm2_moe, pm_llama, pm_mistral, pm_qwen2, pm_qwen3, pm_qwen3_moe, pm_qwen3_next, pm_qwen3_5, pm_qwen3_5_moe;

#endif

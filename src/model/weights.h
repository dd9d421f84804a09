/* Strict loading: a family states the tensors it expects as data, and the rules that turn a file's names into its own.
 *
 * Names are canonical: "model.layers.3.self_attn.q_proj", a matrix being the module without its ".weight", ".scales",
 * ".biases". Everything in the file must be consumed by an expectation or dropped by a rule, and everything expected
 * must be there, with the right dtype and shape; otherwise the load fails and names the tensor. */
#ifndef PM_WEIGHTS_H
#define PM_WEIGHTS_H

#include "backend/backend.h"
#include "files/checkpoint.h"
#include "files/config.h"

/* A stored name that begins with `from` begins with `to` instead; NULL: the tensor is not part of the text model and is
 * dropped. A '*' stands for a number, the same in both. The first rule that matches applies, then again to what it made
 * of the name, until none does. */
typedef struct pm_rename {
    const char *from, *to;
} pm_rename;

typedef enum pm_expect_kind {
    PM_EXPECT_MATRIX,  /* [rows, cols], any format              -> pm_weight */
    PM_EXPECT_EXPERTS, /* `experts` matrices [rows, cols]       -> pm_weight *, in whichever layout the file has */
    PM_EXPECT_HEADS,   /* `heads` matrices [rows, cols]         -> pm_head_weights, in whichever layout the file has */
    PM_EXPECT_BIAS,    /* [cols] float                          -> const float * in host memory */
    PM_EXPECT_VECTOR,  /* [cols] float                          -> pm_tensor * [1, cols] */
    PM_EXPECT_IGNORED, /* [cols] float, not used                -> nothing */
    PM_EXPECT_TABLE,   /* [rows, cols] float                    -> pm_tensor * */
    PM_EXPECT_CHOICES, /* [rows, cols] integers, each the number of an expert -> pm_tensor * */
    PM_EXPECT_CONV     /* depthwise [rows, 1, cols] as PyTorch stores it, or [rows, cols, 1] as MLX does -> pm_tensor *
                          [rows, cols] */
} pm_expect_kind;

enum {
    PM_EXPECT_OPTIONAL = 1, /* may be absent: the field stays zero */
    PM_EXPECT_CENTRED = 2,  /* a norm that PyTorch checkpoints store as w - 1 (see pm_loader.centred) */
    PM_EXPECT_GATE = 4      /* the gate of an MLP: not where pm_layout.ungated */
};

/* Where the stacks of experts may come from: for the module "mlp.experts.up_proj" of this table a file has one tensor
 * per expert
 * ("mlp.experts.7.up_proj"), a stack under another name, or a part of a fused stack. */
typedef struct pm_stack {
    const char *name, *stored; /* last parts of the module: "experts.up_proj", "experts.gate_up_proj" */
    int part, parts;           /* rows part * rows .. of a stack with parts * rows rows */
} pm_stack;

/* Matrices of heads, each of which is [cols, rows] instead when they are transposed. */
typedef struct pm_head_weights {
    pm_weight *w;
    bool transposed;
} pm_head_weights;

/* Where those of the module "self_attn.embed_q" may come from when a file has no stack of that name: in the matrix of
 * another module every head has dims[of] rows, and its own begin at dims[first] of these. */
typedef struct pm_split {
    const char *name, *stored; /* last parts of the module */
    int first, of;
    bool transposed;
} pm_split;

typedef struct pm_expect {
    const char *name; /* after "model.layers.N." for tables of layers, whole otherwise */
    pm_expect_kind kind;
    int rows, cols; /* indices into the family's dims */
    size_t field;   /* offset in the struct that is filled */
    unsigned when;  /* set of layer kinds that have it; 0: all */
    unsigned flags;
} pm_expect;

/* What a family gives a loader. */
typedef struct pm_layout {
    const pm_rename *renames; /* ended by {NULL, NULL} */
    const pm_stack *stacks;   /* ended by {NULL} */
    const int *dims;
    int experts;             /* per stack */
    bool ungated;            /* MLPs and experts have no gates */
    int top_k;               /* of them, for one token */
    const pm_split *splits;  /* ended by {NULL}, or NULL */
    int heads;               /* matrices of PM_EXPECT_HEADS */
    int layers, more_layers; /* tensors of model.layers.N with layers <= N < layers + more_layers are dropped: layers
                                that predict further tokens; and of mtp.N with N < more_layers */
} pm_layout;

/* A tensor that a family expects, for whoever writes checkpoints: shape [experts, rows, cols] for a stack. */
typedef struct pm_planned {
    const char *module; /* canonical; a stack under the name of its stored form */
    pm_expect_kind kind;
    int experts, rows, cols;
    int below; /* of numbers of experts: how many there are */
} pm_planned;

typedef int pm_plan_fn(void *user, const pm_planned *planned, pm_error *err);

typedef struct pm_loader {
    const pm_checkpoint *checkpoint;
    const pm_config *config;
    pm_backend *backend;
    const pm_layout *layout;
    pm_arena *arena; /* of what is loaded */
    bool centred;    /* add 1 to centred norms */
    char **names;    /* [count] canonical; NULL: dropped */
    unsigned char *used;
    pm_map map;       /* canonical name -> index */
    pm_plan_fn *plan; /* not NULL: nothing is loaded, every expectation is handed to it */
    void *plan_user;
    pm_tensor **tensors; /* made so far; owned by the model */
    size_t n_tensors, cap_tensors;
    int64_t parameters, active;
    int formats[PM_FORMATS][9][4]; /* matrices by format, bits, group 16 or none, 32, 64, 128 */
} pm_loader;

int pm_loader_open(pm_loader *loader, const pm_layout *layout, pm_error *err);
void pm_loader_close(pm_loader *loader);

/* The canonical tensor, or NULL; it does not count as used. */
const pm_stored *pm_loader_peek(const pm_loader *loader, const char *name);

/* Fills the fields of `into` from the rows of `table` whose `when` contains `kind`. layer < 0: names are whole. */
int pm_load(pm_loader *loader, const pm_expect *table, size_t n, int layer, unsigned kind, void *into, pm_error *err);

/* Every tensor of the file was used or dropped. */
int pm_loader_finish(const pm_loader *loader, pm_error *err);

/* "affine 4-bit group 64 (210 matrices), bf16 (1 matrix)"; what has no room becomes ", ..." */
void pm_loader_formats(const pm_loader *loader, char *out, size_t size);

/* A tensor owned by the model. */
int pm_loader_tensor(pm_loader *loader, int64_t rows, int64_t cols, const float *init, pm_tensor **out, pm_error *err);

#endif

"""Writes tests/ops/routes.h: what mlx-lm and transformers route by given router logits and biases.

usage: routes.py
"""

from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.models.deepseek_v3 import group_expert_select
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HashRouter, DeepseekV4TopKRouter
from transformers.models.lfm2_moe.modeling_lfm2_moe import Lfm2MoeTopKRouter

OUT = Path(__file__).resolve().parents[2] / "tests" / "ops" / "routes.h"
TOKENS, EXPERTS = 6, 16


def case(kind, **more):
    return SimpleNamespace(
        **{"kind": kind, "top_k": 4, "normalise": True, "scale": 1.0, "groups": 1, "kept": 1, "bias": 0.0, **more}
    )


CASES = {
    "mlx-lm, one group": ("mlx", case("SIGMOID", scale=2.5)),
    "mlx-lm, one group, not divided": ("mlx", case("SIGMOID", normalise=False, bias=0.4)),
    "mlx-lm, one expert": ("mlx", case("SIGMOID", top_k=1, scale=2.5, bias=0.4)),
    "mlx-lm, one group whatever topk_group": ("mlx", case("SIGMOID", kept=0, bias=0.4)),
    "mlx-lm, groups": ("mlx", case("SIGMOID", groups=4, kept=2, scale=2.5, bias=0.4)),
    "mlx-lm, groups, negative biases": ("mlx", case("SIGMOID", groups=4, kept=2, bias=-1.0)),
    "transformers, one group": ("v3", case("SIGMOID", scale=2.5, bias=0.4)),
    "transformers, groups": ("v3", case("SIGMOID", groups=4, kept=2, scale=2.5, bias=0.4)),
    "transformers, groups, negative biases": ("v3", case("SIGMOID", groups=4, kept=2, bias=-1.0)),
    "transformers, all groups kept": ("v3", case("SIGMOID", groups=8, kept=8, bias=0.4)),
    "transformers, groups, not divided": ("v3", case("SIGMOID", groups=8, kept=3, normalise=False, bias=0.4)),
    "transformers, V4": ("v4", case("SQRT_SOFTPLUS", scale=1.5, bias=0.4)),
    "transformers, V4, by token": ("hash", case("SQRT_SOFTPLUS", scale=1.5)),
    "transformers, V4, one expert": ("v4", case("SQRT_SOFTPLUS", top_k=1, scale=1.5, bias=0.4)),
    "transformers, V4, one expert, by token": ("hash", case("SQRT_SOFTPLUS", top_k=1, scale=1.5)),
    "transformers, LFM2": ("lfm2", case("SIGMOID", scale=2.5, bias=0.4)),
    "transformers, LFM2, one expert": ("lfm2", case("SIGMOID", top_k=1, scale=2.5, bias=0.4)),
    "transformers, LFM2, one expert, not divided": ("lfm2", case("SIGMOID", top_k=1, normalise=False, bias=0.4)),
}


def route(reference, c, logits, bias, table):
    """The experts of each token, ascending, and their weights."""
    if reference == "mlx":
        ids, weights = group_expert_select(
            mx.array(logits), mx.array(bias), c.top_k, c.groups, c.kept, c.scale, c.normalise
        )
        ids, weights = np.array(ids), np.array(weights)
    else:
        config = SimpleNamespace(
            num_experts_per_tok=c.top_k, num_local_experts=EXPERTS, n_routed_experts=EXPERTS, num_experts=EXPERTS,
            hidden_size=EXPERTS, use_expert_bias=True,
            routed_scaling_factor=c.scale, n_group=c.groups, topk_group=c.kept, norm_topk_prob=c.normalise,
            scoring_func="sqrtsoftplus", vocab_size=TOKENS,
        )  # fmt: skip
        router = {
            "v3": DeepseekV3TopkRouter, "v4": DeepseekV4TopKRouter, "hash": DeepseekV4HashRouter,
            "lfm2": Lfm2MoeTopKRouter,
        }[reference](config)  # fmt: skip
        router.weight.data = torch.eye(EXPERTS)
        if reference == "hash":
            router.tid2eid = torch.tensor(table)
            _, weights, ids = router(torch.tensor(logits), torch.arange(TOKENS))
        elif reference == "lfm2":
            _, weights, ids = router(torch.tensor(logits), torch.tensor(bias))
        else:
            router.e_score_correction_bias = torch.tensor(bias)
            _, weights, ids = router(torch.tensor(logits))
        ids, weights = ids.numpy(), weights.detach().numpy()
    order = np.argsort(ids, axis=-1)
    return np.take_along_axis(ids, order, -1), np.take_along_axis(weights, order, -1)


def numbers(array):
    return ", ".join(f"{float(x):.9g}" for x in np.ravel(array))


def main():
    random = np.random.default_rng(7)
    lines = [
        "/* Made by tools/oracles/routes.py: how mlx-lm and transformers route. */",
        f"enum {{ GOLDEN_TOKENS = {TOKENS}, GOLDEN_EXPERTS = {EXPERTS}, GOLDEN_TOP_K = 4 }};",
        "",
        "static const struct golden {",
        "    const char *name;",
        "    pm_route_kind kind;",
        "    int top_k, groups, kept;",
        "    bool normalise, divide_one, by_token;",
        "    float scale, epsilon, masked;",
        "    float logits[GOLDEN_TOKENS * GOLDEN_EXPERTS]; /* [tokens, experts] */",
        "    float bias[GOLDEN_EXPERTS];",
        "    int32_t ids[GOLDEN_TOKENS * GOLDEN_TOP_K]; /* [tokens, top_k] */",
        "    float weights[GOLDEN_TOKENS * GOLDEN_TOP_K];",
        "} goldens[] = {",
    ]
    for name, (reference, c) in CASES.items():
        logits = (2 * random.standard_normal((TOKENS, EXPERTS))).astype(np.float32)
        bias = (abs(c.bias) * random.standard_normal(EXPERTS) + min(c.bias, 0)).astype(np.float32)
        table = np.stack([random.permutation(EXPERTS)[: c.top_k] for _ in range(TOKENS)])
        ids, weights = route(reference, c, logits, bias, table)
        v4 = reference in ("v4", "hash")
        flags = [c.normalise or v4, v4 or reference == "lfm2", reference == "hash"]
        flags = ", ".join(str(flag).lower() for flag in flags)
        epsilon = "1e-6f" if reference == "lfm2" else "1e-20f"
        lines += [
            f'    {{"{name}",',
            f"     PM_ROUTE_{c.kind}, {c.top_k}, {c.groups}, {c.kept}, {flags}, {c.scale:.9g}, {epsilon},",
            f"     {'0' if reference == 'mlx' else '-INFINITY'},",
            f"     {{{numbers(logits)}}},",
            f"     {{{numbers(bias)}}},",
            f"     {{{numbers(ids)}}},",
            f"     {{{numbers(weights)}}}}},",
        ]
    OUT.write_text("\n".join([*lines, "};", ""]))


if __name__ == "__main__":
    main()

"""What both oracles share: random prompts that are redrawn until no choice in them is close, and their greedy ids."""

import zlib

import numpy as np

from vocabulary import TOKENS

PROMPTS = {"short": 9, "long": 67}  # tokens; long exceeds every window, convolution and block of 64 positions
KEEP = 16  # rows of logits that are stored at most: the last ones
STEPS, DISTINCT = 32, 8  # greedy steps, and how many different ids they must hold
CLEAR_GREEDY, CLEAR_ROUTE = 1e-2, 1e-4  # nearest two logits of a greedy choice, of a choice of experts
DRAWS = 200


class Routes:
    """Keeps the smallest gap between the last expert chosen and the first left out, and the experts used by layer."""

    def __init__(self):
        self.clear()

    def clear(self):
        self.nearest, self.used = float("inf"), {}

    def near(self, scores, n):
        """Takes note of how close the choice of the n best of each row is."""
        if not len(scores):
            return
        ranked = -np.sort(-scores, axis=-1)
        self.nearest = min(self.nearest, float((ranked[:, n - 1] - ranked[:, n]).min()))

    def see(self, layer, logits, top_k):
        """Takes note of router logits, or the scores that are chosen by, [tokens, experts]."""
        self.near(logits, top_k)
        order = np.argsort(-logits, axis=-1, kind="stable")
        self.used.setdefault(layer, set()).update(order[:, :top_k].flatten().tolist())


def greedy(logits, prompt):
    """Ids and margins (first minus second logit) of greedy steps, each computed from the whole prefix; ends early at a
    margin that is not clear."""
    ids, margins = [], []
    while len(ids) < STEPS and min(margins, default=np.inf) >= CLEAR_GREEDY:
        last = logits(prompt + ids)[-1]
        second, first = np.sort(last)[-2:]
        ids.append(int(last.argmax()))
        margins.append(float(first - second))
    return ids, margins


def draw(name, label, logits, routes):
    """A prompt none of whose choices is close and whose continuation varies, its greedy ids and margins, and the number
    of draws it took. `logits` maps ids to an array [ids, vocabulary] and tells `routes` about choices of experts."""
    for attempt in range(1, DRAWS + 1):
        random = np.random.default_rng(zlib.crc32(f"{name}/{label}/{attempt}".encode()))
        prompt = random.integers(TOKENS, size=PROMPTS[label]).tolist()
        routes.clear()
        ids, margins = greedy(logits, prompt)
        if min(margins) >= CLEAR_GREEDY and routes.nearest >= CLEAR_ROUTE and len(set(ids)) >= DISTINCT:
            return prompt, ids, margins, attempt
    raise SystemExit(f"{name}: no clear prompt of {PROMPTS[label]} tokens in {DRAWS} draws")


def record(label, prompt, rows, keep, ids, margins):
    """The tensors of one prompt; `keep` is the number of last rows of logits that are stored."""
    return {
        f"{label}.input_ids": np.array(prompt, np.int32),
        f"{label}.logits": rows[-keep:].astype(np.float32),
        f"{label}.greedy_ids": np.array(ids, np.int32),
        f"{label}.greedy_margins": np.array(margins, np.float32),
    }


def summary(prompt, rows, ids, margins, draws, cached, routes):
    """What oracle.json says of one prompt."""
    about = {
        "tokens": len(prompt),
        "draws": draws,
        "logits_std": round(float(rows.std()), 2),
        "distinct_greedy_ids": len(set(ids)),
        "smallest_greedy_margin": round(min(margins), 4),
        "cached_decoding_difference": float(f"{cached:.1e}"),
    }
    if routes.used:
        about["smallest_expert_gap"] = round(routes.nearest, 5)
        about["experts_used"] = [len(used) for used in routes.used.values()]
    return about

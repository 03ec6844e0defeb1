"""What is published: caches that anybody can compute again from the number of a prompt."""

import functools
import random

from kvcs.kv import Component, Descriptor, Dtype, Layout, ScopeKey

LAYERS, BLOCKS, BLOCK_TOKENS = 8, 4, 16
#: Prompts that are published again and again, each time as another publication.
PROMPTS = 6
SCOPE_KEY = ScopeKey(bytes(range(32)))
DESCRIPTOR = Descriptor(
    layers=LAYERS,
    block_tokens=BLOCK_TOKENS,
    dtype=Dtype.FLOAT16,
    position="rope-applied",
    weights_sha256="11" * 32,
    tokenizer_sha256="22" * 32,
    kv_heads=8,
    head_dim=128,
)
LAYOUT = Layout(DESCRIPTOR)


def tokens(prompt):
    """Return a prompt."""
    return [prompt * 1000 + position for position in range(BLOCKS * BLOCK_TOKENS + 1)]


@functools.cache
def tensor(prompt, component, layer_index):
    """Return one layer of a component, the same in every process."""
    seed = f"{prompt} {component.name} {layer_index}"
    size = BLOCKS * LAYOUT.data_bytes(component, layer_index)
    return random.Random(seed).randbytes(size)


def is_genuine(prompt, layer):
    """Compare a layer that came with what is published."""
    k, v = (tensor(prompt, part, layer.layer_index) for part in (Component.K, Component.V))
    return bytes(layer.k) == k and bytes(layer.v) == v

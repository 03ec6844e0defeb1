"""A small model, for tests that move its cache between processes or over QUIC."""

from kvcs.kv import Descriptor, Dtype

__all__ = ("BLOCK_TOKENS", "small_model")

BLOCK_TOKENS = 16


def small_model(layers, *, kv_heads=4, head_dim=64):
    """Describe a model of so many layers; its Objects have a few KiB."""
    return Descriptor(
        layers=layers,
        block_tokens=BLOCK_TOKENS,
        dtype=Dtype.FLOAT16,
        position="rope-applied",
        weights_sha256="11" * 32,
        tokenizer_sha256="22" * 32,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )

"""Small models: the geometry of one, and one that computes random numbers."""

from kvcs.kv import Descriptor, Dtype

__all__ = ("BLOCK_TOKENS", "random_checkpoint", "small_model")

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


def random_checkpoint(words, **geometry):
    """Return a Llama whose tokens are these words; it needs the group light, and no time."""
    import numpy as np  # noqa: PLC0415 - needs the group light
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415 - likewise

    from kvcs.engines.checkpoint import Checkpoint, LlamaConfig  # noqa: PLC0415 - likewise

    settings = {
        "layers": 4,
        "hidden": 32,
        "intermediate": 48,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "vocabulary": len(words),
        "context": 64,
        "rope_theta": 10000.0,
        "norm_epsilon": 1e-5,
        "end_tokens": (),
    }
    config = LlamaConfig(**{**settings, **geometry})
    chance = np.random.default_rng(5)
    weights = {
        name: chance.standard_normal(shape, np.float32) * 0.3 + (len(shape) == 1)
        for name, shape in config.shapes(tied=True).items()
    }
    vocabulary = {word: token for token, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Checkpoint(config=config, weights=weights, tokenizer=tokenizer)

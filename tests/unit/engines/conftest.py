"""A Llama so small that a test runs it in a millisecond."""

import pytest


@pytest.fixture(scope="session")
def tiny():
    numpy = pytest.importorskip("numpy", reason="the dependency group light is not installed")
    tokenizers = pytest.importorskip(
        "tokenizers", reason="the dependency group light is not installed"
    )
    from kvcs.engines.checkpoint import Checkpoint, LlamaConfig  # noqa: PLC0415 - needs the group light

    config = LlamaConfig(
        layers=3,
        hidden=16,
        intermediate=24,
        heads=4,
        kv_heads=2,
        head_dim=4,
        vocabulary=50,
        context=64,
        rope_theta=10000.0,
        norm_epsilon=1e-5,
        end_tokens=(49,),
    )
    random = numpy.random.default_rng(5)
    weights = {
        name: random.standard_normal(shape, numpy.float32) * 0.3 + (len(shape) == 1)
        for name, shape in config.shapes(tied=True).items()
    }
    vocabulary = {f"w{token}": token for token in range(50)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return Checkpoint(config=config, weights=weights, tokenizer=tokenizer)

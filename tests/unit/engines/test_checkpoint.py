"""Checkpoints: a directory gives back what was saved, and models that are not understood say so."""

import json

import pytest

# ruff: noqa: E402 - what needs the group light is imported once it is known to be there
np = pytest.importorskip("numpy", reason="the dependency group light is not installed")
pytest.importorskip("tokenizers", reason="the dependency group light is not installed")

from kvcs.engines.checkpoint import (
    bfloat16_bits,
    from_bfloat16_bits,
    load_checkpoint,
    save_directory,
)
from kvcs.errors import ConfigError


def edited(directory, **members):
    path = directory / "config.json"
    config = json.loads(path.read_text()) | members
    path.write_text(json.dumps(config))


@pytest.fixture
def directory(tiny, tmp_path):
    save_directory(tiny, tmp_path)
    return tmp_path


def test_a_saved_directory_loads_with_weights_rounded_to_bfloat16(tiny, directory):
    loaded = load_checkpoint(directory)

    assert loaded.config == tiny.config
    assert loaded.tokenizer.to_str() == tiny.tokenizer.to_str()
    for name, weight in tiny.weights.items():
        expected = from_bfloat16_bits(bfloat16_bits(weight))
        assert np.array_equal(loaded.weights[name], expected)


def test_saving_what_was_loaded_changes_nothing(directory, tmp_path):
    loaded = load_checkpoint(directory)

    save_directory(loaded, tmp_path / "again")

    again = load_checkpoint(tmp_path / "again")
    assert again.weights_sha256() == loaded.weights_sha256()


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (0.0, 0x0000),
        (-0.0, 0x8000),
        (1.0, 0x3F80),
        (1.0 + 2**-8, 0x3F80),  # half way, to even
        (1.0 + 3 * 2**-8, 0x3F82),  # half way, to even
        (1.0 + 2**-8 + 2**-20, 0x3F81),
        (-3.140625, 0xC049),
    ],
)
def test_bfloat16_rounds_to_nearest_even(value, bits):
    assert bfloat16_bits(np.array([value], np.float32)).tolist() == [bits]


def test_bfloat16_widening_is_exact():
    bits = np.arange(0x0000, 0x7F80, 7, dtype=np.uint16)

    assert np.array_equal(bfloat16_bits(from_bfloat16_bits(bits)), bits)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"model_type": "mamba"}, "model_type: expected llama, got mamba"),
        ({"hidden_act": "gelu"}, "hidden_act: expected silu, got gelu"),
        ({"attention_bias": True}, "attention_bias: expected False, got True"),
        ({"sliding_window": 4096}, "sliding_window: expected None, got 4096"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "unscaled positions, got yarn"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "unscaled positions, got llama3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a positive integer"),
        ({"hidden_size": "16"}, "hidden_size: expected a positive integer"),
        ({"num_hidden_layers": 4}, r"a parameter less: model\.layers\.3"),
        ({"num_hidden_layers": 2}, r"a parameter more: model\.layers\.2"),
        ({"vocab_size": 51}, r"embed_tokens\.weight: expected shape \(51, 16\)"),
        ({"tie_word_embeddings": True, "head_dim": 8}, "expected shape"),
    ],
)
def test_models_that_are_not_understood_are_refused_by_name(directory, members, expected):
    edited(directory, **members)

    with pytest.raises(ConfigError, match=expected) as caught:
        load_checkpoint(directory)

    assert str(directory) in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_directory_is_refused(directory, name):
    (directory / name).unlink()

    with pytest.raises(ConfigError, match=r"config\.json|tokenizer\.json|weights in"):
        load_checkpoint(directory)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_directory_is_refused(directory, name):
    (directory / name).write_bytes(b"{ not this")

    with pytest.raises(ConfigError, match=str(directory)):
        load_checkpoint(directory)


def test_rope_parameters_are_read_in_their_new_place(directory):
    edited(directory, rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 7.0})

    assert load_checkpoint(directory).config.rope_theta == 7.0


def test_a_file_that_is_no_model_is_refused(tmp_path):
    pytest.importorskip("gguf", reason="the dependency group light is not installed")
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(3))

    with pytest.raises(ConfigError, match="a GGUF file or a model directory"):
        load_checkpoint(path)
    with pytest.raises(ConfigError, match="a GGUF file or a model directory"):
        load_checkpoint(tmp_path / "nothing.gguf")

"""A model is computed with and published: neither its name, its place nor the prompt is written."""

import asyncio
import dataclasses
import random

import pytest

# ruff: noqa: E402 - what needs the group light is imported once it is known to be there
for _module in ("numpy", "tokenizers"):
    pytest.importorskip(_module, reason="the dependency group light is not installed")

from tests.integration.model import random_checkpoint
from tests.integration.secrecy import (
    BLOCK_TOKENS,
    BLOCKS,
    LAYERS,
    Scene,
    clear_world,
    debug_log,
    found_in,
    runs_of_words,
    sealed_world,
)

from kvcs.engines.bridge import publish_prefill
from kvcs.engines.checkpoint import save_directory
from kvcs.engines.recording import record_cache
from kvcs.engines.registry import load_engine
from kvcs.kv import Layout

pytestmark = [pytest.mark.light, pytest.mark.timeout(90)]

PATIENCE = 40
WORDS = [f"word{number:04d}" for number in range(5000)]


@pytest.fixture
def model(tmp_path):
    """The directory of a model that is small and has a name."""
    path = tmp_path / "places-of-models" / "Verysecretmodel-135M"
    path.mkdir(parents=True)
    save_directory(random_checkpoint([*WORDS, "?"], layers=LAYERS), path)
    return path


async def test_neither_a_model_nor_its_prompt_is_named(
    model, certificate, tmp_path, caplog, monkeypatch
):
    debug_log(caplog, monkeypatch)
    scene = Scene(sealed_world(), certificate, tmp_path / "disk")
    words = random.sample(WORDS[1000:], BLOCKS * BLOCK_TOKENS + 1)
    engine = load_engine("reference", model)
    tokens = engine.tokenize(" ".join(words))
    cache = record_cache(engine, tokens, block_tokens=BLOCK_TOKENS)
    world = dataclasses.replace(
        clear_world(scene.world),
        descriptor=cache.descriptor,
        prompt=list(tokens),
        layers=[cache.layers[layer_index] for layer_index in range(LAYERS)],
    )

    async with asyncio.timeout(PATIENCE), scene.relays() as relays:
        async with scene.publishing(world) as publication:
            await publish_prefill(engine, tokens, publication, layout=Layout(cache.descriptor))
            verdict = await scene.take(world, scene.consumer)
            await scene.look(*relays)
        scene.written.append(str(publication.name))
    scene.take_log(caplog)

    assert verdict.complete
    secrets = {
        **world.secrets(scene.tokens),
        "name of the model": (model.name.encode(),),
        "path of the model": (str(model).encode(),),
        "text of the prompt": runs_of_words(" ".join(words)),
    }
    text = "\n".join(scene.written)
    assert found_in(text, secrets) == set()
    assert found_in(f"{text} {model} {' '.join(words)}", secrets) == {
        *("name of the model", "path of the model", "text of the prompt"),
    }

"""What the demo publishes and asks for: a model and a prompt, or a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvcs.cli.demo.messages import ConsumerJob, PublisherJob, Ready
from kvcs.engines.file import SAMPLE_CACHE, CacheFile, load_cache
from kvcs.engines.interface import Engine
from kvcs.engines.registry import load_engine, missing_packages
from kvcs.errors import ConfigError
from kvcs.kv.descriptor import Descriptor
from kvcs.kv.identity import reusable_blocks
from kvcs.kv.layout import Layout

__all__ = ("ENGINE_CHOICES", "FILE", "Material", "default_engine", "load_material", "prompt_text")

FILE: Final = "file"
ENGINE_CHOICES: Final = ("reference", "transformers", FILE)
_BLOCK_TOKENS: Final = 64
_QUESTION: Final = (
    "\n\nQuestion: What was written on the label of the jar that Alice took from the shelf?\n"
    "Answer: The label said"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The tokens of a prompt and where their keys and values come from.

    Attributes:
        descriptor: What they are computed with.
        tokens: The whole prompt.
        blocks: Blocks of the prefix that is published.
        engine: The model, or None.
        file: The cache, or None.
    """

    descriptor: Descriptor
    tokens: Sequence[int]
    blocks: int
    engine: Engine | None = None
    file: CacheFile | None = None

    @property
    def layout(self) -> Layout:
        """The layout of the descriptor."""
        return Layout(self.descriptor)

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the prefix."""
        return self.blocks * self.descriptor.block_tokens

    def ready(self) -> Ready:
        """Describe it to the demo."""
        return Ready(
            blocks=self.blocks,
            tokens=list(self.tokens),
            descriptor=self.descriptor.canonical().decode(),
        )


def default_engine(model: Path | None) -> str:
    """Return the reference engine's name where it can run the model, else ``file``."""
    return FILE if missing_packages("reference", model) else "reference"


def prompt_text() -> str:
    """Return the prompt: a page of a public-domain book and a question about it."""
    return SAMPLE_CACHE.with_suffix(".txt").read_text(encoding="utf-8").strip() + _QUESTION


def load_material(job: PublisherJob | ConsumerJob) -> Material:
    """Load what the job names; a model takes seconds.

    Raises:
        ConfigError: The engine or the model cannot be used.
        DataError: The file cannot be used.
    """
    path = None if job.model is None else Path(job.model)
    if job.engine == FILE:
        file = load_cache(path or SAMPLE_CACHE)
        return Material(
            descriptor=file.descriptor, tokens=file.tokens, blocks=file.blocks, file=file
        )
    if isinstance(job, ConsumerJob) and job.prompt is not None:
        return Material(
            descriptor=Descriptor.decode(job.prompt.descriptor.encode()),
            tokens=job.prompt.tokens,
            blocks=job.prompt.blocks,
        )
    engine = load_engine(job.engine, path)
    tokens = engine.tokenize(prompt_text())
    blocks = reusable_blocks(len(tokens), block_tokens=_BLOCK_TOKENS)
    if not blocks:
        raise ConfigError("--model", f"a prompt of more than {_BLOCK_TOKENS} tokens", "fewer")
    descriptor = engine.descriptor(_BLOCK_TOKENS)
    return Material(descriptor=descriptor, tokens=tokens, blocks=blocks, engine=engine)

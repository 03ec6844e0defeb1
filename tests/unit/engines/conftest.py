"""A Llama so small that a test runs it in a millisecond."""

import pytest
from tests.integration.model import random_checkpoint


@pytest.fixture(scope="session")
def tiny():
    for name in ("numpy", "tokenizers"):
        pytest.importorskip(name, reason="the dependency group light is not installed")
    return random_checkpoint(
        [f"w{token}" for token in range(50)],
        layers=3,
        hidden=16,
        intermediate=24,
        head_dim=4,
        end_tokens=(49,),
    )

"""One small model, its cache, and the ways in which aiomoqt reaches a publication of it."""

import pytest
from tests.interop.sites import Certificate, Prompt

from kvcs.endpoint.certificate import create_dev_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Certificate:
    return create_dev_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def prompt() -> Prompt:
    return Prompt()


@pytest.fixture(scope="module")
def large_prompt() -> Prompt:
    """Objects of half a megabyte: many packets, and many reads of a stream."""
    return Prompt(head_dim=2048)


@pytest.fixture(scope="module")
def huge_prompt() -> Prompt:
    """Objects of more than a megabyte: larger than a stream's ring at some peers."""
    return Prompt(head_dim=8192)

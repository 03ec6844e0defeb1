"""Somebody announces, for a prompt, many publications that nobody believes, or longer ones."""

import asyncio
import json

import pytest
from tests.attacks.liar import (
    BLOCK_TOKENS,
    DESCRIPTOR,
    SCOPE_KEY,
    TOKENS,
    URL,
    Copy,
    Liar,
)
from tests.attacks.signed_copy import IMPOSTOR, KEY, TRUST, attack, genuine

from kvcs.cli._keys import Member
from kvcs.cli._output import Output
from kvcs.cli._taking import Wanted, take_first
from kvcs.client import Consumer
from kvcs.endpoint.connect import connect
from kvcs.errors import NotAuthentic
from kvcs.keyring import KeyRing
from kvcs.kv import KVSP_PROVISIONAL, PublicationName
from kvcs.testing import MemoryNetwork, run


def crowd(size):
    return [genuine(bytes([number]) * 16, key=IMPOSTOR) for number in range(size)]


# More than are compared at a time, and as many as are noted.
@pytest.mark.parametrize("size", [8, 20, 63])
def test_a_trusted_publication_is_found_behind_many_that_are_not(size):
    outcome = attack(Liar(*crowd(size), genuine(b"q" * 16)), discovering=True)

    assert outcome.is_whole
    assert outcome.verdict.signed_by == KEY.kid


def longer(publication_id=b"l" * 16):
    """A publication that is announced for a block more than the genuine one, and is none."""
    compatibility_id = KVSP_PROVISIONAL.compatibility_id(SCOPE_KEY, DESCRIPTOR)
    keys = KVSP_PROVISIONAL.block_keys(
        SCOPE_KEY, compatibility_id, prompt(), block_tokens=BLOCK_TOKENS
    )
    name = PublicationName(
        scope_id=KVSP_PROVISIONAL.scope_id(SCOPE_KEY),
        compatibility_id=compatibility_id,
        anchor_key=keys[-1],
        publication_id=publication_id,
    )
    return Copy(name, genuine(key=IMPOSTOR).tracks)


def prompt():
    return [*TOKENS, *range(BLOCK_TOKENS)]


async def fetch(liar, *, exact=None):
    """What kvcs fetch does once it is connected."""
    wanted = Wanted(
        member=Member(SCOPE_KEY, KeyRing()),
        tokens=prompt(),
        descriptor=DESCRIPTOR,
        layers=None,
        blocks=None,
        wait=False,
        destination=None,
    )
    network, loop = MemoryNetwork(), asyncio.get_running_loop()
    async with liar.open(network), connect(URL, transport=network) as connection:
        consumer = Consumer(connection, scope_key=SCOPE_KEY, descriptor=DESCRIPTOR, config=TRUST)
        if exact is None:
            candidates = await consumer.discover(prompt())
        else:
            candidates = [consumer.candidate(exact, prompt())]
        output = Output(as_json=True, color=False, quiet=True)
        await take_first(output, wanted, consumer, candidates, deadline=loop.time() + 20)


@pytest.mark.parametrize("size", [1, 2, 9])
def test_a_trusted_publication_is_taken_beside_longer_ones_that_are_not(size, capsys):
    bogus = [longer(bytes([number]) * 16) for number in range(size)]
    real = genuine(b"q" * 16)

    run(fetch(Liar(*bogus, real)))

    assert json.loads(capsys.readouterr().out)["publication_id"] == real.name.publication_id.hex()


def test_the_reason_is_told_when_there_are_no_others(capsys):
    with pytest.raises(NotAuthentic, match="no trusted key"):
        run(fetch(Liar(longer())))

    assert json.loads(capsys.readouterr().out) == {"complete": False, "refused": {"signature": 1}}


def test_no_other_publication_is_taken_for_an_exact_one(capsys):
    bogus = longer()

    with pytest.raises(NotAuthentic, match="no trusted key"):
        run(fetch(Liar(bogus, genuine(b"q" * 16)), exact=bogus.name))

    assert json.loads(capsys.readouterr().out) == {"complete": False, "refused": {"signature": 1}}

"""The types that users of `kvcs.keyring` see; pyright checks this file, nobody runs it."""

import os
from pathlib import Path
from typing import assert_type

from kvcs.client import ConsumerConfig, PublisherConfig
from kvcs.cose import MacKey, SigningKey, VerifyingKey
from kvcs.keyring import Jwk, KeyRing, Purpose, Role, change_ring, find_ring, load_ring
from kvcs.kv import ScopeKey
from kvcs.kv.sealing import ObjectKeys
from kvcs.kv.signing import TrustedProducers


def use(directory: Path) -> None:
    ring = find_ring(directory, os.environ)
    assert_type(ring, KeyRing)
    assert_type(load_ring(directory), KeyRing | None)
    assert_type(ring.scope_key, ScopeKey | None)
    assert_type(ring.signing_key, SigningKey | None)
    assert_type(ring.token_key, SigningKey | MacKey | None)
    assert_type(ring.trusted_producers, tuple[VerifyingKey, ...])
    assert_type(ring.token_verifiers, tuple[VerifyingKey | MacKey, ...])
    assert_type(ring.object_keys, ObjectKeys)
    assert_type(ring.keys(Purpose.TRUSTED), tuple[Jwk, ...])
    assert_type(ring.shared(Role.MEMBER), KeyRing)
    assert_type(change_ring(directory, lambda old: old.merged(ring)), KeyRing)

    PublisherConfig(signing_key=ring.signing_key, object_key=ring.object_keys.current)
    ConsumerConfig(
        trusted_producers=TrustedProducers(ring.trusted_producers), object_keys=ring.object_keys
    )

"""Who gets which keys and tokens in ``kvcs demo --secure``: a directory for each party.

The publisher makes the scope key, the object key and a producer key of its own, and hands to the
consumers what a member gets. An issuer, who is neither, makes the tokens; the relay gets public
keys to verify them with, and nothing else.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kvcs.c4m import TOKEN_TYPE, Claims, Role, mint, role_scopes
from kvcs.cli._keys import Member, load_member, load_scope_key
from kvcs.cli.demo.messages import ConsumerJob, PublisherJob
from kvcs.keyring import (
    KeyKind,
    KeyRing,
    Purpose,
    change_ring,
    encode_ring,
    load_ring,
    load_ring_file,
    new_object_key,
    new_pair,
    new_secret,
)
from kvcs.keyring import Role as Holder
from kvcs.keyring.files import write_file
from kvcs.kv.identity import KVSP_PROVISIONAL
from kvcs.kv.naming import PROTOCOL_FIELD
from kvcs.moqt.wire.token import Token
from kvcs.names import TrackNamespace

__all__ = ("SCOPE_KEY_FILE", "Provision", "job_member", "job_tokens", "provide", "token_of")

#: Name of the file with the scope key, where there are no key rings.
SCOPE_KEY_FILE: Final = "scope.key"

# Longer than any demo may take.
_TOKEN_LIFETIME: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Where the parties find what is theirs, and nothing else.

    Attributes:
        publisher: Key ring of the publisher.
        consumer: Key ring of every consumer.
        relay: JSON ring of the relay: public keys.
        producer_token: Token of the publisher.
        consumer_token: Token of the consumers.
        foreign_token: Token for everything in another scope.
    """

    publisher: Path
    consumer: Path
    relay: Path
    producer_token: Path
    consumer_token: Path
    foreign_token: Path

    def relay_keys(self) -> tuple[str, ...]:
        """Return what the keys are for that the relay reads; a secret one is marked as such.

        Raises:
            ConfigError: Its ring cannot be read.
        """
        ring = load_ring_file(self.relay)
        return tuple(
            f"{purpose} (secret)" if any(key.is_secret for key in keys.keys) else str(purpose)
            for purpose, keys in ring.sets.items()
        )

    def secrets(self) -> dict[str, bytes]:
        """Return what the relay must not have, by name.

        Raises:
            ConfigError: A ring cannot be read.
        """
        rings = [load_ring(path) for path in (self.publisher, self.consumer)]
        return {
            f"{purpose} key": key.secret
            for ring in rings
            if ring is not None
            for purpose in ring.sets
            for key in ring.keys(purpose)
            if key.is_secret
        }


def provide(directory: Path) -> Provision:
    """Make keys and tokens below `directory`.

    Raises:
        ConfigError: A file cannot be written.
    """
    publisher = change_ring(directory / "publisher", _publisher_ring)
    member = publisher.shared(Holder.MEMBER)
    change_ring(directory / "consumer", lambda ring: ring.merged(member))
    issuer = KeyRing().added(Purpose.TOKEN, new_pair(KeyKind.P256))
    relay = issuer.shared(Holder.RELAY)
    write_file(directory / "relay.json", encode_ring(relay))
    assert publisher.scope_key is not None
    assert issuer.token_key is not None
    scope_id = KVSP_PROVISIONAL.scope_id(publisher.scope_key)
    other_scope = bytes(octet ^ 0xFF for octet in scope_id)
    for name, role, scope in (
        ("producer.token", Role.PRODUCER, scope_id),
        ("consumer.token", Role.CONSUMER, scope_id),
        ("foreign.token", Role.RELAY, other_scope),
    ):
        claims = Claims(
            scopes=role_scopes(role, [TrackNamespace((PROTOCOL_FIELD, scope))]),
            expires_at=time.time() + _TOKEN_LIFETIME,
        )
        write_file(directory / name, mint(claims, issuer.token_key))
    return Provision(
        publisher=directory / "publisher",
        consumer=directory / "consumer",
        relay=directory / "relay.json",
        producer_token=directory / "producer.token",
        consumer_token=directory / "consumer.token",
        foreign_token=directory / "foreign.token",
    )


def job_member(job: PublisherJob | ConsumerJob) -> Member:
    """Return who a process of the demo acts as.

    Raises:
        ConfigError: Its key ring or scope key cannot be used.
    """
    if job.keys is None:
        return Member(load_scope_key(Path(job.directory) / SCOPE_KEY_FILE), KeyRing())
    return load_member(Path(job.keys), None)


def job_tokens(job: PublisherJob | ConsumerJob) -> tuple[Token, ...]:
    """Return the token that a process of the demo sends with its requests, if it has one."""
    return () if job.token is None else token_of(Path(job.token))


def token_of(path: Path) -> tuple[Token, ...]:
    """Return the token in a file."""
    return (Token.use_value(path.read_bytes(), token_type=TOKEN_TYPE),)


def _publisher_ring(ring: KeyRing) -> KeyRing:
    ring = ring.added(Purpose.SCOPE, replace(new_secret(), kid=""))
    ring = ring.added(Purpose.PRODUCER, new_pair(KeyKind.P256))
    return ring.added(Purpose.OBJECT, new_object_key())

"""What ``kvcs demo --secure`` shows besides: what the relay saw, and whom it turned away.

The relay stores everything that passes it. When all is over, everything that it has stored is
searched for what it must not have: pieces of the published blocks, the tokens of the prompt, the
digests by which the manifest names the model, and every secret of the parties. What it must have,
the Publication ID and the Key ID of sealed Objects, is searched for as well: a search that does not
find these has not looked.
"""

import asyncio
import struct
from collections.abc import Buffer, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvcs.cli._output import format_bytes
from kvcs.cli.demo.messages import Ready, RelayCounters
from kvcs.cli.demo.provision import Provision, token_of
from kvcs.cli.demo.search import Findings, forms, search
from kvcs.endpoint.connect import ConnectConfig, connect
from kvcs.endpoint.connection import Connection
from kvcs.errors import RequestErrorCode, RequestFailed
from kvcs.kv.descriptor import Descriptor
from kvcs.kv.layout import Layout
from kvcs.kv.naming import PROTOCOL_FIELD, SIGNED_MANIFEST, Component, PublicationName
from kvcs.kv.sealing import KEY_ID_PROPERTY
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.wire.parameters import Parameters
from kvcs.names import TrackNamespace
from kvcs.varint import encode_vi64

__all__ = ("SecurityReport", "Wanted", "block_samples", "look_for_secrets", "try_strangers")

# Octets of a block that are looked for. Long enough that chance does not make them twice.
_SAMPLE_BYTES: Final = 32
_LEAST_VALUES: Final = 8
_SAMPLE_TOKENS: Final = 8
_NAME_LETTERS: Final = 60
# Names of what was found that are shown to people; --json has all.
_SHOWN_FINDINGS: Final = 8
_STRANGER_WAIT: Final = 10.0
_SEALED: Final = "Key ID of sealed Objects"
# How a list of tokens may lie in a file.
_PACKINGS: Final = (("<", "I"), (">", "I"), ("<", "q"), (">", "q"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is looked for, each by its name in all its forms.

    Attributes:
        secret: What the relay must not have.
        present: What it must have.
        pieces: How many of the secret things are pieces of blocks.
    """

    secret: Mapping[str, tuple[bytes, ...]]
    present: Mapping[str, tuple[bytes, ...]]
    pieces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityReport:
    """What was seen, refused and found.

    Attributes:
        signed_by: Key identifier of the producer.
        key_id: Key ID of the object key.
        authenticated: Every consumer verified the signature.
        relay: What the relay counted and could see.
        relay_keys: What the relay's keys are for.
        refused: What strangers were answered, by what they tried.
        wanted: What was looked for in what the relay stored.
        findings: Where, and what was found.
    """

    signed_by: str
    key_id: int
    authenticated: bool
    relay: RelayCounters
    relay_keys: tuple[str, ...]
    refused: Mapping[str, str]
    wanted: Wanted
    findings: Findings

    @property
    def found(self) -> list[str]:
        """Names of what the relay stored and must not have."""
        return sorted(self.findings.found & self.wanted.secret.keys())

    @property
    def not_found(self) -> list[str]:
        """Names of what it must have stored, and the search did not find."""
        return sorted(self.wanted.present.keys() - self.findings.found)

    @property
    def holds(self) -> bool:
        """Nothing was found, everything was looked at, strangers got nothing."""
        looked_at_all = (
            bool(self.relay.tracks)
            and not self.relay.objects_dropped
            and self.findings.size_bytes >= self.relay.bytes_on_disk > 0
            and self.wanted.pieces > 0
            and not self.not_found
        )
        refusal = RequestErrorCode.UNAUTHORIZED.name
        is_closed = bool(self.refused) and set(self.refused.values()) == {refusal}
        return (
            self.authenticated
            and looked_at_all
            and is_closed
            and not self.found
            and set(self.relay_keys) == {"verifier"}
        )

    def to_json(self) -> dict[str, Any]:
        """Return the member ``security`` of ``kvcs demo --secure --json``."""
        return {
            "holds": self.holds,
            "signed_by": self.signed_by,
            "authenticated": self.authenticated,
            "sealed_with_key_id": self.key_id,
            "refused": dict(self.refused),
            "relay": {
                "keys": list(self.relay_keys),
                "namespaces": self.relay.namespaces,
                "tracks": [
                    {
                        "name": track.name,
                        "groups": track.groups,
                        "objects_per_group": track.objects_per_group,
                        "bytes": track.size_bytes,
                    }
                    for track in self.relay.tracks
                ],
                "sessions": self.relay.sessions,
                "objects_stored": self.relay.objects_on_disk,
                "objects_not_stored": self.relay.objects_dropped,
                "bytes_stored": self.findings.size_bytes,
                "searched_for": len(self.wanted.secret),
                "pieces_of_blocks": self.wanted.pieces,
                "found": self.found,
                "not_found_although_there": self.not_found,
            },
        }

    def lines(self) -> list[str]:
        """Return what a person is told."""
        found = ", ".join(self.found[:_SHOWN_FINDINGS]) or "none of them"
        if (more := len(self.found) - _SHOWN_FINDINGS) > 0:
            found = f"{found}, and {more} more"
        is_sealed = _SEALED not in self.not_found
        sealed = f"sealed with key {self.key_id}" if is_sealed else "NOT SEALED"
        size = f"{format_bytes(self.findings.size_bytes)} in {self.findings.files} files"
        return [
            "What the relay could see:",
            *(f"  namespace {_shortened(name)}" for name in self.relay.namespaces),
            *(
                f"  track {_readable(track.name)}: {track.groups} Groups of "
                f"{track.objects_per_group} Objects, {format_bytes(track.size_bytes)}"
                for track in self.relay.tracks
            ),
            f"  {self.relay.sessions} sessions, when they came and what they asked for",
            f"and stored: {self.relay.objects_on_disk} Objects, {size}.",
            (
                f"Looked in there for {len(self.wanted.secret)} things that it must not have: "
                f"found {found}."
            ),
            f"  {self.wanted.pieces} pieces of blocks, tokens, model digests, keys, others' tokens",
            "Looked for what it must have as well: "
            + (f"{', '.join(self.not_found)} NOT FOUND." if self.not_found else "found all of it."),
            f"Its own keys, by what they are for: {', '.join(self.relay_keys)}.",
            "Strangers who know the whole name were answered:",
            *_answers(self.refused),
            f"Signed by {self.signed_by}, {sealed}: "
            + ("every consumer verified it." if self.authenticated else "NOT VERIFIED BY ALL."),
        ]


def _shortened(name: str) -> str:
    """Return the beginning of a name: its fields are keyed hashes, and --json has them whole."""
    return name if len(name) <= _NAME_LETTERS else f"{name[:_NAME_LETTERS]}…"


def _answers(refused: Mapping[str, str]) -> Iterator[str]:
    """Say what strangers were answered, those with the same token and answer in one line."""
    tried: dict[tuple[str, str], list[str]] = {}
    for what, answer in refused.items():
        request, _, holding = what.partition(" with ")
        tried.setdefault((holding, answer), []).append(request)
    for (holding, answer), requests in tried.items():
        yield f"  with {holding}: {answer} to {', '.join(requests)}"


def _readable(name: str) -> str:
    """Return a Track Name as it is; the text form of MOQT escapes even its dots."""
    return TrackNamespace.parse(name).fields[0].decode()


def block_samples(layout: Layout, layer_index: int, k: Buffer, v: Buffer) -> list[str]:
    """Return a piece of each block of a layer, in hex: what nobody else may hold in clear.

    Pieces of few different octets are left out: they may be anywhere.
    """
    pieces = [
        bytes(block[len(block) // 2 :][:_SAMPLE_BYTES])
        for component, tensor in ((Component.K, k), (Component.V, v))
        for block in layout.blocks(component, layer_index, tensor)
    ]
    return [piece.hex() for piece in pieces if len(set(piece)) >= _LEAST_VALUES]


def look_for_secrets(
    directory: Path,
    provision: Provision,
    ready: Ready,
    samples: Mapping[str, str],
    *,
    publication: PublicationName,
    key_id: int,
) -> tuple[Wanted, Findings]:
    """Search what the relay stored; return for what, and what was found.

    Args:
        directory: Where the relay stores.
        provision: Who has which keys.
        ready: The prompt and the descriptor.
        samples: Pieces of blocks in hex, by name.
        publication: The publication.
        key_id: Key ID of the object key.
    """
    wanted = {name: forms(octets) for name, octets in provision.secrets().items()}
    wanted |= {f"piece of {name}": (bytes.fromhex(text),) for name, text in samples.items()}
    wanted |= _prompt(ready)
    for path in (provision.producer_token, provision.consumer_token):
        wanted[f"file {path.name}"] = forms(path.read_bytes())
    present = {
        "Publication ID": forms(publication.publication_id),
        _SEALED: (encode_vi64(KEY_ID_PROPERTY) + encode_vi64(key_id),),
    }
    every = Wanted(secret=wanted, present=present, pieces=len(samples))
    return every, search(directory, {**wanted, **present})


def _prompt(ready: Ready) -> dict[str, tuple[bytes, ...]]:
    """Return the first tokens as they could be written, and the digests of the model."""
    tokens = ready.tokens[:_SAMPLE_TOKENS]
    texts = [f"{separator}".join(map(str, tokens)).encode() for separator in (",", ", ", " ")]
    packed = [struct.pack(f"{order}{len(tokens)}{kind}", *tokens) for order, kind in _PACKINGS]
    found = {"tokens of the prompt": (*texts, *packed)}
    descriptor = Descriptor.decode(ready.descriptor.encode())
    for name in ("weights_sha256", "tokenizer_sha256"):
        digest: str = getattr(descriptor, name)
        found[name] = (digest.encode(), *forms(bytes.fromhex(digest)))
    return found


async def try_strangers(
    url: str, config: ConnectConfig, provision: Provision, publication: PublicationName
) -> dict[str, str]:
    """Ask for the publication, and announce it, as who must not; return the answers.

    The strangers even know its whole name.

    Raises:
        KvcsError: The relay cannot be reached.
        TimeoutError: It does not answer.
    """
    answers: dict[str, str] = {}
    async with asyncio.timeout(_STRANGER_WAIT):
        for who, token, requests in (
            ("no token", None, _REQUESTS),
            ("a token of another scope", provision.foreign_token, _REQUESTS),
            ("a consumer's token", provision.consumer_token, _REQUESTS[:1]),
        ):
            parameters = Parameters(authorization_tokens=() if token is None else token_of(token))
            async with connect(url, config) as connection:
                for name, send in requests:
                    answers[f"{name} with {who}"] = await _answer(
                        connection, send(connection, publication, parameters)
                    )
    return answers


async def _answer(connection: Connection, request_id: RequestId) -> str:
    try:
        await connection.answer(request_id)
    except RequestFailed as error:
        codes = {int(code): code.name for code in RequestErrorCode}
        return codes.get(error.code, f"code {error.code:#x}")
    return "allowed"


type _Request = Callable[[Connection, PublicationName, Parameters], RequestId]

_REQUESTS: Final[tuple[tuple[str, _Request], ...]] = (
    (
        "PUBLISH_NAMESPACE",
        lambda connection, it, parameters: connection.publish_namespace(it.namespace(), parameters),
    ),
    (
        "SUBSCRIBE_NAMESPACE",
        lambda connection, it, parameters: connection.subscribe_namespace(
            TrackNamespace((PROTOCOL_FIELD, it.scope_id)), parameters
        ),
    ),
    (
        "SUBSCRIBE",
        lambda connection, it, parameters: connection.subscribe(
            it.track(SIGNED_MANIFEST), parameters
        ),
    ),
    (
        "FETCH",
        lambda connection, it, parameters: connection.fetch(it.track(SIGNED_MANIFEST), parameters),
    ),
)

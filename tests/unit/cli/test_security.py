"""``kvcs demo --secure``: who gets which keys, and what makes it fail."""

import dataclasses
import json
import struct

import msgspec
import pytest

from kvcs.c4m import TokenVerifier
from kvcs.cli.demo.messages import Ready, RelayCounters, SeenTrack
from kvcs.cli.demo.provision import provide
from kvcs.cli.demo.search import Findings
from kvcs.cli.demo.security import SecurityReport, Wanted, block_samples, look_for_secrets
from kvcs.engines.file import SAMPLE_CACHE, load_cache
from kvcs.keyring import KeyRing, Purpose, encode_ring, load_ring, load_ring_file, new_secret
from kvcs.keyring.files import write_file
from kvcs.kv import Layout, PublicationName
from kvcs.kv.sealing import KEY_ID_PROPERTY
from kvcs.varint import encode_vi64

COUNTERS = RelayCounters(
    bytes_in=1,
    bytes_out=2,
    upstream_subscriptions=3,
    objects_on_disk=4,
    bytes_on_disk=2048,
    sessions=5,
    namespaces=["a-b"],
    tracks=[SeenTrack(name="k.2eraw.2es0", groups=2, objects_per_group=3, size_bytes=2048)],
)
PRESENT = {"Key ID of sealed Objects", "Publication ID"}
REPORT = SecurityReport(
    signed_by="somebody",
    key_id=7,
    authenticated=True,
    relay=COUNTERS,
    relay_keys=("verifier",),
    refused={"FETCH with no token": "UNAUTHORIZED"},
    wanted=Wanted(
        secret={"object key": (b"s",), "piece of 1": (b"p",)},
        present={"Key ID of sealed Objects": (b"k",), "Publication ID": (b"i",)},
        pieces=1,
    ),
    findings=Findings(files=1, size_bytes=4096, found=PRESENT),
)


@pytest.fixture(scope="module")
def cache():
    return load_cache(SAMPLE_CACHE)


@pytest.fixture
def ready(cache):
    descriptor = cache.descriptor.canonical().decode()
    return Ready(blocks=cache.blocks, tokens=list(cache.tokens), descriptor=descriptor)


def test_report_holds_when_nothing_was_found_and_everything_was_looked_at():
    assert REPORT.holds
    assert json.loads(json.dumps(REPORT.to_json()))["holds"] is True
    text = "\n".join(REPORT.lines())
    assert "track k.raw.s0: 2 Groups of 3 Objects, 2 KiB" in text
    assert "found none of them" in text
    assert "found all of it" in text
    assert "sealed with key 7: every consumer verified it." in text
    assert "namespace a-b\n" in text


def test_report_says_in_a_line_what_those_with_the_same_token_were_answered():
    refused = {
        "FETCH with no token": "UNAUTHORIZED",
        "SUBSCRIBE with no token": "UNAUTHORIZED",
        "FETCH with a token of another scope": "allowed",
    }
    seen = msgspec.structs.replace(COUNTERS, namespaces=["a" * 300])

    lines = dataclasses.replace(REPORT, refused=refused, relay=seen).lines()

    assert "  with no token: UNAUTHORIZED to FETCH, SUBSCRIBE" in lines
    assert "  with a token of another scope: allowed to FETCH" in lines
    assert max(map(len, lines)) < 100


def test_people_are_told_what_was_found_and_that_nothing_was_sealed():
    found = {f"piece of {number}" for number in range(20)}
    wanted = dataclasses.replace(REPORT.wanted, secret=dict.fromkeys(found, (b"p",)))
    findings = Findings(files=1, size_bytes=4096, found={"Publication ID", *found})

    text = "\n".join(dataclasses.replace(REPORT, wanted=wanted, findings=findings).lines())

    assert "found piece of 0, piece of 1, " in text
    assert ", and 12 more." in text
    assert "Key ID of sealed Objects NOT FOUND" in text
    assert "NOT SEALED" in text


@pytest.mark.parametrize(
    "change",
    [
        {"authenticated": False},
        {"relay_keys": ("verifier", "object")},
        {"refused": {"FETCH with no token": "DOES_NOT_EXIST"}},
        {"refused": {"FETCH with no token": "allowed"}},
        {"refused": {}},
        {"relay_keys": ("verifier (secret)",)},
        {"findings": Findings(files=1, size_bytes=4096, found={*PRESENT, "object key"})},
        {"findings": Findings(files=1, size_bytes=4096, found={"Publication ID"})},
        {"findings": Findings(files=1, size_bytes=4096)},
        {"findings": Findings(files=1, size_bytes=2047, found=PRESENT)},
        {"wanted": dataclasses.replace(REPORT.wanted, pieces=0)},
        {"relay": {"tracks": []}},
        {"relay": {"bytes_on_disk": 0}},
        {"relay": {"objects_dropped": 1}},
    ],
)
def test_report_does_not_hold_when_anything_differs(change):
    if isinstance(change.get("relay"), dict):
        members = {name: getattr(COUNTERS, name) for name in COUNTERS.__struct_fields__}
        change = {"relay": RelayCounters(**{**members, **change["relay"]})}

    report = dataclasses.replace(REPORT, **change)

    assert not report.holds
    assert report.to_json()["holds"] is False


def test_each_party_gets_what_is_its_own(tmp_path):
    provision = provide(tmp_path)

    publisher, consumer = load_ring(provision.publisher), load_ring(provision.consumer)
    relay = load_ring_file(provision.relay)
    assert publisher is not None
    assert consumer is not None
    assert set(publisher.sets) == {Purpose.SCOPE, Purpose.PRODUCER, Purpose.OBJECT}
    assert set(consumer.sets) == {Purpose.SCOPE, Purpose.TRUSTED, Purpose.OBJECT}
    assert set(relay.sets) == {Purpose.VERIFIER}
    assert not any(key.is_secret for key in relay.keys(Purpose.VERIFIER))
    verifier = TokenVerifier(relay.token_verifiers)
    for path in (provision.producer_token, provision.consumer_token, provision.foreign_token):
        assert verifier.open(path.read_bytes()).scopes
    assert len(provision.secrets()) == 3
    assert provision.relay_keys() == ("verifier",)


def test_a_relay_with_a_secret_key_is_told_from_one_without(tmp_path):
    provision = provide(tmp_path)
    ring = KeyRing().added(Purpose.VERIFIER, new_secret("mac"))
    write_file(provision.relay, encode_ring(ring.merged(load_ring_file(provision.relay))))

    assert provision.relay_keys() == ("verifier (secret)",)


def test_samples_are_pieces_of_every_block(cache):
    layout = Layout(cache.descriptor)
    k, v = cache.layers[0]

    samples = block_samples(layout, 0, k, v)

    assert len(samples) == 2 * cache.blocks
    assert all(bytes.fromhex(sample) in bytes(k) + bytes(v) for sample in samples)
    assert block_samples(layout, 0, bytes(k.nbytes), bytes(v.nbytes)) == []


def test_everything_that_is_looked_for_is_found_where_it_is(cache, ready, tmp_path):
    provision = provide(tmp_path / "parties")
    samples = dict(enumerate(block_samples(Layout(cache.descriptor), 1, *cache.layers[1])))
    disk = tmp_path / "disk"
    disk.mkdir()
    name = PublicationName(
        scope_id=bytes(16),
        compatibility_id=bytes(32),
        anchor_key=bytes(32),
        publication_id=bytes(range(16)),
    )

    def look():
        named = {str(number): sample for number, sample in samples.items()}
        return look_for_secrets(disk, provision, ready, named, publication=name, key_id=2**31)

    wanted, nothing = look()
    tokens = ready.tokens[:8]
    (disk / "all").write_bytes(
        b"".join(
            [
                *provision.secrets().values(),
                *(bytes.fromhex(sample) for sample in samples.values()),
                struct.pack(">8I", *tokens),
                cache.descriptor.canonical(),
                provision.producer_token.read_bytes(),
                provision.consumer_token.read_bytes(),
                name.publication_id,
                encode_vi64(KEY_ID_PROPERTY) + encode_vi64(2**31),
            ]
        )
    )

    again, everything = look()

    assert nothing.found == set()
    assert wanted == again
    assert wanted.pieces == len(samples)
    assert everything.found == wanted.secret.keys() | wanted.present.keys()

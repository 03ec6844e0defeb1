"""A relay that takes the signature away: nothing is used, and nobody is led anywhere else."""

import cbor2
import pytest
from tests.attacks.liar import K, Liar, LiveLiar, V
from tests.attacks.signed_copy import assert_nothing, attack, genuine, versions

from kvcs.client import ConsumerConfig
from kvcs.errors import NotAuthentic, RequestErrorCode, RequestRejected
from kvcs.kv import MANIFEST, SIGNED_MANIFEST
from kvcs.moqt.session.events import FetchReceived, SubscribeReceived

FETCH, SUBSCRIBE = FetchReceived, SubscribeReceived
# Goes with a place to go to, and is followed, not judged.
REDIRECT = RequestErrorCode.REDIRECT


def asked_for_data(liar):
    return [event for event in liar.asked if hasattr(event, "track") and event.track.name in (K, V)]


def without_signature(copy):
    for version, data in enumerate(versions(copy)):
        copy.manifest(data, version)
    return copy


def with_other_signature(copy, signature):
    for version, obj in enumerate(copy.tracks[SIGNED_MANIFEST]):
        message = cbor2.loads(obj.payload)
        array = [*message.value[:3], signature]
        copy.manifest(cbor2.dumps(cbor2.CBORTag(18, array)), version)
    return copy


def renamed(copy):
    """Serve what was signed as a plain manifest: a publication that never signed anything."""
    without_signature(copy)
    copy.tracks[MANIFEST] = copy.tracks.pop(SIGNED_MANIFEST)
    return copy


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_the_json_in_the_place_of_the_signed_manifest_is_refused(kind):
    liar = kind(without_signature(genuine()))

    assert_nothing(attack(liar), NotAuthentic, "envelope")
    assert asked_for_data(liar) == []


@pytest.mark.parametrize("signature", [b"", bytes(64), bytes(63), b"\xff" * 64, bytes(2**16)])
def test_an_empty_or_worthless_signature_is_refused(signature):
    liar = Liar(with_other_signature(genuine(), signature))

    assert_nothing(attack(liar), NotAuthentic, "signature")
    assert asked_for_data(liar) == []


@pytest.mark.parametrize("kind", [Liar, LiveLiar])
def test_manifest_in_the_place_of_manifest_cose_is_refused(kind):
    liar = kind(renamed(genuine()))

    outcome = attack(liar)

    assert_nothing(outcome, NotAuthentic, "unsigned")
    assert asked_for_data(liar) == []
    # It was asked whether there is one, and what came was not looked at.
    plain = [event for event in liar.asked if event.track.name == MANIFEST]
    assert [type(event) for event in plain] == [FETCH]


@pytest.mark.parametrize("code", [code for code in (*RequestErrorCode, 0x7777) if code != REDIRECT])
@pytest.mark.parametrize("kinds", [(SUBSCRIBE, FETCH), (SUBSCRIBE,), (FETCH,)])
def test_a_refused_request_leads_nowhere_else(kinds, code):
    copy = renamed(genuine())
    copy.tracks[SIGNED_MANIFEST] = genuine().tracks[SIGNED_MANIFEST]
    liar = Liar(copy)
    for kind in kinds:
        liar.lying(
            kind,
            lambda liar, connection, event, _: liar.reject(connection, event, code),
            (SIGNED_MANIFEST,),
        )

    outcome = attack(liar)

    if kinds == (FETCH,):
        # The subscription brought the signed manifest.
        assert outcome.is_whole
        assert outcome.verdict.authenticated
    elif outcome.verdict is not None:
        # Nobody subscribes to what does not exist, and fetches it signed.
        assert outcome.verdict.authenticated
        assert code in (RequestErrorCode.DOES_NOT_EXIST, RequestErrorCode.TIMEOUT)
    else:
        is_refused_here = isinstance(outcome.error, NotAuthentic)
        reason = outcome.error.reason if is_refused_here else None
        assert_nothing(outcome, RequestRejected | NotAuthentic, counted=reason)
        assert reason in (None, "unsigned")
        assert asked_for_data(liar) == []


def test_whoever_forgot_the_key_is_not_served_in_silence():
    liar = Liar(genuine())

    outcome = attack(liar, config=ConsumerConfig())

    assert_nothing(outcome, NotAuthentic, "untrusted")
    assert "public key of its producer is needed" in str(outcome.error)
    assert asked_for_data(liar) == []


def test_a_publication_with_both_tracks_is_read_by_its_signature():
    copy = renamed(genuine(b"q" * 16))
    copy.tracks[SIGNED_MANIFEST] = genuine(b"q" * 16).tracks[SIGNED_MANIFEST]

    outcome = attack(Liar(copy))

    assert outcome.is_whole
    assert outcome.verdict.signed_by == b"producer-1"
    assert outcome.refused == {}

"""A relay, or a consumer's own want of a key, takes the seal away."""

from tests.attacks.liar import TRACKS, Copy
from tests.attacks.sealed_copy import DEMANDING, KEY, attack, genuine
from tests.attacks.signed_copy import assert_nothing

from kvcs.client import ConsumerConfig
from kvcs.errors import IntegrityError, KeyMissing, NotAuthentic
from kvcs.kv.sealing import SealReason


def test_a_manifest_in_clear_is_an_error_to_who_has_keys():
    outcome = attack(Copy.genuine())

    assert_nothing(outcome, IntegrityError, SealReason.UNSEALED)


def test_who_has_no_key_takes_nothing_of_it():
    outcome = attack(genuine(), config=ConsumerConfig())

    assert_nothing(outcome, KeyMissing, counted=SealReason.UNKNOWN_KEY)
    assert "Key ID 7" in str(outcome.error)
    assert KEY.secret.hex() not in str(outcome.error)


def test_who_has_no_key_takes_no_sealed_data_under_a_manifest_in_clear():
    clear, sealed = Copy.genuine(), genuine()
    copy = Copy(clear.name, {**clear.tracks, **{track: sealed.tracks[track] for track in TRACKS}})

    outcome = attack(copy, config=ConsumerConfig())

    assert outcome.layers == 0
    assert outcome.verdict.verified == 0
    assert set(outcome.verdict.rejected) == {"magic"}


def test_a_seal_is_no_signature():
    """Whoever has the object key seals; only a trusted producer is believed."""
    outcome = attack(genuine(), config=DEMANDING)

    assert_nothing(outcome, NotAuthentic, "unsigned")

"""A relay that serves an old version of a manifest, or goes back to one."""

import pytest
from tests.attacks.liar import BLOCKS, LAYERS, Liar, LiveLiar
from tests.attacks.signed_copy import KEY, assert_nothing, attack, genuine, versions

from kvcs.client import MissingReason
from kvcs.cose import encode_sign1
from kvcs.errors import IntegrityError, ManifestError, NotAuthentic
from kvcs.kv import SIGNED_MANIFEST

# Version 0 comes with the segment; 1, 2 and 3 list 1, 2 and all 4 layers.
LISTED = (0, 1, 2, LAYERS)


def moved(copy, version, group_id):
    """Serve one version as another, and none after it."""
    objects = copy.tracks[SIGNED_MANIFEST]
    copy.tracks[SIGNED_MANIFEST] = [
        *objects[: min(group_id, len(objects))],
        objects[version]._replace(group_id=group_id),
    ]
    return copy


@pytest.mark.parametrize("group_id", [3, 4, 2**40])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_old_version_under_a_newer_number_is_refused(version, group_id):
    outcome = attack(Liar(moved(genuine(), version, group_id)))

    assert_nothing(outcome, NotAuthentic, "binding")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_old_version_as_the_newest_gives_what_it_lists_and_no_more(version):
    copy = genuine()
    copy.tracks[SIGNED_MANIFEST] = copy.tracks[SIGNED_MANIFEST][: version + 1]

    outcome = attack(Liar(copy))

    verdict, listed = outcome.verdict, LISTED[version]
    assert not verdict.complete
    assert outcome.layers == listed
    assert verdict.verified == 2 * listed * BLOCKS
    # All came, and what no list names was held until the end.
    unlisted = [gap for gap in verdict.missing if gap.reason is MissingReason.UNLISTED]
    assert {gap.layer for gap in unlisted} == set(range(listed, LAYERS))
    assert outcome.seconds <= 21


@pytest.mark.parametrize("version", [0, 1, 2])
def test_going_back_in_the_middle_changes_nothing(version):
    copy = genuine()
    objects = copy.tracks[SIGNED_MANIFEST]
    # After the newest, an old one under a number of its own, and once more under its own.
    objects += [objects[version]._replace(group_id=4), objects[version]._replace(group_id=5)]

    outcome = attack(LiveLiar(copy))

    assert outcome.is_whole
    assert outcome.verdict.rejected == {"manifest": 2}


def test_a_producer_that_takes_something_back_is_not_believed_at_all():
    copy = genuine()
    texts = versions(copy)
    # Signed by the producer itself, for this place: version 3 lists less than version 2.
    forged = texts[1].replace(b'"version":1', b'"version":3')
    copy.manifest(encode_sign1(forged, KEY), 3)

    outcome = attack(LiveLiar(copy))

    assert not outcome.verdict.complete
    assert isinstance(outcome.verdict.error, ManifestError | IntegrityError)
    assert outcome.verdict.verified_prefix_blocks == 0
    assert {gap.reason for gap in outcome.verdict.missing} == {MissingReason.DISCARDED}

from dataclasses import replace

import pytest

from kvcs.client.selection import Prefix
from kvcs.errors import KeyMismatch, UnsupportedEncoding


def taken(segments):
    return [(s.segment, s.first_block, s.wanted_blocks) for s in segments]


def test_prefix_takes_all_segments_of_its_own_tokens(sample):
    segments = Prefix(keys=sample.keys).segments(sample.manifest)

    assert taken(segments) == [(0, 0, 4), (1, 4, 2)]
    assert [str(name) for name in segments[1].tracks] == ["k.raw.s1", "v.raw.s1"]


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [(3, [(0, 0, 3)]), (4, [(0, 0, 4)]), (5, [(0, 0, 4), (1, 4, 1)]), (9, [(0, 0, 4), (1, 4, 2)])],
)
def test_prefix_ends_at_the_wanted_block(sample, blocks, expected):
    assert taken(Prefix(keys=sample.keys, blocks=blocks).segments(sample.manifest)) == expected


def test_prefix_stops_at_the_first_segment_of_other_tokens(sample):
    keys = (*sample.keys[:5], sample.keys[0])

    assert taken(Prefix(keys=keys).segments(sample.manifest)) == [(0, 0, 4)]


def test_prefix_refuses_a_publication_of_other_tokens(sample):
    with pytest.raises(KeyMismatch):
        Prefix(keys=sample.keys[1:]).segments(sample.manifest)


def test_prefix_uses_a_segment_in_part_only_when_the_caller_vouches(sample):
    short = sample.keys[:3]

    with pytest.raises(KeyMismatch):
        Prefix(keys=short).segments(sample.manifest)
    assert taken(Prefix(keys=short, is_vouched=True).segments(sample.manifest)) == [(0, 0, 3)]


def test_prefix_without_tokens_takes_what_the_caller_vouches_for(sample):
    assert taken(Prefix(is_vouched=True).segments(sample.manifest)) == [(0, 0, 4), (1, 4, 2)]
    assert taken(Prefix(is_vouched=True, blocks=2).segments(sample.manifest)) == [(0, 0, 2)]


def test_prefix_refuses_a_segment_without_a_codec_that_it_knows(sample):
    segment = replace(sample.manifest.segments[0], tracks=("k.zz.s0", "v.zz.s0", "k.raw.s0"))

    with pytest.raises(UnsupportedEncoding, match="segment 0"):
        Prefix(keys=sample.keys).segments(sample.manifest.with_segment(segment))


def test_prefix_of_an_empty_manifest_is_empty(sample):
    assert Prefix(keys=sample.keys).segments(replace(sample.manifest, segments=())) == ()

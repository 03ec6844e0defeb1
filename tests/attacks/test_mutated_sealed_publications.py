"""Random lies about a sealed publication that nobody signed: never wrong bytes, always an end."""

import pytest
from tests.attacks.lies import (
    KINDS,
    add_an_object,
    assert_lie_ends,
    assert_no_mutation_is_accepted,
    borrow_an_object,
    change_a_manifest,
    change_a_priority,
    change_properties,
    cut_manifest,
    end_somewhere,
    flip_manifest,
    flip_payload,
    forge_in_clear,
    forge_under_another_key,
    jump_in_versions,
    move_an_object,
    remove_an_object,
    remove_status_objects,
    resize_payload,
    shuffle_versions,
    swap_payloads,
)
from tests.attacks.sealed_copy import CONSUMER, SEALED
from tests.seeds import seeded

LIES = [
    flip_payload,
    resize_payload,
    swap_payloads,
    borrow_an_object,
    forge_in_clear,
    forge_under_another_key,
    change_a_priority,
    change_properties,
    remove_an_object,
    remove_status_objects,
    move_an_object,
    add_an_object,
    end_somewhere,
    change_a_manifest,
    flip_manifest,
    cut_manifest,
    shuffle_versions,
    jump_in_versions,
]


@seeded("part", range(3), soak=range(3, 30))
def test_no_mutation_of_a_sealed_publication_is_accepted(part):
    assert_no_mutation_is_accepted(part, LIES, published=SEALED, demanded=CONSUMER)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_each_lie_about_a_sealed_publication_ends(kind, lie):
    assert_lie_ends(lie, kind, published=SEALED, demanded=CONSUMER)

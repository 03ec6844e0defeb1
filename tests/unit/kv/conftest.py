"""A small model and its scope, shared by the tests of the data model."""

import pytest

from kvcs.kv import (
    KVSP_PROVISIONAL,
    Descriptor,
    Dtype,
    Layout,
    PublicationName,
    ScopeKey,
    block_keys_sha256,
)


@pytest.fixture
def scope_key():
    return ScopeKey(bytes(range(32)))


@pytest.fixture
def descriptor():
    return Descriptor(
        layers=2,
        block_tokens=4,
        dtype=Dtype.BFLOAT16,
        position="rope-applied",
        weights_sha256="11" * 32,
        tokenizer_sha256="22" * 32,
        kv_heads=8,
        head_dim=128,
    )


@pytest.fixture
def layout(descriptor):
    return Layout(descriptor)


@pytest.fixture
def block_keys(scope_key, descriptor):
    """Keys of five blocks."""
    compatibility_id = KVSP_PROVISIONAL.compatibility_id(scope_key, descriptor)
    return KVSP_PROVISIONAL.block_keys(
        scope_key, compatibility_id, range(5 * 4), block_tokens=descriptor.block_tokens
    )


@pytest.fixture
def name(scope_key, descriptor, block_keys):
    """Name of a publication whose segment 0 has three blocks."""
    return PublicationName(
        scope_id=KVSP_PROVISIONAL.scope_id(scope_key),
        compatibility_id=KVSP_PROVISIONAL.compatibility_id(scope_key, descriptor),
        anchor_key=block_keys[2],
        publication_id=bytes(16),
    )


@pytest.fixture
def members(descriptor, block_keys):
    """JSON members of a manifest: segment 0 complete with digests, segment 1 in the making."""
    group = ["ab" * 32, "cd" * 32, "ef" * 32]
    return {
        "kvcs": 1,
        "compat": descriptor.to_json(),
        "layers": 2,
        "block_tokens": 4,
        "deterministic": False,
        "segments": [
            {
                "segment": 0,
                "first_block": 0,
                "blocks": 3,
                "block_keys_sha256": block_keys_sha256(block_keys[:3]).hex(),
                "tracks": ["k.raw.s0", "v.raw.s0"],
                "complete": True,
                "object_digests": {"k.raw.s0": [group, group], "v.raw.s0": [group, group]},
            },
            {
                "segment": 1,
                "first_block": 3,
                "blocks": 2,
                "block_keys_sha256": block_keys_sha256(block_keys[3:]).hex(),
                "tracks": ["k.raw.s1", "v.raw.s1"],
                "complete": False,
            },
        ],
    }

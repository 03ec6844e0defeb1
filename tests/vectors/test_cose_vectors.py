"""Messages that the specifications print are opened with the keys that they print."""

import json
from pathlib import Path

import pytest

from kvcs.cose import Curve, VerifyingKey, open_sign1

SIGN1 = json.loads((Path(__file__).parent / "cose" / "sign1.json").read_text())["vectors"]


@pytest.mark.parametrize("vector", SIGN1, ids=lambda vector: vector["name"])
def test_a_published_signature_opens(vector):
    kid = vector["kid"].encode()
    key = VerifyingKey(kid, Curve(vector["crv"]), bytes.fromhex(vector["public"]))

    opened = open_sign1(bytes.fromhex(vector["hex"]), [key])

    assert opened.payload == bytes.fromhex(vector["payload"])
    assert opened.kid == kid

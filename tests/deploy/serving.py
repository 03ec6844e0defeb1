"""Whether a relay that runs under the rules of a deployment serves."""

import secrets

import kvcs.cli
from kvcs.engines.file import SAMPLE_CACHE

__all__ = ("serves",)


def serves(port, ca_file, place):
    """Publish the sample through a relay, take it when the publisher is gone, and compare."""
    key, out = place / "scope.key", place / "out.safetensors"
    key.write_text(secrets.token_hex(32))
    url = f"moqt://127.0.0.1:{port}/"
    member = ("--scope-key-file", key, "--ca", ca_file, "--timeout", "20s")
    commands = (
        ("publish", SAMPLE_CACHE, "--url", url, *member, "--push", "--exit-when-delivered"),
        ("fetch", url, "--like", SAMPLE_CACHE, *member, "-o", out),
    )
    codes = [int(kvcs.cli._run([str(word) for word in words])) for words in commands]
    return codes == [0, 0] and out.read_bytes() == SAMPLE_CACHE.read_bytes()

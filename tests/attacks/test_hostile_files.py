"""Files and peers that want to hurt whoever looks at them: one sentence, bounded, no tricks."""

import json
import logging
import random
from importlib.resources import files

import pytest

from kvcs.cli import main
from kvcs.cli._output import TextFormatter
from kvcs.cli._text import printable
from kvcs.engines.file import load_cache
from kvcs.errors import KvcsError, RequestRejected

SAMPLE = files("kvcs") / "data" / "alice.safetensors"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\n"


@pytest.fixture(scope="module")
def sample():
    data = SAMPLE.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def assemble(header, body):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + body


def with_descriptor(header, **changes):
    metadata = header["__metadata__"]
    compat = {**json.loads(metadata["kvcs.compat"]), **changes}
    return {**header, "__metadata__": {**metadata, "kvcs.compat": json.dumps(compat)}}


def inspected(path, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(["inspect", str(path)])
    out, err = capsys.readouterr()
    return exit_info.value.code, out, err


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 2**31},
        {"block_tokens": 2**40},
        {"kv_heads": 2**20, "head_dim": 2**20},
        {"layers": -1},
        {"layers": True},
        {"dtype": ESCAPES},
        {ESCAPES: 1.5},
        {"nested": [[[[]]]]},
    ],
    ids=str,
)
def test_descriptor_that_lies_is_refused_in_one_sentence(sample, tmp_path, capsys, changes):
    header, body = sample
    path = tmp_path / "x.safetensors"
    path.write_bytes(assemble(with_descriptor(header, **changes), body))

    code, out, err = inspected(path, capsys)

    assert code == 7
    assert out == ""
    assert len(err.splitlines()) == 2
    assert "\x1b" not in err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234567",
        (2**63).to_bytes(8, "little") + b"{}",
        assemble(b"[" * 1_000_000, b""),
        assemble(b'{"a":' * 200_000, b""),
        assemble(b"{}", b""),
        assemble({"__metadata__": ESCAPES}, b""),
        assemble({"__metadata__": {"kvcs.format": ESCAPES}}, b""),
        assemble({ESCAPES: {"dtype": "U8", "shape": [2**40], "data_offsets": [0, 2**40]}}, b""),
    ],
    ids=lambda content: f"{content[:12]!r}",
)
def test_file_that_is_no_cache_is_refused_in_one_sentence(tmp_path, capsys, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)

    code, out, err = inspected(path, capsys)

    assert code == 7
    assert out == ""
    assert len(err.splitlines()) == 2
    assert "\x1b" not in err


def test_file_cannot_act_on_the_terminal(sample, tmp_path, capsys):
    header, body = sample
    path = tmp_path / "x.safetensors"
    path.write_bytes(assemble(with_descriptor(header, position=ESCAPES), body))

    code, out, _ = inspected(path, capsys)

    assert code == 0
    assert printable(out, keep="\n") == out
    assert r"\x1b]0;owned" in out


@pytest.mark.parametrize("part", range(4))
def test_damaged_file_is_refused_or_whole(tmp_path, part):
    """Bits flipped, octets lost or added, mostly in the header."""
    chance = random.Random(part)
    genuine = SAMPLE.read_bytes()
    length = 8 + int.from_bytes(genuine[:8], "little")
    path = tmp_path / "x.safetensors"
    for _ in range(60):
        data = bytearray(genuine)
        place = chance.randrange(length if chance.random() < 0.8 else len(data))
        match chance.randrange(4):
            case 0:
                data[place] ^= 1 << chance.randrange(8)
            case 1:
                del data[place : place + chance.randrange(1, 9)]
            case 2:
                data[place:place] = chance.randbytes(chance.randrange(1, 9))
            case _:
                del data[place:]
        path.write_bytes(data)
        try:
            cache = load_cache(path)
        except KvcsError:
            continue
        assert len(cache.layers) == cache.descriptor.layers


def test_words_of_a_peer_stay_on_one_line_of_the_log():
    error = RequestRejected(0x1, f"no{ESCAPES}2026-01-01 INFO all is well")
    record = logging.makeLogRecord({"msg": "refused: %s", "args": (error,), "levelname": "INFO"})

    line = TextFormatter().format(record)

    assert line.isprintable()

"""What a person sees: results on standard output, one sentence and one hint for every failure."""

import json
import os
import stat

import pytest

import kvcs.cli
from kvcs.engines.file import SAMPLE_CACHE, CacheFile, load_cache, save_cache


def test_help_starts_with_examples_and_lists_the_commands(kvcs_run):
    code, out, _ = kvcs_run("--help")

    assert code == 0
    assert out.index("Examples:") < out.index("Commands:")
    assert "demo" in out
    assert "demo-node" not in out


@pytest.mark.parametrize(
    ("group", "sentence"),
    [
        ("scope", "Make a scope key in the key ring, or in the file PATH, and show its Scope ID."),
        ("relay", "Check the settings in FILE, and name everything that is wrong."),
    ],
)
def test_group_lists_its_commands_with_whole_sentences(kvcs_run, group, sentence):
    code, out, _ = kvcs_run(group, "--help")

    assert code == 0
    assert sentence in " ".join(out.split())
    assert "..." not in out.partition("Commands:")[2]


def test_version_names_package_draft_and_library(kvcs_json):
    assert kvcs_json("version").keys() == {"kvcs", "moqt", "kvcs_namespace", "aiopquic"}


def test_version_option_is_the_first_line_of_the_command(kvcs_run):
    code, out, _ = kvcs_run("--version")
    _, whole, _ = kvcs_run("version")

    assert code == 0
    assert out.splitlines() == whole.splitlines()[:1]
    assert out.startswith("kvcs ")


def test_new_scope_key_is_private_and_has_the_shown_scope_id(kvcs_json, tmp_path):
    path = tmp_path / "scope.key"

    shown = kvcs_json("scope", "new", path)
    inspected = kvcs_json("inspect", SAMPLE_CACHE, "--scope-key-file", path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert inspected["ids"]["scope_id"] == shown["scope_id"]


def test_file_is_inspected_with_its_identifiers_and_without_the_key(kvcs_run, tmp_path):
    path = tmp_path / "scope.key"
    path.write_text("ab" * 32)

    code, out, err = kvcs_run("inspect", SAMPLE_CACHE, "--scope-key-file", path, "--json")
    shown = json.loads(out)

    assert code == 0
    assert "ab" * 32 not in out + err
    assert (shown["blocks"], shown["layers"], len(shown["tokens"])) == (4, "0-29", 256)
    assert len(shown["ids"]["block_keys"]) == 4
    assert shown["descriptor"]["dtype"] == "bfloat16"


def test_file_is_inspected_without_a_key(kvcs_run):
    code, out, _ = kvcs_run("inspect", SAMPLE_CACHE)

    assert code == 0
    assert "blocks           4 blocks of 64 tokens (256 tokens)" in out
    assert "Scope ID" not in out


FAILURES = {
    "unknown command": (["fly"], 2, "fly"),
    "unknown option": (["demo", "--fly"], 2, "--fly"),
    "a file that is none": (["inspect", "BAD"], 7, "not a KV cache"),
    "a file that is not there": (["inspect", "nothing"], 2, "does not exist"),
    "a file that is not there to publish": (
        ["publish", "nothing", "--url", "moqt://x/", "KEY"],
        2,
        "does not exist",
    ),
    "a file that is not there to fetch the like of": (
        ["fetch", "moqt://x/", "--like", "nothing", "KEY"],
        2,
        "does not exist",
    ),
    "a folder to inspect": (["inspect", "."], 2, "is a directory"),
    "an output in a folder that is not there": (
        ["fetch", "moqt://x/", "--like", "SAMPLE", "-o", "nowhere/out", "KEY"],
        2,
        "--output",
    ),
    "an output in a folder that is a file": (
        ["fetch", "moqt://x/", "--like", "SAMPLE", "-o", "bad/out", "KEY"],
        2,
        "--output",
    ),
    "a key file that is none": (
        ["inspect", "SAMPLE", "--scope-key-file", "BAD"],
        2,
        "--scope-key-file: expected 32 octets or 64 hex digits, got bad: 29 octets",
    ),
    "a key to sign tokens with that is not there": (
        ["token", "mint", "--role", "relay", "--scope", "all", "--key-file", "nothing"],
        2,
        "--key-file: expected a readable file, got nothing: not there",
    ),
    "a token file that is none": (
        ["token", "inspect", "BAD"],
        2,
        "FILE: expected a CWT, in base64url or as octets, got bad",
    ),
    "a token file that holds nothing": (
        ["fetch", "moqt://x/", "--like", "SAMPLE", "--token-file", "empty", "KEY"],
        2,
        "--token-file: expected a token of 1..16384 octets, got empty",
    ),
    "an authority without a certificate": (
        ["fetch", "moqt://x/", "--like", "SAMPLE", "--ca", "BAD", "KEY"],
        2,
        "--ca: expected a PEM file with certificates, got bad: no certificate in it",
    ),
    "a key ring that is not there": (
        ["keys", "list", "--keys", "nothing"],
        2,
        "nothing: key ring: expected a directory or a file, got one that is not there",
    ),
    "relay settings that are no TOML": (
        ["relay", "run", "--config", "BAD"],
        2,
        "bad: the file: expected TOML",
    ),
    "a key file that is not there": (
        ["inspect", "SAMPLE", "--scope-key-file", "nothing"],
        2,
        "a readable file",
    ),
    "a key that is there already": (["scope", "new", "BAD"], 2, "a file that is not there yet"),
    "a URL of another scheme": (["fetch", "http://x/", "--like", "SAMPLE", "KEY"], 2, "moqt://"),
    "a fragment that is none": (["fetch", "moqt://x/#a", "KEY"], 2, "#kvcs:"),
    "a namespace that is none": (["fetch", "moqt://x/#kvcs:aa-bb", "KEY"], 2, "publication"),
    "nothing to fetch": (["fetch", "moqt://x/", "KEY"], 2, "--like FILE"),
    "two ways to say what to fetch": (
        ["fetch", "moqt://x/", "--like", "SAMPLE", "--tokens", "BAD", "KEY"],
        2,
        "beside it",
    ),
    "tokens that are none": (
        ["fetch", "moqt://x/", "--tokens", "BAD", "--compat", "BAD", "KEY"],
        2,
        "a JSON array",
    ),
    "a descriptor that is none": (
        ["fetch", "moqt://x/", "--tokens", "TOKENS", "--compat", "BAD", "KEY"],
        7,
        "descriptor",
    ),
    "layers that are none": (["fetch", "moqt://x/", "--layers", "9-1", "KEY"], 2, "9-1"),
    "a URL without its scope": (["inspect", "moqt://x/"], 2, "--scope-key-file"),
    "skipped checks towards elsewhere": (
        ["inspect", "moqt://192.0.2.1/", "--insecure-loopback", "KEY"],
        2,
        "towards this machine",
    ),
    "a public relay without permission": (
        ["relay", "run", "--host", "0.0.0.0", "--dev-cert", "DIR"],
        2,
        "--allow-anyone",
    ),
    "a relay without certificate": (["relay", "run"], 2, "--dev-cert"),
    "a relay with two certificates": (
        ["relay", "run", "--dev-cert", "DIR", "--cert", "BAD"],
        2,
        "beside it",
    ),
    "a certificate that is none": (
        ["relay", "run", "--port", "0", "--cert", "BAD", "--key", "BAD"],
        2,
        "certificate",
    ),
    "a cache too small": (["relay", "run", "--dev-cert", "DIR", "--cache-bytes", "1KiB"], 2, "at"),
    "a damaged file to publish": (["publish", "BAD", "--url", "moqt://x/", "KEY"], 7, "KV cache"),
    "two ways to leave": (
        [
            "publish",
            "SAMPLE",
            "--url",
            "moqt://x/",
            "--linger",
            "1",
            "--exit-when-delivered",
            "KEY",
        ],
        2,
        "beside it",
    ),
    "more blocks than the prompt has": (
        ["fetch", "moqt://x/", "--like", "SAMPLE", "--blocks", "9", "KEY"],
        2,
        "at most 4, the whole blocks of the prompt",
    ),
    "a prompt shorter than a block": (
        ["fetch", "moqt://x/", "--tokens", "TOKENS", "--compat", "COMPAT", "KEY"],
        2,
        "at least one block",
    ),
    "too few digits of an ID": (
        ["fetch", "moqt://x/#kvcs:0123456", "KEY"],
        2,
        "8 to 32 hex digits",
    ),
    "the whole of kvcs inspect as a descriptor": (
        ["fetch", "moqt://x/", "--tokens", "TOKENS", "--compat", "INSPECTED", "KEY"],
        2,
        "the member descriptor",
    ),
    "a demo that cannot recompute": (["demo", "--engine", "file", "--kill-relay"], 2, "engine"),
}


@pytest.fixture
def fail(kvcs_run, tmp_path, monkeypatch):
    """Run a command of `FAILURES` in a directory that has what they name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").write_bytes(b"this is not what it should be")
    (tmp_path / "key").write_text("cd" * 32)
    (tmp_path / "empty").touch()
    (tmp_path / "tokens").write_text("[1, 2, 3]")
    (tmp_path / "descriptor").write_bytes(load_cache(SAMPLE_CACHE).descriptor.canonical())
    (tmp_path / "inspected").write_text('{"file": "x", "descriptor": {"layers": 1}}')
    places = {
        "SAMPLE": [str(SAMPLE_CACHE)],
        "BAD": ["bad"],
        "DIR": ["certificate"],
        "TOKENS": ["tokens"],
        "COMPAT": ["descriptor"],
        "INSPECTED": ["inspected"],
        "KEY": ["--scope-key-file", "key"],
    }

    def run(name, *more):
        words = FAILURES[name][0]
        return kvcs_run(*(part for word in words for part in places.get(word, [word])), *more)

    return run


@pytest.mark.parametrize("name", FAILURES)
def test_failure_is_one_sentence_and_one_hint(fail, name):
    _, expected, words = FAILURES[name]

    code, out, err = fail(name)

    assert code == expected, err
    assert words in err
    assert "Traceback" not in err
    assert out == ""
    assert "cd" * 32 not in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize("name", FAILURES)
def test_failure_is_one_json_object_for_programs(fail, name):
    _, expected, words = FAILURES[name]

    code, out, err = fail(name, "--json")

    assert code == expected, err
    assert out == ""
    (line,) = err.splitlines()
    shown = json.loads(line)
    assert shown.keys() == {"error"}
    assert shown["error"].keys() == {"code", "message", "hint", "exit_code"}
    assert shown["error"]["exit_code"] == expected
    assert words in shown["error"]["message"]
    assert shown["error"]["hint"]


@pytest.mark.parametrize("place", ["variable", "file", "not at all", "after the options"])
def test_form_of_a_failure_is_chosen_as_that_of_a_result(kvcs_run, tmp_path, monkeypatch, place):
    (tmp_path / "bad").write_bytes(b"bad")
    (tmp_path / "settings.toml").write_text("json = true")
    more = {"file": ("--config", tmp_path / "settings.toml"), "after the options": ("--",)}
    if place == "variable":
        monkeypatch.setenv("KVCS_JSON", "1")
    words = ("--json",) if place == "after the options" else (tmp_path / "bad",)

    code, _, err = kvcs_run("inspect", *more.get(place, ()), *words)

    assert code != 0
    assert err.startswith('{"error"') is (place in {"variable", "file"})


def test_interruption_is_told_to_programs_alone(kvcs_run, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("kvcs.cli.inspect.load_cache", interrupt)

    _, _, silent = kvcs_run("inspect", SAMPLE_CACHE)
    code, _, err = kvcs_run("inspect", SAMPLE_CACHE, "--json")

    assert not silent.strip()
    assert code == 130
    assert json.loads(err.splitlines()[-1])["error"]["code"] == "interrupted"


@pytest.mark.parametrize("place", ["nowhere", "locked"])
def test_output_that_cannot_be_written_is_refused_before_connecting(
    kvcs_run, tmp_path, monkeypatch, place
):
    really = os.access

    def access(path, mode):
        return str(path) != f"{tmp_path}/locked/" and really(path, mode)

    def fail(*_, **__):
        raise AssertionError("connected")

    (tmp_path / "locked").mkdir()
    (tmp_path / "key").write_text("cd" * 32)
    # Whoever runs the tests may be allowed to write everywhere.
    monkeypatch.setattr("kvcs.cli.fetch.os.access", access)
    monkeypatch.setattr("kvcs.cli.fetch.connect", fail)
    options = ("--like", SAMPLE_CACHE, "--scope-key-file", tmp_path / "key")

    code, _, err = kvcs_run("fetch", "moqt://x/", *options, "-o", tmp_path / place / "out")

    assert code == 2
    assert "a folder that exists and can be written" in err
    assert "Make the folder first" in err


def test_file_of_some_layers_says_that_it_cannot_be_published(kvcs_run, tmp_path):
    cache = load_cache(SAMPLE_CACHE)
    path, key = tmp_path / "part.safetensors", tmp_path / "key"
    layers = {layer_index: cache.layers[layer_index] for layer_index in range(15)}
    save_cache(path, CacheFile(descriptor=cache.descriptor, tokens=cache.tokens, layers=layers))
    key.write_text("cd" * 32)

    code, _, err = kvcs_run("publish", path, "--url", "moqt://x/", "--scope-key-file", key)

    assert code == 7
    assert "has layers 0-14 of 30, and a publication has all of them" in err
    assert "fetch again without it" in err


def test_file_that_cannot_be_read_is_no_matter_of_what_is_in_it(kvcs_run, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("kvcs.engines.file._read", refuse)

    code, _, err = kvcs_run("inspect", SAMPLE_CACHE)

    assert code == 2
    assert "cannot be read: Permission denied" in err
    assert "Nothing of it was used" not in err


def test_debug_variable_shows_where_it_happened(kvcs_run, monkeypatch, tmp_path):
    monkeypatch.setenv("KVCS_DEBUG", "1")
    (tmp_path / "bad").write_bytes(b"bad")

    code, _, err = kvcs_run("inspect", tmp_path / "bad")

    assert code == 7
    assert "Traceback" in err


def test_bug_is_one_sentence_too(kvcs_run, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("no")

    monkeypatch.setattr("kvcs.cli.inspect.load_cache", fail)

    code, _, err = kvcs_run("inspect", SAMPLE_CACHE)

    assert code == 1
    assert "unexpected ZeroDivisionError: no" in err
    assert "bug in kvcs" in err


@pytest.mark.parametrize(
    ("error", "expected"),
    [(KeyboardInterrupt(), 130), (TimeoutError(), 124)],
    ids=["ctrl-c", "time"],
)
def test_ends_that_are_no_error_of_ours_have_their_codes(kvcs_run, monkeypatch, error, expected):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("kvcs.cli.inspect.load_cache", fail)

    code, _, err = kvcs_run("inspect", SAMPLE_CACHE)

    assert code == expected
    assert "Traceback" not in err


def test_main_exits_with_the_code():
    with pytest.raises(SystemExit) as stopped:
        kvcs.cli.main(["inspect", "nothing"])

    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["fetch", "http://x/", "--tokens", "x"], "kvcs fetch"),
        (["relay", "run", "--port", "0"], "kvcs relay run"),
        (["top", "--interval", "1ms"], "kvcs top"),
    ],
)
def test_advice_to_read_the_help_names_the_command(kvcs_run, tmp_path, arguments, command):
    (tmp_path / "x").touch()
    named = [str(tmp_path / "x") if argument == "x" else argument for argument in arguments]

    code, _, err = kvcs_run(*named)

    assert code == 2
    assert err.endswith(f"  See {command} --help.\n")


def test_a_misspelt_command_is_told_the_one_that_is_meant(kvcs_run):
    code, _, err = kvcs_run("fetsh", "moqt://127.0.0.1:9/")
    assert (code, "No such command 'fetsh'. Did you mean 'fetch'?" in err) == (2, True)

    code, _, err = kvcs_run("nothing-like-it")
    assert (code, "No such command 'nothing-like-it'." in err) == (2, True)

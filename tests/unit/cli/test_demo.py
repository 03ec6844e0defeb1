"""The demo command around its scenario: what it prints, and how it ends."""

import json

import pytest

from kvcs.cli.demo.messages import Compared, RelayCounters, Retrieved
from kvcs.cli.demo.portion import Portion
from kvcs.cli.demo.scenario import DemoResult, Scenario


@pytest.fixture
def perform(monkeypatch, kvcs_run):
    """Run the command with a scenario that ends as told."""

    def run(*arguments, equal, succeeded, compared=None, late=None):
        retrieved = Retrieved(
            complete=succeeded,
            verified=3,
            rejected=0,
            missing=0 if succeeded else 5,
            duplicate=0,
            excess=0,
            payload_bytes=7,
            first_layer_s=None,
            last_layer_s=None,
            layers=1,
            blocks=1,
            text="the words",
            reused_tokens=4,
            time_to_first_token=0.5 if compared else None,
        )

        def portion(name, *, is_late=False):
            return Portion(
                name,
                is_late=is_late,
                retrieved=retrieved,
                compared=compared,
                has_equal_bytes=equal,
                is_equal=equal,
            )

        result = DemoResult(
            portions=[portion("live")],
            late=None if late is None else portion(late, is_late=True),
            relay=RelayCounters(bytes_in=1, bytes_out=2, upstream_subscriptions=3),
            equal=equal,
            succeeded=succeeded,
        )

        async def play(_):
            return result

        monkeypatch.setattr(Scenario, "run", play)
        return kvcs_run("demo", "--engine", "file", *arguments)

    return run


def test_success_is_code_0_and_exactly_the_documented_object(perform):
    code, out, err = perform("--json", equal=True, succeeded=True)

    assert code == 0, err
    assert json.loads(out) == {
        "consumers": [
            {
                "name": "live",
                "objects_verified": 3,
                "objects_rejected": 0,
                "objects_missing": 0,
                "objects_duplicate": 0,
                "objects_excess": 0,
                "bytes": 7,
                "first_layer_s": None,
                "last_layer_s": None,
            }
        ],
        "relay": {"bytes_in": 1, "bytes_out": 2, "upstream_subscriptions": 3},
        "equal": True,
        "late": None,
    }


def test_consumer_that_came_late_is_an_object_of_its_own(perform):
    compared = Compared(is_equal=True, time_to_first_token=2.0, tokens=8)

    code, out, err = perform("--json", equal=True, succeeded=True, compared=compared, late="late")
    shown = json.loads(out)

    assert code == 0, err
    assert [consumer["name"] for consumer in shown["consumers"]] == ["live"]
    assert shown["late"] == {
        **shown["consumers"][0],
        "name": "late",
        "reused_tokens": 4,
        "decoded_tokens": 8,
        "equal": True,
        "first_token_s": 0.5,
        "alone_first_token_s": 2.0,
    }


def test_people_see_how_much_faster_reuse_was_and_what_the_times_count(perform):
    compared = Compared(is_equal=True, time_to_first_token=2.0, tokens=8)

    _, out, _ = perform(equal=True, succeeded=True, compared=compared, late="late")
    (row,) = [line for line in out.splitlines() if "was in the relay" in line]

    assert " ".join(row.split()) == "late 4 was in the relay 0.500 s 2.000 s 4.0 8 equal"
    assert "decoded: 'the words'" in out
    assert "late counts from before it connects" in out
    assert all(len(line) <= 90 for line in out.splitlines())


@pytest.mark.parametrize("equal", [True, False], ids=["missing", "different"])
def test_anything_missing_or_different_is_code_7_and_still_reported(perform, equal):
    code, out, _ = perform("--json", equal=equal, succeeded=False)

    assert code == 7
    assert json.loads(out)["equal"] is equal


@pytest.mark.parametrize(
    ("compared", "words"),
    [
        (None, "every byte is the same; there was no model, so no token was decoded"),
        (
            Compared(is_equal=True, time_to_first_token=0.1, tokens=8),
            "every byte and every token is the same",
        ),
    ],
    ids=["file", "model"],
)
def test_people_are_told_what_was_compared(perform, compared, words):
    code, out, _ = perform(equal=True, succeeded=True, compared=compared)

    assert code == 0
    assert out.splitlines()[-1] == words


def test_people_are_told_that_it_failed(perform):
    code, out, err = perform(equal=False, succeeded=False)

    assert code == 7
    assert "kvcs: something differs or is missing" in err
    assert "DIFFERENT" in out
    assert "is the same" not in out

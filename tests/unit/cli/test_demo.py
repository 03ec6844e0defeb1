"""The demo command around its scenario: what it prints, and how it ends."""

import json

import pytest

from kvcs.cli.demo.messages import Compared, RelayCounters, Retrieved
from kvcs.cli.demo.portion import Portion
from kvcs.cli.demo.scenario import DemoResult, Scenario


@pytest.fixture
def perform(monkeypatch, kvcs_run):
    """Run the command with a scenario that ends as told."""

    def run(*arguments, equal, succeeded, compared=None):
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
        )
        result = DemoResult(
            portions=[Portion("live", retrieved=retrieved, compared=compared, is_equal=equal)],
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
    }


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
    code, out, _ = perform(equal=False, succeeded=False)

    assert code == 7
    assert "FAILED" in out
    assert "DIFFERENT" in out

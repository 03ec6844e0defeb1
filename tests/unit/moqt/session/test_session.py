"""What is true of the session as a whole, whatever its parts do."""

import pytest

from kvcs.moqt.session.aliases import Aliases
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.object import Object
from kvcs.moqt.wire.subgroup import SubgroupHeader
from kvcs.moqt.wire.subscribe import SubscribeOk
from kvcs.names import FullTrackName, TrackNamespace

TRACK = FullTrackName(TrackNamespace((b"kvcs",)), b"t")


def parts_of(value, seen=None):
    """Yield every object of the session package that `value` holds."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if type(value).__module__.startswith("kvcs.moqt.session"):
        yield value
    slots = getattr(type(value), "__slots__", None) or getattr(value, "__dict__", ())
    for name in slots if hasattr(value, "__class__") else ():
        yield from parts_of(getattr(value, name, None), seen)
    if isinstance(value, dict):
        for item in list(value.values()):
            yield from parts_of(item, seen)


def test_texts_of_all_parts_are_short_and_show_no_payload(pair):
    pair.client.subscribe(TRACK, now=0)
    pair.run()
    pair.server.accept_subscribe(0, now=0)
    header = SubgroupHeader(track_alias=0, group_id=1, subgroup_id=0, publisher_priority=5)
    stream_id = pair.server.open_subgroup(0, header, priority=4, now=0)
    obj = Object(
        group_id=1, object_id=0, subgroup_id=0, publisher_priority=5, payload=b"secret" * 9
    )
    pair.server.send_object(stream_id, obj, now=0)
    actions = pair.server.take_actions()
    for action in actions:
        if hasattr(action, "data"):
            pair.client.receive_stream(action.stream_id, action.data[:30], False, now=0)

    parts = [*parts_of(pair.client), *parts_of(pair.server)]

    with_text = [part for part in parts if type(part).__repr__ is not object.__repr__]
    assert {type(part).__name__ for part in with_text} >= {
        "Session",
        "Registry",
        "Request",
        "IncomingStreams",
        "OutgoingStreams",
        "DataStream",
        "HeldStreams",
        "MessageStream",
        "Aliases",
        "TokenCache",
        "Deadlines",
    }
    for part in with_text:
        if isinstance(part, Session) or not hasattr(type(part), "__dataclass_fields__"):
            assert "secret" not in repr(part)
            assert len(repr(part)) < 200


def test_memory_of_retired_aliases_is_bounded(to_client):
    peer = to_client(max_tombstones=1)
    for stream_id in (0, 4):
        peer.session.subscribe(TRACK, now=0)
        peer.say(stream_id, SubscribeOk(track_alias=stream_id))
    for request_id in (0, 2):
        peer.session.cancel(request_id, now=0)

    aliases = next(part for part in parts_of(peer.session) if isinstance(part, Aliases))

    assert repr(aliases) == "Aliases(0 in use, 1 retired)"
    assert not aliases.is_retired(0)
    assert aliases.is_retired(4)


@pytest.mark.parametrize("method", ["take_actions", "take_events"])
def test_what_was_taken_is_not_given_again(pair, method):
    pair.client.subscribe(TRACK, now=0)
    pair.run()

    assert getattr(pair.client, method)() == []

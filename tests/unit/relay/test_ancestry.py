import pytest

from kvcs.moqt.session.limits import SessionConfig, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.relay.ancestry import MAX_ANCESTORS, RELAY_ANCESTRY, Ancestry

ME, ONE, TWO, THREE = (bytes([number]) * 16 for number in range(4))


def options(*octets):
    return SetupOptions(unknown=tuple((RELAY_ANCESTRY, value) for value in octets))


@pytest.mark.parametrize("ancestors", [(), (ONE,), (ONE, TWO, THREE)])
def test_place_travels_in_a_setup_option(ancestors):
    place = Ancestry(ME, ancestors)

    sent = SetupOptions(unknown=(place.encode(), (0x9D, b"grease")))

    assert Ancestry.decode(SetupOptions.decode(sent.encode())) == place


@pytest.mark.parametrize(
    "values",
    [
        (),
        (b"",),
        (bytes(15),),
        (bytes(17),),
        (bytes(16 * (MAX_ANCESTORS + 2)),),
        (bytes(16), bytes(16)),
    ],
)
def test_option_of_another_form_says_nothing(values):
    assert Ancestry.decode(options(*values)) is None


def test_code_point_is_private_and_no_grease():
    assert RELAY_ANCESTRY % 2 == 1
    assert (RELAY_ANCESTRY - 0x9D) % 0x7F


def test_foreign_session_ignores_the_option():
    session = Session(Side.SERVER, SessionConfig())
    client = Session(
        Side.CLIENT, SessionConfig(options=SetupOptions(unknown=(Ancestry(ME).encode(),)))
    )
    client.start(now=0.0)
    session.start(now=0.0)
    for action in client.take_actions():
        if hasattr(action, "data"):
            session.receive_stream(action.stream_id, action.data, False, now=0.0)

    assert not session.is_closed
    assert session.peer_options is not None


def test_relay_is_refused_as_a_parent_where_that_would_close_a_circle():
    me = Ancestry(ME)

    assert me.refusal_of_parent(Ancestry(ONE, (TWO,))) is None
    assert me.refusal_of_parent(Ancestry(ME)) == "it is this relay itself"
    assert me.refusal_of_parent(Ancestry(ONE, (TWO, ME))) == "this relay is above it already"


def test_relay_at_the_greatest_depth_is_refused_as_a_parent():
    ancestors = tuple(bytes([100 + number]) * 16 for number in range(MAX_ANCESTORS))

    assert Ancestry(ME).refusal_of_parent(Ancestry(ONE, ancestors[1:])) is None
    assert "above one another" in Ancestry(ME).refusal_of_parent(Ancestry(ONE, ancestors))


def test_relay_above_is_refused_as_a_child():
    me = Ancestry(ME, (ONE, TWO))

    assert me.refusal_of_child(Ancestry(THREE)) is None
    assert me.refusal_of_child(Ancestry(TWO)) is not None
    assert me.refusal_of_child(Ancestry(ME)) is not None

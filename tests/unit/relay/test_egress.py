"""What waits for all subscribers together."""

from kvcs.relay.egress import LOOK_INTERVAL, MIN_SHARE_BYTES, EgressBudget

MIB = 2**20


def test_alone_a_session_gets_what_its_transport_takes():
    budget = EgressBudget(64 * MIB)

    assert budget.grant("a", 0, 4 * MIB) == 4 * MIB


def test_sum_of_all_is_bounded():
    budget = EgressBudget(8 * MIB)
    for name in range(100):
        budget.sent(name, budget.grant(name, 0, 4 * MIB))

    assert budget.queued_bytes <= 8 * MIB + 98 * MIN_SHARE_BYTES


def test_those_who_read_go_on_when_others_have_taken_everything():
    budget = EgressBudget(8 * MIB)
    for name in ("stalled", "also stalled"):
        budget.sent(name, budget.grant(name, 0, 4 * MIB))

    assert budget.grant("reader", 0, 4 * MIB) == MIN_SHARE_BYTES
    assert budget.grant("reader", MIN_SHARE_BYTES // 2, 4 * MIB) == MIN_SHARE_BYTES // 2
    assert budget.grant("reader", MIN_SHARE_BYTES, 4 * MIB) == 0


def test_what_is_taken_makes_room_for_others():
    budget = EgressBudget(8 * MIB)
    for name in ("a", "b"):
        budget.sent(name, budget.grant(name, 0, 4 * MIB))
    budget.grant("a", MIB, 3 * MIB)

    assert budget.grant("c", 0, 4 * MIB) == 3 * MIB


def test_session_that_is_over_leaves_its_share():
    budget = EgressBudget(8 * MIB)
    budget.sent("a", budget.grant("a", 0, 8 * MIB))
    budget.forget("a")
    budget.forget("a")

    assert budget.queued_bytes == 0


def test_who_takes_nothing_is_known_and_who_takes_little_is_not():
    budget = EgressBudget(8 * MIB)
    for name in ("stalled", "slow", "idle"):
        budget.grant(name, 0, MIB)
    budget.sent("stalled", MIB)
    budget.sent("slow", MIB)

    stalled = [budget.look("stalled", MIB, now=float(now)) for now in range(0, 100, 10)]
    slow = [budget.look("slow", MIB - now, now=float(now)) for now in range(0, 100, 10)]
    idle = [budget.look("idle", 0, now=float(now)) for now in range(0, 100, 10)]

    assert stalled[-1] == 90.0
    assert max(slow) == 0.0
    assert max(idle) == 0.0


def test_who_takes_something_between_two_looks_is_not_stalled():
    budget = EgressBudget(8 * MIB)
    budget.grant("a", 0, MIB)
    budget.sent("a", MIB)
    budget.look("a", MIB, now=0.0)
    budget.grant("a", MIB // 2, MIB)
    budget.sent("a", MIB // 2)

    assert budget.look("a", MIB, now=50.0) == 0.0


def test_whoever_has_most_waiting_goes_when_messages_make_it_twice_what_is_granted():
    budget = EgressBudget(8 * MIB)
    for name in ("a", "b"):
        budget.sent(name, budget.grant(name, 0, 4 * MIB))
    most = 2 * (8 * MIB + 2 * MIN_SHARE_BYTES) - 4 * MIB
    budget.grant("b", most, 0)
    before = budget.greediest()

    budget.grant("b", most + 1, 0)

    assert (before, budget.greediest()) == (None, "b")
    budget.forget("b")
    assert budget.greediest() is None


def test_what_has_drained_in_silence_is_found_when_all_are_counted_anew():
    budget = EgressBudget(8 * MIB)
    waiting = {}
    for name in ("a", "b"):
        waiting[name] = budget.grant(name, 0, 4 * MIB)
        budget.sent(name, waiting[name])
    waiting["a"] = 0
    assert budget.grant("c", 0, 4 * MIB) == MIN_SHARE_BYTES

    budget.recount(lambda name: waiting.get(name, 0), now=10.0)

    assert (budget.share("a"), budget.share("b")) == (0, 4 * MIB)
    waiting["c"] = budget.grant("c", 0, 4 * MIB)
    assert waiting["c"] == 4 * MIB
    budget.sent("c", waiting["c"])
    waiting["b"] = 0
    budget.recount(lambda name: waiting.get(name, 0), now=10.0 + LOOK_INTERVAL / 2)
    assert budget.share("b") == 4 * MIB
    budget.recount(lambda name: waiting.get(name, 0), now=10.0 + LOOK_INTERVAL)
    assert budget.share("b") == 0

from kvcs.moqt.track.delivery import transport_priority
from kvcs.moqt.track.outbox import MAX_STEPS
from kvcs.moqt.wire.filters import LocationFilter
from kvcs.names import Location
from kvcs.varint import MAX_VI64

KIB = 1024


def order_of(site):
    """Return what came, in the order of arrival, over all streams."""
    return [item for stream in site.received() for item in stream.split()]


def test_room_is_a_bound_that_one_object_may_exceed(new_site):
    site = new_site()
    site.subscribe()
    site.add(0, *range(10), payload=bytes(KIB))

    sent = site.outbox.send(site.publisher, room=3 * KIB, now=0.0)

    assert 3 * KIB <= sent < 4 * KIB
    assert not site.outbox.is_idle


def test_steps_of_a_call_are_bounded_however_small_the_objects(new_site):
    site = new_site()
    site.subscribe()
    site.add(0, *range(2 * MAX_STEPS + 1))

    sent = [site.outbox.send(site.publisher, room=1 << 20, now=1.0) for _ in range(2)]

    # Octets of an Object, and one more that each counts for.
    assert sent == [2 * MAX_STEPS, 2 * MAX_STEPS]
    # It goes on as soon as others have had their turn.
    assert site.outbox.next_deadline() == 1.0
    assert site.outbox.send(site.publisher, room=1 << 20, now=1.0) == 2
    assert site.outbox.next_deadline() is None
    assert site.outbox.is_idle


def test_outbox_says_since_when_it_is_behind(new_site):
    site = new_site()
    site.subscribe()
    site.add(0, *range(10), payload=bytes(KIB))
    assert site.outbox.behind_since is None

    site.outbox.send(site.publisher, room=KIB, now=1.0)
    site.outbox.send(site.publisher, room=0, now=2.0)

    assert site.outbox.behind_since == 1.0
    site.outbox.send(site.publisher, room=1 << 20, now=3.0)
    assert site.outbox.behind_since is None
    site.add(0, 10, 11, payload=bytes(KIB))
    site.outbox.send(site.publisher, room=KIB, now=4.0)
    assert site.outbox.behind_since == 4.0


def test_the_more_urgent_subscriber_is_served_first(new_site):
    site = new_site()
    slow = site.subscribe(subscriber_priority=200)
    fast = site.subscribe(subscriber_priority=100)
    site.add(0, 0, 1, payload=bytes(KIB))

    site.settle(room=2 * KIB)

    assert site.received(fast) == ["0/0 0/1"]
    assert site.received(slow) == []


def test_the_more_urgent_group_goes_first_over_all_requests(new_site):
    site = new_site()
    site.publish(layers=4, blocks=1)
    later = site.fetch(location_filter=LocationFilter.absolute_start(2, 0))
    earlier = site.fetch()

    site.settle(room=4)
    before = (site.received(later), site.received(earlier))
    site.settle()

    assert before[0] == [""]
    assert before[1][0].startswith("0/0")
    assert site.received(later) == ["2/0 3/0 FIN"]


def test_equals_take_turns_of_a_quantum(new_site):
    site = new_site()
    site.outbox._quantum_bytes = 2 * KIB
    one, other = site.subscribe(), site.subscribe()
    site.add(0, *range(4), payload=bytes(KIB))

    site.settle(room=4 * KIB)

    assert site.received(one) == ["0/0 0/1"]
    assert site.received(other) == ["0/0 0/1"]


def test_a_new_urgent_object_interrupts_a_quantum(new_site):
    site = new_site()
    low = site.subscribe(subscriber_priority=200)
    site.add(0, 0, 1, 2, payload=bytes(KIB))
    site.settle(room=1)

    high = site.subscribe(subscriber_priority=1)
    site.add(0, 3, payload=bytes(KIB))
    site.settle(room=1)

    assert site.received(high) == ["0/3"]
    assert site.received(low) == ["0/0"]


def test_a_changed_priority_applies_to_what_is_not_sent_yet(new_site):
    site = new_site()
    one, other = site.subscribe(subscriber_priority=100), site.subscribe(subscriber_priority=101)
    site.add(0, 0, 1, payload=bytes(KIB))

    site.update(other, subscriber_priority=5)
    site.settle(room=2 * KIB)

    assert (site.received(one), site.received(other)) == ([], ["0/0 0/1"])


def test_the_owner_hears_once_of_something_to_send(new_site):
    site = new_site()
    heard = []
    site.subscribe()
    site.settle()
    site.outbox.on_ready = lambda: heard.append(1)

    site.add(0, 0, 1, 2)

    assert heard == [1]
    site.settle()
    site.add(0, 3)
    assert heard == [1, 1]


def test_nothing_is_sent_after_the_session_closed(new_site):
    site = new_site()
    site.subscribe()
    site.add(0, 0)

    site.publisher.close(0, now=0.0)

    assert site.outbox.send(site.publisher, room=1 << 20, now=0.0) == 0


def test_a_request_that_the_session_forgot_is_dropped(new_site):
    site = new_site()
    request_id = site.subscribe()
    site.add(0, 0)

    site.publisher.revoke(request_id, now=0.0)

    assert site.outbox.send(site.publisher, room=1 << 20, now=0.0) == 0
    assert len(site.outbox) == 0


def test_deliveries_are_added_once_and_removed_for_good(new_site):
    site = new_site()
    request_id = site.subscribe()
    delivery = site.deliveries[request_id]

    site.outbox.remove(delivery)
    site.outbox.remove(delivery)
    site.add(0, 0)
    site.settle()

    assert site.received() == []
    assert repr(site.outbox) == "<Outbox deliveries=0 queued=0>"


def test_the_earliest_deadline_is_the_next(new_site):
    site = new_site(authoritative=False, fill_gaps=True)
    site.store.raise_largest(Location(0, MAX_VI64))
    site.fetch(fill_timeout_ms=9000)
    site.fetch(fill_timeout_ms=4000)
    site.settle()

    assert site.outbox.next_deadline() == 4.0
    site.now = 5.0
    site.settle()
    assert site.outbox.next_deadline() == 9.0


def test_what_is_over_has_no_deadline(new_site):
    site = new_site()
    site.publish(layers=1, blocks=1)
    site.fetch(fill_timeout_ms=9000)

    site.settle()

    assert site.outbox.next_deadline() is None


def test_streams_are_ranked_for_the_transport_too(new_site):
    site = new_site()
    site.publish(layers=3, blocks=1)
    site.priorities.clear()

    site.fetch()
    site.settle()

    ranks = [priority for priority in site.priorities if priority >= 4]
    assert ranks[0] == transport_priority(128, 0)


def test_transport_priorities_are_even_and_ordered():
    pairs = [(0, 0), (127, 255), (128, 0), (128, 127), (128, 255), (129, 0), (255, 255)]

    ranks = [transport_priority(*pair) for pair in pairs]

    assert ranks == sorted(ranks)
    assert all(rank % 2 == 0 and 4 <= rank <= 254 for rank in ranks)
    assert transport_priority(128, 0) < transport_priority(128, 4)

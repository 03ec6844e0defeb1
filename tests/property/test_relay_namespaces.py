"""Random operations on the relay's namespaces agree with a naive model."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.seeds import examples

from kvcs.moqt.session.actions import RequestId
from kvcs.names import TrackNamespace
from kvcs.relay.namespaces import Namespaces, PeerId, PrefixRefused, Route

# Few and short fields, so that prefixes meet: 0 to 6 fields of two letters.
FIELDS = st.lists(st.sampled_from([b"a", b"b"]), max_size=6).map(tuple)
ROUTES = st.builds(
    Route, st.integers(1, 3).map(PeerId), st.integers(0, 3).map(lambda n: RequestId(2 * n))
)


def starts_with(fields, prefix):
    return fields[: len(prefix)] == prefix


class NamespacesMachine(RuleBasedStateMachine):
    """The model knows sets and scans them; what subscribers were told must add up to it."""

    def __init__(self):
        super().__init__()
        self.namespaces = Namespaces()
        self.advertised = {}  # route -> fields
        self.subscribed = {}  # route -> prefix
        self.complete = []  # fields of complete tracks
        self.known = set()  # listed now
        self.once = set()  # listed at any time
        self.told = {}  # route -> set of suffixes

    def expected(self):
        live = set(self.advertised.values())
        kept = {
            fields
            for fields in self.once
            if any(starts_with(track, fields) for track in self.complete)
        }
        return live | kept

    def apply(self, changes):
        self.known = self.expected()
        self.once |= self.known
        for change in changes:
            suffixes = self.told[change.route]
            if change.listed:
                assert change.suffix.fields not in suffixes, "NAMESPACE twice"
                suffixes.add(change.suffix.fields)
            else:
                assert change.suffix.fields in suffixes, "NAMESPACE_DONE without NAMESPACE"
                suffixes.remove(change.suffix.fields)

    @rule(route=ROUTES, fields=FIELDS)
    def publish(self, route, fields):
        if route in self.advertised:
            self.withdraw(route)
        self.advertised[route] = fields
        self.apply(self.namespaces.publish(route, TrackNamespace(fields)))

    @rule(route=ROUTES)
    def withdraw(self, route):
        self.advertised.pop(route, None)
        self.apply(self.namespaces.withdraw(route))

    @rule(route=ROUTES, prefix=FIELDS)
    def subscribe(self, route, prefix):
        overlap = any(
            other != route
            and other.peer == route.peer
            and (starts_with(held, prefix) or starts_with(prefix, held))
            for other, held in self.subscribed.items()
        )
        try:
            changes = self.namespaces.subscribe(route, TrackNamespace(prefix))
        except PrefixRefused:
            assert overlap
            return
        assert not overlap
        self.subscribed[route] = prefix
        self.told[route] = set()
        self.apply(changes)

    @rule(route=ROUTES)
    def unsubscribe(self, route):
        self.subscribed.pop(route, None)
        self.told.pop(route, None)
        self.namespaces.unsubscribe(route)

    @rule(fields=FIELDS)
    def complete_track(self, fields):
        self.complete.append(fields)
        self.apply(self.namespaces.track_completed(TrackNamespace(fields)))

    @precondition(lambda self: self.complete)
    @rule(data=st.data())
    def lose_track(self, data):
        fields = data.draw(st.sampled_from(self.complete))
        self.complete.remove(fields)
        self.apply(self.namespaces.track_lost(TrackNamespace(fields)))

    @invariant()
    def list_agrees(self):
        assert {namespace.fields for namespace in self.namespaces.listed()} == self.known

    @invariant()
    def subscribers_know_exactly_what_matches(self):
        for route, prefix in self.subscribed.items():
            matching = {
                fields[len(prefix) :] for fields in self.known if starts_with(fields, prefix)
            }
            assert self.told[route] == matching

    @rule(fields=FIELDS)
    def publishers_agree(self, fields):
        found = self.namespaces.publishers(TrackNamespace(fields))

        matching = {
            route for route, prefix in self.advertised.items() if starts_with(fields, prefix)
        }
        assert set(found) == matching
        assert len(found) == len(matching)
        lengths = [len(self.advertised[route]) for route in found]
        assert lengths == sorted(lengths, reverse=True)


NamespacesMachine.TestCase.settings = settings(
    max_examples=examples(40), stateful_step_count=40, deadline=None
)
TestRelayNamespaces = NamespacesMachine.TestCase

"""Relays above and below the relay of a `World`."""

from tests.unit.relay.world import Client, Link

from kvcs.moqt.session import events as ev
from kvcs.moqt.session.limits import SessionConfig, Side
from kvcs.moqt.session.session import Session
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.relay.ancestry import Ancestry

NAMESPACE_REQUESTS = (
    ev.PublishNamespaceReceived,
    ev.SubscribeNamespaceReceived,
    ev.SubscribeTracksReceived,
)


def relay_id(number):
    return bytes([number]) * 16


def place(number, *ancestors):
    return Ancestry(relay_id(number), tuple(map(relay_id, ancestors)))


def config(ancestry):
    unknown = () if ancestry is None else (ancestry.encode(),)
    return SessionConfig(options=SetupOptions(max_filter_ranges=16, unknown=unknown))


class Kin(Client):
    """A relay next to the one under test; it accepts what it is asked about namespaces."""

    def answer(self, event):
        if isinstance(event, NAMESPACE_REQUESTS):
            self.received.append(event)
            if type(event) not in self.silent:
                self.session.accept(event.request_id, now=self.world.now)
            return
        super().answer(event)

    def active(self, kind):
        """Requests of one kind that it was asked and that are not over, in order."""
        return [e for e in self.asked(kind) if self.session.is_active(e.request_id)]

    def track_prefixes(self):
        """Prefixes of Tracks that are subscribed to here now, in order."""
        return [event.prefix for event in self.active(ev.SubscribeTracksReceived)]


class Parent(Kin):
    """A relay that the relay under test has dialled."""

    def __init__(self, world, ancestry=None):
        self.ancestry = ancestry
        super().__init__(world)
        world.clients.append(self)
        world.settle()

    def make_sessions(self, world):
        ours = world.core.tree.ancestry
        self.session = Session(Side.SERVER, config(self.ancestry))
        self.link = Link(world)
        self.link.session = Session(Side.CLIENT, config(ours))
        self.peer = world.core.connect(self.link, is_parent=True)

    def namespaces(self):
        """Namespaces that are announced here now, in order."""
        return [event.namespace for event in self.active(ev.PublishNamespaceReceived)]

    def prefixes(self):
        """Prefixes that are subscribed to here now, in order."""
        return [event.prefix for event in self.active(ev.SubscribeNamespaceReceived)]

    def list(self, suffix, *, index=-1):
        """Send NAMESPACE on one of the prefixes that are subscribed to."""
        active = self.active(ev.SubscribeNamespaceReceived)
        self.session.announce(active[index].request_id, suffix, now=self.world.now)
        self.world.settle()


class Child(Kin):
    """A relay that dialled the relay under test."""

    def __init__(self, world, ancestry):
        self.ancestry = ancestry
        super().__init__(world)
        world.clients.append(self)
        world.settle()

    def make_sessions(self, world):
        super().make_sessions(world)
        self.session = Session(Side.CLIENT, config(self.ancestry))

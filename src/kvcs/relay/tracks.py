"""One Track in a relay: its subscribers, its publishers, and what the cache asks of them."""

from collections.abc import Sequence

from kvcs.moqt.codepoints import GroupOrder
from kvcs.names import FullTrackName
from kvcs.relay.demand import Demand
from kvcs.relay.host import Host
from kvcs.relay.supply import Supply

__all__ = ("Track",)


class Track:
    """One Full Track Name.

    Attributes:
        name: The name.
        demand: What subscribers want.
        supply: What publishers give.
    """

    __slots__ = ("_host", "demand", "name", "supply")

    def __init__(self, name: FullTrackName, host: Host, *, now: float) -> None:
        self.name = name
        self.demand = Demand(name, host)
        self.supply: Supply = self.demand.supply
        self._host = host
        host.cache.add(self.supply.store, self, now=now)

    def __repr__(self) -> str:
        return f"<Track {self.name} {self.demand!r} {self.supply!r}>"

    @property
    def is_idle(self) -> bool:
        """Nobody receives this Track, nor is it being received, nor on its way to the disk."""
        supply = self.supply
        return supply.is_idle and self.demand.is_idle and not supply.stored.disk.is_busy

    @property
    def is_forgettable(self) -> bool:
        """Nothing would be lost with it."""
        return self.is_idle and not self.supply.store.groups()

    def needs(self, group_id: int) -> bool:
        """Tell whether a current subscriber or fetch has not passed this Group yet."""
        return any(delivery.needs(group_id) for delivery in self.demand.deliveries())

    def lost(self) -> None:
        """Note that Objects were dropped."""
        self.supply.gaps.note_loss()

    def forgotten(self) -> None:
        """Note that the store forgot all it knew; the Track is to be removed, if it can be."""
        self.supply.stored.disk.forgotten()
        self._host.track_forgotten(self.name)

    def victims(self) -> Sequence[int]:
        """Return the held Groups that are needed; the one whose loss hurts least comes first.

        That is the one that is needed last: the furthest ahead of whichever delivery comes
        to it first.
        """
        held = self.supply.store.groups()
        distances: dict[int, int] = {}
        for delivery in self.demand.deliveries():
            needed = [group_id for group_id in held if delivery.needs(group_id)]
            if delivery.terms.group_order is GroupOrder.DESCENDING:
                needed.reverse()
            for distance, group_id in enumerate(needed):
                distances[group_id] = min(distance, distances.get(group_id, distance))
        return sorted(distances, key=lambda g: (distances[g], g), reverse=True)

    def sacrifice(self, group_id: int, *, now: float) -> None:
        """Stop fetching a Group that is about to be lost."""
        self.supply.sacrifice(group_id, now=now)

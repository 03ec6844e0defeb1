"""Room for Tracks: which of them have state, and which are forgotten when there are too many.

Theory of operation. A Track has state from the first request for it until nobody uses it and
nothing of it is held. It is on the account of the session that asked first, as long as that session
lasts, so that one session cannot take the room of all others: at its bound it makes room among its
own Tracks, or is refused. When all Tracks together are too many, those that nobody uses go. Of
those, the publications that were used longest ago go first.
"""

from collections.abc import Iterable
from typing import Final

from kvcs.names import FullTrackName
from kvcs.relay.host import Host
from kvcs.relay.namespaces import PeerId
from kvcs.relay.peer import Peer
from kvcs.relay.track_table import TrackTable
from kvcs.relay.tracks import Track

__all__ = ("TrackRoom",)

_SWEEP_INTERVAL: Final = 60.0
# A peer that asks for ever new Tracks cannot make the relay look through all of them each time.
_LEAST_SWEEP_INTERVAL: Final = 1.0
# Of all Tracks, one in so many makes room at a time where nothing but held Tracks is left.
_EVICTED_SHARE: Final = 16


class _Account:
    """The Tracks that one session asked for first, and when it may make room among them."""

    __slots__ = ("next_sweep", "tracks")

    def __init__(self) -> None:
        self.next_sweep = 0.0
        self.tracks: dict[FullTrackName, None] = {}


class TrackRoom:
    """Gives Tracks their state, and takes it from those that nobody uses."""

    __slots__ = (
        "_accounts",
        "_forgotten",
        "_host",
        "_next_sweep",
        "_owners",
        "_published",
        "_tracks",
    )

    def __init__(self, host: Host, tracks: TrackTable, published: TrackTable) -> None:
        """Have no Tracks yet.

        Args:
            host: The relay around it.
            tracks: Its Tracks, none so far.
            published: Those of them for which PUBLISH came.
        """
        self._host = host
        self._tracks = tracks
        self._published = published
        self._forgotten: list[FullTrackName] = []
        self._next_sweep = 0.0
        self._accounts: dict[PeerId, _Account] = {}
        self._owners: dict[FullTrackName, PeerId] = {}

    def __repr__(self) -> str:
        return f"<TrackRoom tracks={len(self._tracks)} sessions={len(self._accounts)}>"

    def obtain(self, name: FullTrackName, peer: Peer, *, now: float) -> Track | None:
        """Return a Track that a session asks for, or None when there is no room for one more."""
        track = self._tracks.get(name)
        if track is not None:
            return track
        account = self._accounts.get(peer.id) or _Account()
        if not (self._has_room_of_its_own(account, now) and self._has_room(now)):
            return None
        if not self._tracks:
            self._host.schedule(now + _SWEEP_INTERVAL, self._sweep_regularly)
        track = Track(name, self._host, now=now)
        self._tracks.add(track)
        self._owners[name] = peer.id
        account.tracks[name] = None
        self._accounts[peer.id] = account
        return track

    def release(self, track: Track) -> None:
        """Forget a Track if nothing would be lost with it."""
        if not track.is_forgettable:
            return
        name = track.name
        self._host.cache.remove(name)
        self._host.disk.release(name)
        self._tracks.remove(name)
        if self._published.get(name) is not None:
            self._published.remove(name)
        owner = self._owners.pop(name, None)
        if owner is not None:
            self._settle(owner, name)

    def release_unused(self, name: FullTrackName) -> None:
        """Forget the Track of a name if there is one, and nothing would be lost with it."""
        track = self._tracks.get(name)
        if track is not None:
            self.release(track)

    def note_forgotten(self, name: FullTrackName, *, now: float) -> None:
        """Remove a Track of which nothing is held, once whoever looks at it now is done."""
        if not self._forgotten:
            self._host.schedule(now, self._release_forgotten)
        self._forgotten.append(name)

    def sweep(self, now: float) -> None:
        """Forget Tracks that nobody uses: those without Objects, and some others if need be."""
        if now < self._next_sweep:
            return
        self._next_sweep = now + _LEAST_SWEEP_INTERVAL
        limit = self._host.limits.max_tracks
        self._release_all(tuple(self._tracks.values()), now)
        if len(self._tracks) >= limit:
            self._host.cache.drop_idle(1 + limit // _EVICTED_SHARE)
            self._release_all(tuple(self._tracks.values()), now)

    def disconnect(self, peer: Peer) -> None:
        """Close the account of a session that is over; its Tracks are nobody's then."""
        account = self._accounts.pop(peer.id, None)
        for name in () if account is None else account.tracks:
            del self._owners[name]

    def _settle(self, owner: PeerId, name: FullTrackName) -> None:
        account = self._accounts[owner]
        del account.tracks[name]
        if not account.tracks:
            del self._accounts[owner]

    def _has_room_of_its_own(self, account: _Account, now: float) -> bool:
        """Tell whether a session may have one Track more, once its unused ones have gone."""
        limit = self._host.limits.max_tracks_per_session
        if len(account.tracks) >= limit and now >= account.next_sweep:
            account.next_sweep = now + _LEAST_SWEEP_INTERVAL
            mine = account.tracks
            self._release_all([self._tracks[name] for name in mine], now)
            if len(mine) >= limit:
                cache = self._host.cache
                # Nothing of which others asked for a part.
                own = {
                    namespace
                    for namespace in {name.namespace for name in mine}
                    if all(name in mine for name in cache.tracks_of(namespace))
                }
                cache.drop_idle(1 + limit // _EVICTED_SHARE, among=own)
                self._release_all([self._tracks[name] for name in mine], now)
        return len(account.tracks) < limit

    def _has_room(self, now: float) -> bool:
        """Tell whether there is a place for another Track, and memory."""
        if self._is_full:
            self.sweep(now)
        return not self._is_full

    @property
    def _is_full(self) -> bool:
        host = self._host
        return len(self._tracks) >= host.limits.max_tracks or not host.cache.takes_tracks

    def _release_all(self, tracks: Iterable[Track], now: float) -> None:
        for track in tracks:
            track.demand.sweep(now=now)
            self.release(track)

    def _release_forgotten(self, now: float) -> None:
        forgotten, self._forgotten = self._forgotten, []
        for name in forgotten:
            self.release_unused(name)
            self._host.cache.recount(name, now=now)

    def _sweep_regularly(self, now: float) -> None:
        self.sweep(now)
        if self._tracks:
            self._host.schedule(now + _SWEEP_INTERVAL, self._sweep_regularly)

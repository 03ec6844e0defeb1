"""What happens in a relay, as lines of a log: one for each event, with fields for machines.

Lines name sessions, peers, Tracks and codes, and never a token, a payload or a key. Lines about
refused requests, which a peer can cause as fast as it likes, are limited; how many were left
out is said by the next one.
"""

import logging
from typing import Final

from kvcs.errors import PublishDoneCode, RequestErrorCode
from kvcs.names import FullTrackName
from kvcs.relay.auth import Access
from kvcs.relay.peer import Peer
from kvcs.relay.refusal import Refusal

__all__ = ("MAX_LINES", "Journal")

_logger = logging.getLogger("kvcs.relay")

# Lines about refused requests in so many seconds.
MAX_LINES: Final = 100
_WINDOW: Final = 10.0
# Characters of what a policy says.
_MAX_NOTE: Final = 500


class Journal:
    """Writes down what happens."""

    __slots__ = ("_left_out", "_lines", "_window_end")

    def __init__(self) -> None:
        self._lines = 0
        self._left_out = 0
        self._window_end = 0.0

    def __repr__(self) -> str:
        return f"<Journal lines={self._lines} left_out={self._left_out}>"

    def session_opened(self, peer: Peer, implementation: str | None) -> None:
        """Note that the peer's SETUP arrived."""
        _logger.info(
            "session %d with %s, %s",
            peer.id,
            peer.address,
            implementation or "software unknown",
            extra=_fields("session-opened", peer),
        )

    def request_refused(
        self, peer: Peer, access: Access | None, refusal: Refusal, *, now: float
    ) -> None:
        """Note a REQUEST_ERROR.

        Args:
            peer: Who asked.
            access: What was asked; None for what was refused unseen.
            refusal: What was answered.
            now: Monotonic seconds.
        """
        # That something is not there is an answer, and no trouble.
        is_absent = refusal.code is RequestErrorCode.DOES_NOT_EXIST
        level = logging.DEBUG if is_absent else logging.INFO
        if not _logger.isEnabledFor(level) or not self._has_room(now):
            return
        asked = "a request" if access is None else f"{access.action} {_subject(access)}"
        left_out = f" ({self._left_out} more lines left out)" if self._left_out else ""
        _logger.log(
            level,
            "session %d: %s %s: %s%s",
            peer.id,
            asked,
            "answered" if is_absent else "refused",
            _told(refusal),
            left_out,
            extra=_fields(
                "request-answered" if is_absent else "request-refused",
                peer,
                code=refusal.code.name,
                track="" if access is None else _subject(access),
                reason=_shown(refusal.note),
            ),
        )
        self._left_out = 0

    def grant_ended(self, peer: Peer, access: Access, refusal: Refusal, *, now: float) -> None:
        """Note that a request that ran may not go on."""
        if not _logger.isEnabledFor(logging.INFO) or not self._has_room(now):
            return
        _logger.info(
            "session %d: %s ended: %s",
            peer.id,
            f"{access.action} {_subject(access)}",
            _told(refusal),
            extra=_fields(
                "grant-ended",
                peer,
                code=refusal.code.name,
                track=_subject(access),
                reason=_shown(refusal.note),
            ),
        )

    def track_malformed(self, peer: Peer, track: FullTrackName, reason: str) -> None:
        """Note that a Track contradicts itself.

        Args:
            peer: Who publishes it.
            track: Its name.
            reason: What is wrong; text, since an error would keep alive what it passed through.
        """
        _logger.warning(
            "MALFORMED_TRACK %s from session %d: %s",
            track,
            peer.id,
            reason,
            extra=_fields("track-malformed", peer, code="MALFORMED_TRACK", track=str(track)),
        )

    def track_ended(self, peer: Peer, track: FullTrackName, code: int, size_bytes: int) -> None:
        """Note that an upstream subscription is over.

        Args:
            peer: The publisher, or the parent.
            track: Name of the Track.
            code: What PUBLISH_DONE said, or stands for what was not said.
            size_bytes: Octets that are held of it.
        """
        name = _done_name(code)
        _logger.info(
            "%s from session %d ended: %s, %d bytes held",
            track,
            peer.id,
            name,
            size_bytes,
            extra=_fields("track-ended", peer, code=name, track=str(track)),
        )

    def _has_room(self, now: float) -> bool:
        if now >= self._window_end:
            self._window_end, self._lines = now + _WINDOW, 0
        self._lines += 1
        if self._lines > MAX_LINES:
            self._left_out += 1
            return False
        return True


def _fields(
    event: str, peer: Peer, *, code: str = "", track: str = "", reason: str = ""
) -> dict[str, object]:
    fields: dict[str, object] = {"event": event, "session": peer.id, "peer": peer.address}
    more = (("code", code), ("track", track), ("reason", reason))
    return fields | {name: value for name, value in more if value}


def _told(refusal: Refusal) -> str:
    """Return the code, what the peer is told, and what it is not."""
    words = f"{refusal.code.name} {refusal.reason}".rstrip()
    return f"{words} ({_shown(refusal.note)})" if refusal.note else words


def _shown(note: str) -> str:
    """Return one line of what a policy says, which may be anybody's."""
    return "".join(char if char.isprintable() else "?" for char in note[:_MAX_NOTE])


def _subject(access: Access) -> str:
    """Return the Track, or the namespace, that a request is about."""
    if access.track_name is None:
        return access.namespace.format()
    return FullTrackName(access.namespace, access.track_name).format()


def _done_name(code: int) -> str:
    try:
        return PublishDoneCode(code).name
    except ValueError:
        return f"{code:#x}"

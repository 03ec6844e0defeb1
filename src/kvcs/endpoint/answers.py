"""Answers to requests of ours, for callers that wait for them."""

import asyncio

from kvcs.errors import (
    KvcsError,
    RequestErrorCode,
    RequestRejected,
    RequestTimedOut,
)
from kvcs.moqt.session import events
from kvcs.moqt.session.actions import RequestId
from kvcs.moqt.session.events import Event

__all__ = ("Answer", "Answers", "wait_for")

type Answer = (
    events.SubscribeAccepted | events.FetchAccepted | events.RequestAccepted | events.UpdateAccepted
)


class Answers:
    """Requests and updates whose answer somebody waits for.

    An outcome is an event, or the error that ended the session.
    """

    __slots__ = ("_updates", "_waiting")

    def __init__(self) -> None:
        """Expect nothing."""
        self._waiting: dict[RequestId, asyncio.Future[Event | KvcsError]] = {}
        self._updates: dict[RequestId, RequestId] = {}

    def note_update(self, update_id: RequestId, request_id: RequestId) -> None:
        """Remember which request an update changes, until it is answered."""
        self._updates[update_id] = request_id

    def expect(self, answered_id: RequestId) -> asyncio.Future[Event | KvcsError]:
        """Expect the answer to a request or an update."""
        future = asyncio.get_running_loop().create_future()
        return self._waiting.setdefault(answered_id, future)

    def receive(self, event: Event) -> None:
        """Note an event that answers something, or that makes an answer impossible."""
        match event:
            case events.UpdateAccepted() | events.UpdateRejected():
                self._settle(event.update_id, event)
            case (
                events.SubscribeAccepted()
                | events.FetchAccepted()
                | events.RequestAccepted()
                | events.RequestRejected()
            ):
                self._settle(event.request_id, event)
            case events.RequestCancelled():
                self._settle(event.request_id, event)
                for update_id in [u for u, r in self._updates.items() if r == event.request_id]:
                    self._settle(update_id, event)
            case _:
                pass

    def fail(self, error: KvcsError) -> None:
        """The session ended: nothing more is answered."""
        for answered_id in list(self._waiting):
            self._settle(answered_id, error)

    def forget(self, answered_id: RequestId) -> None:
        """Expect nothing any more."""
        self._waiting.pop(answered_id, None)
        self._updates.pop(answered_id, None)

    def _settle(self, answered_id: RequestId, outcome: Event | KvcsError) -> None:
        future = self._waiting.get(answered_id)
        self.forget(answered_id)
        if future is not None and not future.done():
            future.set_result(outcome)


async def wait_for(future: asyncio.Future[Event | KvcsError], timeout: float | None) -> Answer:  # noqa: ASYNC109
    """Wait for an outcome.

    Raises:
        RequestRejected: It was refused, or ended without an answer.
        RequestTimedOut: No answer in time.
        KvcsError: The session ended, with this error.
    """
    try:
        async with asyncio.timeout(timeout):
            return _result(await asyncio.shield(future))
    except RequestTimedOut:
        raise
    except TimeoutError:
        raise RequestTimedOut(f"no answer within {timeout:g} s") from None


def _result(outcome: Event | KvcsError) -> Answer:
    match outcome:
        case KvcsError():
            raise outcome
        case events.RequestRejected(code=RequestErrorCode.TIMEOUT):
            raise RequestTimedOut(outcome.reason)
        case events.RequestRejected():
            raise outcome.error()
        case events.UpdateRejected():
            raise RequestRejected(outcome.code, outcome.reason)
        case events.RequestCancelled():
            code = RequestErrorCode.INTERNAL_ERROR
            raise RequestRejected(code, f"the request ended with {outcome.code:#x}")
        case (
            events.SubscribeAccepted()
            | events.FetchAccepted()
            | events.RequestAccepted()
            | events.UpdateAccepted()
        ):
            return outcome
        case _:
            raise AssertionError(outcome)

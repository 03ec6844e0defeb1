"""All control messages, and decoding of whichever comes next.

Source: MOQT draft 22, Section 9.
"""

from collections.abc import Callable, Mapping
from typing import Final

from kvcs.moqt.codepoints import MessageType
from kvcs.moqt.wire.buffer import Reader, violation
from kvcs.moqt.wire.fetch import Fetch, FetchOk
from kvcs.moqt.wire.frame import decode_frame
from kvcs.moqt.wire.goaway import Goaway
from kvcs.moqt.wire.namespace import (
    Namespace,
    NamespaceDone,
    PublishNamespace,
    PublishSkipped,
    SubscribeNamespace,
    SubscribeTracks,
)
from kvcs.moqt.wire.publish import (
    UNKNOWN_STREAM_COUNT,
    Publish,
    PublishDone,
    PublishStateNotify,
)
from kvcs.moqt.wire.request import RequestError, RequestOk, RequestUpdate
from kvcs.moqt.wire.setup import Setup
from kvcs.moqt.wire.subscribe import Subscribe, SubscribeOk
from kvcs.moqt.wire.track_status import TrackStatus
from kvcs.varint import NeedMore

__all__ = ("UNKNOWN_STREAM_COUNT", "Message", "decode_message")

type Message = (
    Setup
    | Goaway
    | Subscribe
    | SubscribeOk
    | RequestUpdate
    | RequestOk
    | RequestError
    | Publish
    | PublishDone
    | PublishStateNotify
    | Fetch
    | FetchOk
    | TrackStatus
    | PublishNamespace
    | SubscribeNamespace
    | SubscribeTracks
    | Namespace
    | NamespaceDone
    | PublishSkipped
)

_DECODERS: Final[Mapping[MessageType, Callable[[Reader], Message]]] = {
    MessageType.SETUP: Setup.decode_body,
    MessageType.GOAWAY: Goaway.decode_body,
    MessageType.SUBSCRIBE: Subscribe.decode_body,
    MessageType.SUBSCRIBE_OK: SubscribeOk.decode_body,
    MessageType.REQUEST_UPDATE: RequestUpdate.decode_body,
    MessageType.REQUEST_OK: RequestOk.decode_body,
    MessageType.REQUEST_ERROR: RequestError.decode_body,
    MessageType.PUBLISH: Publish.decode_body,
    MessageType.PUBLISH_DONE: PublishDone.decode_body,
    MessageType.PUBLISH_STATE_NOTIFY: PublishStateNotify.decode_body,
    MessageType.FETCH: Fetch.decode_body,
    MessageType.FETCH_OK: FetchOk.decode_body,
    MessageType.TRACK_STATUS: TrackStatus.decode_body,
    MessageType.PUBLISH_NAMESPACE: PublishNamespace.decode_body,
    MessageType.SUBSCRIBE_NAMESPACE: SubscribeNamespace.decode_body,
    MessageType.SUBSCRIBE_TRACKS: SubscribeTracks.decode_body,
    MessageType.NAMESPACE: Namespace.decode_body,
    MessageType.NAMESPACE_DONE: NamespaceDone.decode_body,
    MessageType.PUBLISH_SKIPPED: PublishSkipped.decode_body,
}


def decode_message(data: bytes | bytearray | memoryview, offset: int = 0) -> tuple[Message, int]:
    """Decode the message at `offset`; return it and the offset after it.

    Raises:
        NeedMore: `data` ends inside the message.
        RemoteProtocolError: The message is malformed, or its Length is wrong.
    """
    message_type, body, end = decode_frame(data, offset)
    reader = Reader(body)
    try:
        message = _DECODERS[message_type](reader)
    except NeedMore:
        raise violation(f"{message_type.name} is shorter than its fields") from None
    if reader.remaining:
        raise violation(f"{message_type.name} with {reader.remaining} octets too many")
    return message, end

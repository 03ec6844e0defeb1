"""QUIC by aiopquic (picoquic): the only package that knows that library.

Theory of operation: picoquic runs on a thread of its own and talks to the event loop through
rings. A `Pump` wakes one library context. In each wake everything that arrived is taken, since
nothing but the memory above can hold a peer back; then the send queues move what fits into the
library's rings.

A client's transport owns its context (`client`), the transports of a server share one
(`listener`). All calls into the library are made on the loop's thread. Its exceptions and return
values are mapped in `library`: a full ring is not an error but work for the next wake.

The library names a connection by its address in memory, and a new connection gets the address of
one that is gone. What a server sends on a connection whose end it has not heard of would reach
whoever came next, so `library.ServerConnection` has all events taken just before each command.
"""

from kvcs.transport.picoquic.factory import PicoquicFactory
from kvcs.transport.picoquic.listener import PicoquicListener

__all__ = ("PicoquicFactory", "PicoquicListener")

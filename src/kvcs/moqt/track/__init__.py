"""Objects of a Track in memory, and what each subscriber is still owed of them."""

from kvcs.moqt.track.contents import Absent, Found, Unknown
from kvcs.moqt.track.delivery import (
    Delivery,
    DeliveryTerms,
)
from kvcs.moqt.track.fetch_delivery import (
    FetchDelivery,
)
from kvcs.moqt.track.fetch_service import (
    FetchService,
)
from kvcs.moqt.track.outbox import (
    Outbox,
)
from kvcs.moqt.track.responder import (
    SubscriptionService,
    TrackResponder,
)
from kvcs.moqt.track.store import TrackStore
from kvcs.moqt.track.subscription_delivery import (
    SubscriptionDelivery,
)

__all__ = (
    "Absent",
    "Delivery",
    "DeliveryTerms",
    "FetchDelivery",
    "FetchService",
    "Found",
    "Outbox",
    "SubscriptionDelivery",
    "SubscriptionService",
    "TrackResponder",
    "TrackStore",
    "Unknown",
)

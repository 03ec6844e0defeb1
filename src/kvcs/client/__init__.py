"""Publisher and consumer of KV caches."""

from kvcs.client.config import ConsumerConfig, Hold, PublisherConfig
from kvcs.client.consumer import Consumer
from kvcs.client.discovery import Candidate
from kvcs.client.index import IndexEntry, PublicationIndex
from kvcs.client.memory import HostMemory, Memory
from kvcs.client.publication import BudgetExceeded, Publication
from kvcs.client.publisher import Publisher
from kvcs.client.received import Layer
from kvcs.client.retrieval import Retrieval
from kvcs.client.segment import PublishedSegment
from kvcs.client.verdict import LayerArrival, MissingRange, MissingReason, Verdict

__all__ = (
    "BudgetExceeded",
    "Candidate",
    "Consumer",
    "ConsumerConfig",
    "Hold",
    "HostMemory",
    "IndexEntry",
    "Layer",
    "LayerArrival",
    "Memory",
    "MissingRange",
    "MissingReason",
    "Publication",
    "PublicationIndex",
    "PublishedSegment",
    "Publisher",
    "PublisherConfig",
    "Retrieval",
    "Verdict",
)

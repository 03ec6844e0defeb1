import random

from kvcs.names import FullTrackName, TrackNamespace
from kvcs.relay.disk.catalog import Catalog

ONE, TWO = (TrackNamespace((name,)) for name in (b"one", b"two"))
ONE_K, ONE_V, TWO_K = (FullTrackName(ONE, b"k"), FullTrackName(ONE, b"v"), FullTrackName(TWO, b"k"))


def test_namespaces_come_in_the_order_of_their_last_use():
    catalog = Catalog()
    catalog.put(ONE_K, 4096, used=1.0)
    catalog.put(TWO_K, 4096, used=2.0)
    assert list(catalog.namespaces()) == [ONE, TWO]

    catalog.touch(ONE_K, used=3.0)
    catalog.touch(ONE_V, used=3.0)  # not there

    assert list(catalog.namespaces()) == [TWO, ONE]
    assert catalog.take_touched() == {ONE_K: 3.0, TWO_K: 2.0}
    assert catalog.take_touched() == {}


def test_namespace_goes_with_its_last_track():
    catalog = Catalog()
    catalog.put(ONE_K, 4096, used=1.0)
    catalog.put(ONE_V, 8192, used=1.0)

    assert catalog.remove(ONE_K) == 4096
    assert catalog.bytes_of(ONE) == 8192
    assert catalog.remove(ONE_V) == 8192
    assert catalog.remove(ONE_V) == 0

    assert list(catalog.namespaces()) == []
    assert (catalog.size_bytes, len(catalog)) == (0, 0)


def test_sizes_are_those_of_a_naive_model():
    source, catalog, model = random.Random(1), Catalog(), {}
    for step in range(500):
        track = source.choice((ONE_K, ONE_V, TWO_K))
        size = source.randrange(10) * 4096
        match source.randrange(4):
            case 0:
                assert catalog.remove(track) == model.pop(track, 0)
            case 1:
                catalog.resize(track, size)
                if track in model:
                    model[track] = size
            case _:
                catalog.put(track, size, used=float(step))
                model[track] = size

        assert (len(catalog), catalog.size_bytes) == (len(model), sum(model.values()))
        for namespace in (ONE, TWO):
            held = {name: size for name, size in model.items() if name.namespace == namespace}
            assert set(catalog.of(namespace)) == set(held)
            assert catalog.bytes_of(namespace) == sum(held.values())

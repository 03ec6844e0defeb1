import asyncio
import threading

from kvcs.client.verifier import Verifier


def run(verifier, sizes):
    """Run one check per size; return in which threads they ran, and the results."""

    async def main():
        done = [asyncio.Future() for _ in sizes]
        for size, future in zip(sizes, done, strict=True):
            verifier.run(threading.get_ident, future.set_result, size)
        return await asyncio.gather(*done)

    return asyncio.run(main())


def test_verifier_checks_small_payloads_in_the_loop():
    threads = run(Verifier(threshold_bytes=100, max_pending_bytes=1000), [99, 1])

    assert threads == [threading.get_ident()] * 2


def test_verifier_checks_large_payloads_in_threads():
    threads = run(Verifier(threshold_bytes=100, max_pending_bytes=1000), [100, 500])

    assert threading.get_ident() not in threads


def test_verifier_checks_in_the_loop_what_would_wait_beyond_the_bound():
    threads = run(Verifier(threshold_bytes=100, max_pending_bytes=1000), [900, 200])

    assert threads.count(threading.get_ident()) == 1


def test_verifier_without_threshold_uses_no_threads():
    threads = run(Verifier(threshold_bytes=None, max_pending_bytes=1000), [10**9])

    assert threads == [threading.get_ident()]

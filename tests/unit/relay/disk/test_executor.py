import asyncio
import errno
import sqlite3
import threading
from functools import partial

import pytest

from kvcs.errors import ConfigError
from kvcs.relay.disk.executor import DiskFailure, DiskThread, run_job
from kvcs.relay.disk.store import DiskStore


def raising(error):
    def job(_):
        raise error

    return job


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (OSError(errno.ENOSPC, "No space left"), DiskFailure("full", "No space left")),
        (OSError(errno.EDQUOT, "Quota exceeded"), DiskFailure("full", "Quota exceeded")),
        (OSError(errno.EIO, "Input/output error"), DiskFailure("error", "Input/output error")),
        (sqlite3.OperationalError("locked"), DiskFailure("error", "index: locked")),
    ],
)
def test_failure_of_the_disk_is_a_result(error, failure):
    assert run_job(raising(error), None) == failure


def test_full_index_is_a_full_disk():
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL

    assert run_job(raising(error), None).kind == "full"


async def test_jobs_run_in_one_other_thread_and_come_back_in_order(directory):
    thread = await DiskThread.open(partial(DiskStore, directory))
    threads, results = set(), []
    finished = asyncio.Event()

    def job(_, *, number):
        threads.add(threading.get_ident())
        return number

    def done(result, now):
        assert threading.get_ident() == threading.main_thread().ident
        assert now == pytest.approx(asyncio.get_running_loop().time(), abs=5)
        results.append(result)
        if len(results) == 20:
            finished.set()

    for number in range(20):
        thread.submit(partial(job, number=number), done)
    assert results == []
    async with asyncio.timeout(10):
        await finished.wait()

    assert results == list(range(20))
    assert len(threads) == 1
    assert threading.main_thread().ident not in threads
    assert await thread.close(timeout=5)
    thread.submit(job, done)
    assert len(results) == 20


async def test_bug_in_a_job_is_raised_in_the_event_loop(directory):
    thread = await DiskThread.open(partial(DiskStore, directory))
    raised = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: raised.set_result(context["exception"])
    )

    thread.submit(raising(ValueError("a bug")), lambda *_: None)

    async with asyncio.timeout(10):
        assert isinstance(await raised, ValueError)
    assert await thread.close(timeout=5)


async def test_disk_that_does_not_answer_does_not_hold_up_the_end(directory):
    thread = await DiskThread.open(partial(DiskStore, directory))
    answered = threading.Event()
    thread.submit(lambda _: answered.wait(10), lambda *_: None)

    assert not await thread.close(timeout=0.05)

    answered.set()


async def test_directory_that_cannot_be_used_is_reported(directory):
    first = await DiskThread.open(partial(DiskStore, directory))

    with pytest.raises(ConfigError, match="another relay"):
        await DiskThread.open(partial(DiskStore, directory))

    assert await first.close(timeout=5)

"""No attack may make our own code raise: each session contains its peer's lies."""

import logging

import pytest


@pytest.fixture(autouse=True)
def own_logging():
    """Take back how a command that ran in this process has set up the log."""
    logger = logging.getLogger("kvcs")
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def no_crash(caplog):
    with caplog.at_level(logging.INFO, logger="kvcs"):
        yield
    crashes = [
        record
        for when in ("setup", "call")
        for record in caplog.get_records(when)
        if record.exc_info
    ]
    assert not crashes, [record.exc_text or record.getMessage() for record in crashes]

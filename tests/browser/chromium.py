"""A real headless Chromium, and pages on which nothing goes wrong unnoticed."""

import shutil
from contextlib import contextmanager

__all__ = ("ARGUMENTS", "CHROMIUM", "card", "watched_page")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# As root, and without asking anybody on the network for anything.
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def watched_page(browser):
    """Open a page that keeps what went wrong as `faults`, and all it asked for as `requests`."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(10_000)
    faults, requests = [], []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("dialog", lambda dialog: (faults.append(dialog.message), dialog.dismiss()))
    opened.on("console", lambda line: line.type == "error" and faults.append(line.text))
    opened.on("request", lambda request: requests.append(request.url))
    opened.faults, opened.requests = faults, requests
    try:
        yield opened
    finally:
        opened.close()


def card(page, name):
    """Return the figure of an overview card."""
    return page.locator(f".card:has(dt:text-is('{name}')) .value")

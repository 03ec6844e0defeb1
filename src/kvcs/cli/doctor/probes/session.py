"""Probes of the session: connection, certificate, draft, SETUP, round trip, namespaces."""

import contextlib
from statistics import median
from typing import Final

from kvcs.cli.doctor.finding import Grade, Report
from kvcs.cli.doctor.reader import FROM_START, Listing, Reader
from kvcs.cli.doctor.site import Site
from kvcs.endpoint.connection import Connection
from kvcs.errors import (
    CertificateRefused,
    ConnectFailed,
    DraftRefused,
    RemoteProtocolError,
    RequestErrorCode,
    RequestFailed,
    RequestRejected,
)
from kvcs.moqt.codepoints import ALPN
from kvcs.moqt.wire.setup import SetupOptions
from kvcs.names import FullTrackName, TrackNamespace

__all__ = ("probe_connection", "probe_namespaces", "probe_refusal", "probe_round_trip")

_ROUND_TRIPS: Final = 5
# Fields of the prefix by which a consumer looks for a prompt, and by which a scope is listed.
_PROMPT_FIELDS: Final = 4
_SCOPE_FIELDS: Final = 2


async def probe_connection(site: Site, report: Report) -> None:
    """Connect, and say what the handshake and the SETUP told."""
    try:
        async with site.session() as connection:
            await connection.ready()
            options = connection.session.peer_options or SetupOptions()
            peer = connection.peer
    except ConnectFailed as error:
        _note_failure(error, report)
        return
    except RemoteProtocolError as error:
        report.note("connection", Grade.GOOD, "made")
        report.note("draft", Grade.BAD, f"the relay's SETUP is not one of draft 22: {error}")
        return
    site.options = options
    report.note("connection", Grade.GOOD, f"with {peer}")
    _note_certificate(site, report)
    name = options.implementation
    report.note("draft", Grade.GOOD, f"{ALPN}, {name}" if name else ALPN)
    ranges = options.max_filter_ranges
    report.note(
        "filter-ranges",
        Grade.GOOD if ranges else Grade.LIMITED,
        f"{ranges} for each request" if ranges else "none: range filters may not be sent",
    )
    report.note("limits", Grade.MEASURED, _limits(options))


def _note_failure(error: ConnectFailed, report: Report) -> None:
    """Note at which step connecting failed."""
    match error:
        case CertificateRefused():
            report.note("connection", Grade.GOOD, "answered")
            report.note("certificate", Grade.BAD, error.reason)
        case DraftRefused():
            report.note("connection", Grade.GOOD, "answered")
            report.note("draft", Grade.BAD, error.reason)
        case _:
            report.note("connection", Grade.BAD, error.reason)


def _note_certificate(site: Site, report: Report) -> None:
    tls = site.config.tls
    if tls.verify:
        roots = tls.ca_file or "the public authorities"
        report.note("certificate", Grade.GOOD, f"valid under {roots}")
    else:
        report.note("certificate", Grade.MEASURED, "not checked, as you asked")


def _limits(options: SetupOptions) -> str:
    updates = options.max_request_updates or "any number of"
    tokens = options.max_auth_token_cache_size
    return f"{updates} updates for each request, {tokens} octets of stored tokens"


async def probe_round_trip(site: Site, report: Report) -> None:
    """Ask for the status of an unknown Track a few times; a refusal is an answer too."""
    track = FullTrackName(site.name().namespace(), b"manifest")
    async with site.session() as connection:
        seconds = [await _ask(connection, track, site.silence) for _ in range(_ROUND_TRIPS)]
    middle = median(seconds)
    report.note("round-trip", Grade.MEASURED, f"{middle * 1000:.3g} ms", middle)


async def _ask(connection: Connection, track: FullTrackName, patience: float) -> float:
    begun = connection.now
    with contextlib.suppress(RequestRejected):
        await connection.answer(connection.track_status(track), timeout=patience)
    return connection.now - begun


async def probe_namespaces(site: Site, report: Report) -> None:
    """Announce a publication, and look for it before, while and after it is announced."""
    async with (
        site.reader() as waiting,
        site.source(is_announced=False) as source,
        site.reader() as asking,
        site.reader() as listing,
    ):
        namespace = source.name.namespace()
        prompt = TrackNamespace(namespace.fields[:_PROMPT_FIELDS])
        scope = TrackNamespace(namespace.fields[:_SCOPE_FIELDS])
        early = await _listed(waiting, prompt, "later-namespace", report)
        await source.announce(site.silence)
        report.note("announce", Grade.GOOD, "accepted with five fields")
        await _note_listed(asking, prompt, namespace, "discovery", report)
        await _note_listed(listing, scope, namespace, "scope-listing", report)
        if early is None:
            report.note("withdrawal", Grade.UNKNOWN, "namespaces are not told")
            return
        told = await waiting.settled(lambda: namespace in early.present)
        grade = Grade.GOOD if told else Grade.LIMITED
        report.note("later-namespace", grade, "told" if told else "not told")
        source.withdraw()
        gone = await waiting.settled(lambda: namespace in early.gone)
        grade = Grade.GOOD if gone else Grade.LIMITED
        report.note("withdrawal", grade, "told" if gone else "not told")


async def _listed(
    reader: Reader, prefix: TrackNamespace, row: str, report: Report
) -> Listing | None:
    try:
        return await reader.list_namespaces(prefix)
    except RequestFailed as error:
        report.note(row, Grade.LIMITED, f"SUBSCRIBE_NAMESPACE: {error}")
        return None


async def _note_listed(
    reader: Reader, prefix: TrackNamespace, namespace: TrackNamespace, row: str, report: Report
) -> None:
    listing = await _listed(reader, prefix, row, report)
    if listing is None:
        return
    begun = reader.connection.now
    found = await reader.settled(lambda: namespace in listing.present)
    if found:
        report.note(row, Grade.GOOD, f"found after {reader.connection.now - begun:.3f} s")
    else:
        report.note(row, Grade.LIMITED, "accepted, but the publication is not told")


async def probe_refusal(site: Site, report: Report) -> None:
    """Ask for a Track that the publisher does not have."""
    codes: list[str] = []
    async with site.source() as source, site.reader() as reader:
        unknown = source.name.track(b"manifest.cose")
        for reading in (reader.subscribe(unknown), reader.fetch(unknown, FROM_START)):
            try:
                await reader.accepted(reading)
                codes.append("accepted")
            except RequestRejected as error:
                codes.append(_code_name(error.code))
            except TimeoutError:
                codes.append("not answered")
    right = RequestErrorCode.DOES_NOT_EXIST.name
    grade = Grade.GOOD if codes == [right, right] else Grade.LIMITED
    report.note("refusal", grade, f"SUBSCRIBE: {codes[0]}, FETCH: {codes[1]}")


def _code_name(code: int) -> str:
    try:
        return RequestErrorCode(code).name
    except ValueError:
        return f"code {code:#x}"

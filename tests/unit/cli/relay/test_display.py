"""What a running relay says of itself, in a terminal."""

import asyncio
import io
import json
import socket
from dataclasses import replace

import pytest
from rich.console import Console

import kvcs.cli.top
from kvcs.admin import NamespaceStatus, Status
from kvcs.cli._errors import AdminUnreachable, ExitCode
from kvcs.cli._output import Output
from kvcs.cli.relay.admin import AdminClient
from kvcs.cli.relay.display import (
    arrival_bar,
    format_seconds,
    health,
    namespace_table,
    overview,
    session_table,
    short_name,
    track_table,
)
from kvcs.errors import ConfigError
from kvcs.names import Location, TrackNamespace
from kvcs.relay import (
    Arrival,
    NamespacePage,
    NamespaceReport,
    RelayStatistics,
    SessionReport,
    TrackReport,
)
from kvcs.relay.report import UpstreamReport

COUNTS = RelayStatistics(
    **{
        name: {} if "Mapping" in str(field.type) else 0
        for name, field in RelayStatistics.__dataclass_fields__.items()
    }
)
NAMESPACE = TrackNamespace((b"kvcs-1", bytes(range(16))))
ARRIVAL = Arrival(
    groups=5,
    group_ids=(0, 1, 2, 3, 4),
    objects=4,
    objects_per_cell=1,
    columns=("9999", "9...", "....", "xx--", "----"),
)
SESSION = SessionReport(
    session_id=1,
    address="192.0.2.1:1",
    implementation="kvcs",
    age=10.0,
    namespaces=0,
    deliveries=1,
    bytes_in=0,
    bytes_out=1024,
    queued_bytes=0,
    behind=0.0,
    is_going_away=False,
)
TRACK = TrackReport(
    name="k.2eraw.2es0",
    size_bytes=2048,
    largest=Location(4, 0),
    end=None,
    is_complete=False,
    subscriptions=0,
    fetches=0,
    is_received=True,
    arrival=ARRIVAL,
)


@pytest.fixture
def status():
    report = NamespaceReport(
        namespace=NAMESPACE.format(),
        is_listed=True,
        publishers=1,
        tracks=2,
        complete_tracks=1,
        size_bytes=4096,
        disk_bytes=2**20,
        deliveries=3,
        idle=61.0,
    )
    return Status(
        version="1.2.3",
        address="127.0.0.1:4433",
        started=0.0,
        uptime=125.0,
        is_ready=True,
        faults=(),
        is_draining=False,
        slow_after=5.0,
        slow_sessions=0,
        upstreams=(),
        statistics=replace(COUNTS, sessions=9, cache_hits=3, cache_misses=1, disk_writable=True),
        sessions=(SESSION,),
        namespaces=NamespacePage(total=7, matching=7, shown=(report,)),
    )


def drawn(renderable, width=120):
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue()


def test_health_is_one_line(status):
    assert health(status) == "relay 127.0.0.1:4433: ready; up for 2 min, kvcs 1.2.3"
    status = replace(status, is_ready=False, faults=("draining",))
    assert "NOT READY: draining" in health(status)


def test_overview_has_the_hit_ratio_and_no_disk_that_is_not_there(status):
    lines = "\n".join(overview(status))

    assert "75.0% of 4" in lines
    assert "disk" not in lines


def test_overview_says_that_a_disk_cannot_be_written(status):
    counts = replace(status.statistics, disk_capacity_bytes=2**30, disk_writable=False)

    assert "not writable now" in "\n".join(overview(replace(status, statistics=counts)))


def test_overview_names_the_parent_in_use_and_why_another_is_not(status):
    upstreams = (
        UpstreamReport(url="moqt://a/", is_used=False, error="no answer"),
        UpstreamReport(url="moqt://b/", is_used=True, error=""),
        UpstreamReport(url="moqt://c/", is_used=False, error=""),
    )

    lines = [*overview(replace(status, upstreams=upstreams))]

    assert lines[:3] == [
        "parent      moqt://a/: no answer",
        "parent      moqt://b/: in use",
        "parent      moqt://c/: not in use",
    ]


def test_tables_lose_nothing_where_there_is_little_room(status, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    session = replace(SESSION, address="[2001:db8:1:2:3:4:5:6]:54321", implementation="a" * 60)

    output = Output(as_json=False, color=False, quiet=False)
    output.table(session_table(replace(status, sessions=(session,))))
    output.table(namespace_table(status))

    shown = capsys.readouterr().out
    assert "[2001:db8:1:2:3:4:5:6]:54321" in shown
    assert "a" * 60 in shown
    assert "61 s ago" in shown
    assert shown.count("…") == short_name(NAMESPACE.format()).count("…")


def test_tables_say_how_much_they_leave_out(status):
    assert "namespace (1 of 7)" in drawn(namespace_table(status))
    assert "peer (1 of 9)" in drawn(session_table(status))
    assert "1 of 2" in drawn(namespace_table(status))
    assert "61 s ago" in drawn(namespace_table(status))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "up to date"),
        ({"behind": 1.0}, "sending"),
        ({"behind": 5.0}, "slow, behind for 5 s"),
        ({"is_going_away": True}, "going away"),
        ({"implementation": None}, "unknown"),
    ],
)
def test_state_of_a_session_is_said(status, changes, words):
    sessions = (replace(SESSION, **changes),)

    assert words in drawn(session_table(replace(status, sessions=sessions)))


def test_words_of_a_peer_cannot_act_on_the_terminal(status):
    sessions = (replace(SESSION, implementation="\x1b[2J\u202e[bold]x[/bold]"),)

    shown = drawn(session_table(replace(status, sessions=sessions)))

    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[bold]" in shown


def test_names_of_a_peer_are_not_taken_for_markup(status):
    (report,) = status.namespaces.shown
    hostile = TrackNamespace((b"[red]a[/red]",)).format()
    page = replace(status.namespaces, shown=(replace(report, namespace=hostile),))
    track = replace(TRACK, name=hostile)

    assert "[red]a[/red]" in drawn(namespace_table(replace(status, namespaces=page)))
    assert "[red]a[/red]" in drawn(track_table(NamespaceStatus(namespace="n", tracks=(track,))))


def test_tables_fit_a_narrow_terminal(status):
    for table in (namespace_table(status), session_table(status)):
        assert max(map(len, drawn(table, width=80).splitlines())) <= 80


def test_bar_has_the_first_level_for_nothing_and_the_last_for_all():
    assert arrival_bar(ARRIVAL) == "█▂·x "
    almost = replace(ARRIVAL, columns=("9" * 31 + "8", "1" + "." * 31))
    assert arrival_bar(almost) == "▇▁"
    assert arrival_bar(replace(ARRIVAL, columns=("dddd", "dd.."))) == "█▄"


def test_tracks_are_shown_with_their_bars():
    shown = drawn(track_table(NamespaceStatus(namespace="n", tracks=(TRACK,))))

    assert "k.raw.s0" in shown
    assert "█▂·x" in shown


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("kvcs.2d1-scope", "kvcs-1/scope"),
        (NAMESPACE.format(), "kvcs-1/000102…"),
        ("kvcs.2d1-.01.02-b-c-.03.04", "kvcs-1/0102/…/0304"),
        ("a" * 40, "a" * 24 + "…"),
        ("", ""),
    ],
)
def test_names_are_shortened(name, short):
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (2e5, "2 d")]
)
def test_durations_have_one_unit(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:4434", "https://127.0.0.1/", "http://", "http://a:99999/"]
)
def test_url_that_is_none_is_a_wrong_setting(url):
    with pytest.raises(ConfigError, match="admin-url"):
        AdminClient(url)


@pytest.mark.parametrize(("command", "lines"), [(("relay", "status"), 2), (("top", "--json"), 1)])
def test_relay_that_is_not_there_is_one_sentence_and_a_hint(
    kvcs_run, command, lines, unused_tcp_port
):
    code, out, err = kvcs_run(*command, "--admin-url", f"http://127.0.0.1:{unused_tcp_port}/")

    assert code == ExitCode.UNREACHABLE
    assert out == ""
    assert "no relay answers at" in err
    assert "--admin-url" in err
    assert len(err.splitlines()) == lines


@pytest.fixture
def unused_tcp_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def answering(monkeypatch, status):
    """Have every relay answer so; the list has what it says, one after another."""
    answers = [status]

    def look(_client, *, limit):
        answer = answers[0] if len(answers) == 1 else answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert limit
        return answer

    monkeypatch.setattr(AdminClient, "status", look)
    monkeypatch.setattr(
        AdminClient,
        "namespace",
        lambda _, name: NamespaceStatus(namespace=name, tracks=(TRACK,)),
    )
    return answers


@pytest.mark.parametrize(("is_ready", "expected"), [(True, 0), (False, 1)])
def test_exit_code_says_whether_the_relay_is_ready(kvcs_run, answering, is_ready, expected):
    answering[0] = replace(answering[0], is_ready=is_ready)

    code, out, _ = kvcs_run("relay", "status")

    assert code == expected
    assert "kvcs-1/000102…" in out
    assert "192.0.2.1:1" in out


def test_status_is_json_too(kvcs_json, answering):
    shown = kvcs_json("relay", "status")

    assert shown["is_ready"]
    assert shown["namespaces"]["shown"][0]["namespace"] == NAMESPACE.format()
    assert len(answering) == 1


def test_top_needs_a_terminal_or_json(kvcs_run, answering):
    code, _, err = kvcs_run("top")

    assert code == ExitCode.USAGE
    assert "kvcs relay status" in err
    assert answering


def test_top_refuses_to_look_without_pause(kvcs_run):
    code, _, err = kvcs_run("top", "--interval", "1ms")

    assert code == ExitCode.USAGE
    assert "--interval" in err


def test_top_looks_again_and_again_until_it_is_ended(kvcs_run, answering, status, monkeypatch):
    answering[:] = [
        status,
        AdminUnreachable("http://x/", "restarting"),
        replace(status, uptime=126.0),
    ]
    waits = iter([False, False, True])

    async def waited(_stopped, _seconds):
        return next(waits)

    monkeypatch.setattr(kvcs.cli.top, "_waited", waited)

    code, out, _ = kvcs_run("top", "--json")

    assert code == 0
    assert [json.loads(line)["uptime"] for line in out.splitlines()] == [125.0, 126.0]


async def test_wait_ends_when_it_is_interrupted():
    stopped = asyncio.Event()
    assert not await kvcs.cli.top._waited(stopped, 0.01)

    stopped.set()
    assert await kvcs.cli.top._waited(stopped, 60.0)


def test_picture_of_top_has_everything(status):
    view = kvcs.cli.top._View(status)
    later = replace(
        status, uptime=127.0, statistics=replace(status.statistics, bytes_in=2**21, bytes_out=0)
    )
    view.take(later, NamespaceStatus(namespace=NAMESPACE.format(), tracks=(TRACK,)))

    shown = drawn(view.draw())

    for words in ("relay 127.0.0.1:4433: ready", "1 MiB/s in", "arrival of kvcs-1/000102…", "█▂·x"):
        assert words in shown
    view.error = "connection refused"
    assert "no answer: connection refused" in drawn(view.draw())


def test_rate_is_unknown_after_a_restart_of_the_relay(status):
    view = kvcs.cli.top._View(status)
    view.take(replace(status, started=1.0, uptime=0.0), None)

    assert "rate        -" in drawn(view.draw())

"""Each benchmark runs and prints what it promises; the figures mean nothing here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("encode", "decode")
SIZES = ("32KiB", "128KiB", "1MiB")
CODEC = (
    *(f"codec/{part}/{way}" for part in ("object_header", "subscribe") for way in CODE),
    *(f"codec/{size}/{what}" for size in SIZES for what in ("send", "receive", "payload")),
)
DIRECT = tuple(
    f"direct/{size}/{kind}{figure}"
    for size in SIZES
    for kind in ("plain", "verified")
    for figure in ("", "/cpu")
)
PIPELINE = (
    *(
        f"pipeline/{case}{figure}"
        for case in ("first_layer", "first_layer/relay")
        for figure in ("", "/first_ms", "/all_ms")
    ),
    "pipeline/round_trip",
    "pipeline/live/memory",
)
COUNTS = (1, 2, 4, 8)
FAN_OUT = tuple(
    f"relay/{figure}/{count}"
    for count in COUNTS
    for figure in ("egress", "cpu_s_per_gb", "backbone", "memory")
)
FOREIGN = tuple(
    f"relay/{figure}_beside_aiomoqt/{count}"
    for count in COUNTS
    for figure in ("cpu_s_per_gb", "egress_mb_s")
)
TREE = tuple(f"relay/{figure}/{count}" for count in COUNTS for figure in ("egress2", "backbone2"))
STALLED = ("relay/beside_stalled", "relay/rss_over_budget_mib", "relay/rss_growth_mib")
SERVED = ("relay/disk_read", "relay/disk_read_cpu")
RELAY = (*FAN_OUT, *FOREIGN, *TREE, *STALLED, *SERVED)
DISK = (*SERVED, "disk/write", "disk/read")
SECURE = (
    *(
        f"secure/{size}/{figure}"
        for size in ("32KiB", "128KiB", "1MiB")
        for figure in (
            *(
                f"{case}{ending}"
                for case in ("plain", "digest", "signed", "sealed", "signed+sealed")
                for ending in ("", "/cpu")
            ),
            "manifests",
            "aes_gcm",
            "sealing",
        )
    ),
    *(
        f"pipeline/first_layer{kind}{figure}"
        for kind in ("", "/signed", "/signed+sealed")
        for figure in ("", "/first_ms", "/all_ms")
    ),
)
WAN = tuple(
    f"wan/{distance}/{control}"
    for distance in ("clean", "loss_0.1%", "loss_1%")
    for control in ("newreno", "cubic", "bbr1")
)
#: Figures that may be zero or less: memory beyond a bound, and whole Objects that came over a
#: link with loss in the half second that a case of this test takes.
MAY_BE_ZERO = (*STALLED[1:], *(name for name in WAN if "/loss_" in name))
#: Figures that stand for themselves.
WITHOUT_BASELINE = {name for name in CODEC if "header" in name or "subscribe" in name} | {
    name for name in (*PIPELINE, *SECURE) if name.endswith(("_ms", "round_trip", "/aes_gcm"))
}


def measure(name):
    command = [sys.executable, "-m", "benchmarks", name, "--json", "--seconds", "0.02"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(rows, names):
    assert [row["name"] for row in rows] == list(names)
    for row in rows:
        assert set(row) == {"name", "value", "unit", "baseline", "ratio"}
        assert row["value"] > 0 or row["name"] in MAY_BE_ZERO
        assert row["unit"]
        if row["name"] in WITHOUT_BASELINE:
            assert (row["baseline"], row["ratio"]) == (None, None)
        else:
            assert row["ratio"] == pytest.approx(row["value"] / row["baseline"])


def test_codec_prints_its_results():
    check(measure("codec"), CODEC)


@pytest.mark.soak
@pytest.mark.timeout(150)
def test_direct_prints_its_results():
    check(measure("direct"), DIRECT)


@pytest.mark.soak
@pytest.mark.timeout(150)
def test_pipeline_prints_its_results():
    check(measure("pipeline"), PIPELINE)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_relay_prints_the_results_of_all_its_parts():
    rows = measure("relay")

    check(rows, RELAY)
    by_name = {row["name"]: row for row in rows}
    backbone = [row["ratio"] for name, row in by_name.items() if "/backbone" in name]
    assert backbone == pytest.approx([1.0] * 2 * len(COUNTS), abs=0.05)
    assert [by_name[name]["baseline"] for name in STALLED[1:]] == [64.0, 16.0]


@pytest.mark.soak
@pytest.mark.timeout(150)
def test_disk_prints_its_results():
    check(measure("disk"), DISK)


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_secure_prints_its_results():
    check(measure("secure"), SECURE)


@pytest.mark.soak
@pytest.mark.timeout(200)
def test_wan_prints_its_results():
    check(measure("wan"), WAN)

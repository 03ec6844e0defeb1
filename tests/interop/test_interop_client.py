"""The cases of aiomoqt's interop test client, run against our relay."""

import asyncio
import os
import re
import sys

from tests.interop.sites import HOST, relay_of

# The whole run; each case bounds itself.
PATIENCE = 40
# A case with a directive was not wholly passed: it was skipped, or a fault was tolerated.
_RESULT = re.compile(r"^(ok|not ok) \d+ - (\S+)( # .*)?$", re.MULTILINE)


async def run_tool(*arguments):
    """Run the tool; return its output, and what it noted on the way."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "aiomoqt.tools.moq_interop_client",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # Its settings also come from the environment.
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
    )
    try:
        output, notes = await process.communicate()
    except BaseException:
        process.kill()
        raise
    return output.decode(), notes.decode()


async def test_relay_passes_every_case(certificate):
    async with asyncio.timeout(PATIENCE), relay_of(certificate) as relay:
        target = (
            "--relay",
            f"moqt://{HOST}:{relay.address.port}",
            "--draft",
            "22",
            "--tls-disable-verify",
        )
        cases = set((await run_tool("--list"))[0].split())

        runs = [await run_tool(*target)]
        # Those that its standard run leaves out.
        others = cases - {name for _, name, _ in _RESULT.findall(runs[0][0])}
        runs += [await run_tool(*target, "--test", case) for case in sorted(others)]

    results = [result for output, _ in runs for result in _RESULT.findall(output)]
    assert {name for _, name, _ in results} == cases
    assert others == {"fetch", "join"}
    failed = [result for result in results if result[0] != "ok" or result[2]]
    assert not failed, "\n".join(part for output in runs for part in output)

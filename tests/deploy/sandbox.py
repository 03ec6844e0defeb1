"""Run a command under the system call filter and the memory rule of a systemd unit.

python sandbox.py UNIT COMMAND [ARGUMENT...]

systemd is asked what its groups of system calls hold; libseccomp makes the filter. What a unit
says about files, users and capabilities is not done here.
"""

import ctypes
import os
import socket
import subprocess
import sys
from pathlib import Path

EPERM_ALL = 0x00050001  # SCMP_ACT_ERRNO(EPERM)
ALLOW = 0x7FFF0000
COMPARE_EQUAL = 4
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1


class Comparison(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def settings(unit, name):
    """All values of a setting of a unit, in order."""
    return [
        line.partition("=")[2]
        for line in Path(unit).read_text().splitlines()
        if line.startswith(f"{name}=")
    ]


def members(group):
    """System calls of a group, those of groups inside it included."""
    listed = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter", group],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    names = {line.strip() for line in listed[1:] if line.strip() and "#" not in line}
    inner = {name for name in names if name.startswith("@")}
    return (names - inner).union(*map(members, inner))


def allowed(unit):
    """System calls that the unit allows."""
    calls = set()
    for value in settings(unit, "SystemCallFilter"):
        for group in value.removeprefix("~").split():
            found = members(group)
            calls = calls - found if value.startswith("~") else calls | found
    # systemd always allows what it takes to start the command.
    return calls | members("@default") | {"execve"}


def confine(unit):
    """Apply the rules to this process and its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    if settings(unit, "MemoryDenyWriteExecute") == ["yes"]:
        done = libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
        assert done == 0, os.strerror(ctypes.get_errno())
    seccomp = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(EPERM_ALL))
    for name in sorted(allowed(unit) - {"socket"}):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            assert seccomp.seccomp_rule_add_array(context, ALLOW, number, 0, None) == 0, name
    (families,) = settings(unit, "RestrictAddressFamilies")
    number = seccomp.seccomp_syscall_resolve_name(b"socket")
    for family in families.split():
        match = Comparison(0, COMPARE_EQUAL, int(getattr(socket, family)), 0)
        assert seccomp.seccomp_rule_add_array(context, ALLOW, number, 1, ctypes.byref(match)) == 0
    assert seccomp.seccomp_load(context) == 0


if __name__ == "__main__":
    confine(sys.argv[1])
    os.execv(sys.argv[2], sys.argv[2:])

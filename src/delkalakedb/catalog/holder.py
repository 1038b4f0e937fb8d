"""Who holds a lease: a process, by its machine, its pid and when it started.

A holder's text is `host/machine/pid/start/token`. On its own machine the operating
system tells whether the process still runs, so that a lease of a process that was
killed is known as forsaken at once. `machine` is the kernel's boot and the namespace
that counts the pids: containers and reboots differ. Where one of them can't be told
(other systems than Linux, a `/proc` of another namespace), only the lease's end counts.

The leases that this process itself works under are noted here: one of its own that it
doesn't work under was left behind, by a call that failed or a database that crashed.
"""

import os
import socket
import time
import uuid
from functools import lru_cache

from delkalakedb.catalog.cache import Forkable

__all__ = ["begin", "end", "holder_of", "is_forsaken", "prolong"]

_PARTS = 4
# The clock tick at which a process started, counted from its state in /proc/<pid>/stat.
_START = 19
# A process that has ended, but whose parent hasn't asked for its exit status yet.
_ENDED = ("Z", "X")


class _Working(Forkable):
    def _reset(self) -> None:
        # By holder: until when, on this process's clock.
        self.until: dict[str, float] = {}


_working = _Working()


def holder_of(token: str) -> str:
    """This process as the holder of the lease with a token."""
    return f"{_process(os.getpid())}/{token}"


def begin(token: str, lasts_s: float) -> str:
    """Note that this process may work under a lease from now on; its holder."""
    holder, now = holder_of(token), time.monotonic()
    for old in [old for old, until in list(_working.until.items()) if until < now]:
        _working.until.pop(old, None)
    _working.until[holder] = now + lasts_s
    return holder


def prolong(holder: str | None, lasts_s: float) -> None:
    """Note that this process still works under a lease."""
    if holder in _working.until:
        _working.until[holder] = time.monotonic() + lasts_s


def end(holder: str | None) -> None:
    """Note that this process doesn't work under a lease any more."""
    if holder is not None:
        _working.until.pop(holder, None)


def is_forsaken(holder: str) -> bool:
    """Whether nobody works under this holder's lease any more, if that can be told."""
    parts, here = holder.rsplit("/", 3), _process(os.getpid())
    if len(parts) < _PARTS or parts[0] != here.rsplit("/", 2)[0]:
        return False
    _, pid, start, _ = parts
    if f"{parts[0]}/{pid}/{start}" == here:
        return _working.until.get(holder, 0.0) < time.monotonic()
    return not _runs(pid, start)


@lru_cache(maxsize=1)
def _process(pid: int) -> str:
    """This process as a holder, without a token."""
    host = socket.gethostname()
    try:
        if os.readlink("/proc/self") != str(pid):
            raise FileNotFoundError("/proc counts pids by another namespace")
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
        _, start = _status(str(pid))
    except OSError:
        # A machine of its own, so that no other process is judged by its pid.
        return f"{host}/{uuid.uuid4().hex}/{pid}/0"
    return f"{host}/{boot}.{namespace}/{pid}/{start}"


def _runs(pid: str, start: str) -> bool:
    """Whether the process with this pid, started then, hasn't ended."""
    try:
        # Asked first, because /proc may hide the processes of other users.
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError, ValueError):
        return False
    except OSError:
        pass
    try:
        state, started = _status(pid)
    except (OSError, IndexError):
        return True
    return started == start and state not in _ENDED


def _status(pid: str) -> tuple[str, str]:
    """A process's state, and the clock tick at which it started."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # After the command's name, which may hold anything.
        fields = file.read().rpartition(")")[2].split()
    return fields[0], fields[_START]

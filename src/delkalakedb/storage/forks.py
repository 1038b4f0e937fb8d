"""Libraries with threads of their own, which a forked child doesn't have.

What a child asks of such a library waits for ever, or ends in a panic, if the process
that it was forked from has used the library. So a child tries it once, with something
that needs no thread, before it is used.
"""

import os
from collections.abc import Callable

__all__ = ["Library", "count_threads"]

# The system's list of this process's threads.
_TASKS = "/proc/self/task"


class Library:
    """A library that may have been used by the process that this one was forked from.

    Args:
        name: its name.
        is_usable: tries it, in a forked child; false if its threads are the parent's.
        error: what is raised where it can't be used.
    """

    def __init__(
        self, name: str, is_usable: Callable[[], bool], error: type[Exception]
    ) -> None:
        self._name = name
        self._is_usable = is_usable
        self._error = error
        # None in a child until it was tried.
        self._usable: bool | None = True
        if hasattr(os, "register_at_fork"):  # Windows has no forks.
            os.register_at_fork(after_in_child=self._doubt)

    def check(self, what: str) -> None:
        """Refuse to use it where it would hang or panic; `what` is at stake."""
        if self._usable is None:
            self._usable = self._is_usable()
        if not self._usable:
            raise self._error(
                f"{what}: this process was forked from one that has used {self._name}, "
                "whose threads a fork leaves behind; start processes by "
                'multiprocessing\'s "spawn" or "forkserver", or fork before tables are '
                "read and written"
            )

    def _doubt(self) -> None:
        if self._usable:
            self._usable = None


def count_threads() -> int | None:
    """How many threads the process has; None where the system doesn't say."""
    try:
        return len(os.listdir(_TASKS))
    except OSError:
        return None

"""The clock of this machine, and pauses between attempts."""

import math
import time
from collections.abc import Iterator
from itertools import count

# doublings of a pause; more would overflow a double
_MOST_DOUBLINGS = 30


def now_ms() -> int:
    """Return the current time in milliseconds since the epoch."""
    return int(time.time() * 1000)


def pause_s(
    attempts: int, initial_s: float, max_s: float, *, jitter: float = 0.0
) -> float:
    """Return the seconds to wait before another attempt.

    Args:
        attempts: the number of pauses before this one; each doubles the next.
        initial_s: the first pause.
        max_s: the longest pause.
        jitter: the random share of a pause, from 0 to 1, so that rivals don't try
            again at the same time.
    """
    grown_s = math.ldexp(initial_s, min(attempts, _MOST_DOUBLINGS))
    # Imported here, because most processes never wait.
    import random

    return min(grown_s, max_s) * random.uniform(1 - jitter, 1)


def pauses(initial_s: float, max_s: float, *, jitter: float = 0.0) -> Iterator[float]:
    """Yield the seconds to wait before each further attempt, without end."""
    return (pause_s(n, initial_s, max_s, jitter=jitter) for n in count())

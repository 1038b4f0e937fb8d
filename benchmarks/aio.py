"""Measure the asynchronous API on Postgres: python benchmarks/aio.py --help.

Opens: 200 tables are opened at once with 10 connections, by `aio` and by threads of the
event loop's default executor, in turns.

Follow: another process commits, and a third one sends a bare NOTIFY, in turns. The bar
compares how long after the commit's end this process has the commit with how long after
the call of NOTIFY this process has the notification.
"""

import asyncio
import statistics
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from time import monotonic
from typing import Any

import psycopg
from bars import Run
from engines import PostgresDatabase, postgres_server
from measure import Case, medians, start_child, timed
from options import options_of, work_folder
from report import finish, write_json

import delkalakedb as dk
from delkalakedb import aio

_BARS = ("opens", "follow")
_OPENS, _CONNECTIONS = 200, 10
_ROUNDS, _QUICK_ROUNDS = 200, 20
# seconds; a follower that isn't told of a commit waits so long
_POLL_S = 60.0


def main() -> int:
    """Run the requested benchmarks; exit with 1 if a bar was missed."""
    parser = options_of(__doc__, _BARS, "few rounds")
    parser.set_defaults(engines=["postgres"])
    options = parser.parse_args()
    rounds = _QUICK_ROUNDS if options.quick else _ROUNDS
    with work_folder(options) as work, postgres_server(True):
        run = Run("postgres", work, (_OPENS,), {}, (0, 0), 0, None)
        steps: dict[str, Callable[[], None]] = {
            "opens": lambda: _measure_opens(run, rounds),
            "follow": lambda: _measure_follow(run, rounds),
        }
        run.measure(steps, options.bars)
        write_json([run], options.out / "aio.json")
    return finish([run])


def _measure_opens(run: Run, rounds: int) -> None:
    database = run.database("opens")
    assert isinstance(database, PostgresDatabase)
    names = [f"t{number}" for number in range(_OPENS)]
    with dk.connect(database.uri, pool={"size": _CONNECTIONS}) as catalog:
        _create(catalog, names)
        ours = aio.Catalog(catalog)
        with closing(asyncio.new_event_loop()) as loop:

            def together(one: Callable[[str], Coroutine[Any, Any, object]]) -> Case:
                async def run_all() -> None:
                    await asyncio.gather(*map(one, names))

                return timed(lambda: loop.run_until_complete(run_all()))

            took = medians(
                {
                    "aio": together(ours.open),
                    "threads": together(lambda n: asyncio.to_thread(catalog.open, n)),
                    "one by one": timed(lambda: [*map(catalog.open, names)]),
                },
                budget_s=60,
                most=rounds,
            )
            loop.run_until_complete(loop.shutdown_default_executor())
    bar = f"{_OPENS} opens at once, {_CONNECTIONS} connections"
    for who, seconds in took.items():
        run.report(bar, f"{who}: opens", _OPENS / seconds, "/s")
    run.at_least(bar, "aio / threads", took["threads"] / took["aio"], 3)


def _create(catalog: dk.Catalog, names: list[str]) -> None:
    from tests.support.actions import creation

    catalog.commit(*map(creation, names))


def _measure_follow(run: Run, rounds: int) -> None:
    database = run.database("follow")
    assert isinstance(database, PostgresDatabase)
    dsn = database.server.dsn(database.name)
    with dk.connect(database.uri) as catalog:
        _create(catalog, ["t"])
        committer = start_child("commit_in_turns", database.uri)
        notifier = start_child("notify_in_turns", dsn)
        commits = catalog.follow("t", poll=_POLL_S)
        with psycopg.connect(dsn, autocommit=True) as listening:
            listening.execute("LISTEN bare")
            try:
                found = _take_turns(
                    {
                        "follow": (committer, commits),
                        "NOTIFY": (notifier, listening.notifies()),
                    },
                    rounds,
                )
            finally:
                for child in (committer, notifier):
                    child.communicate("", timeout=60)
    bar = "a commit is seen by another process"
    since, after = (statistics.median(t) for t in zip(*found["follow"], strict=True))
    bare, _ = (statistics.median(t) for t in zip(*found["NOTIFY"], strict=True))
    run.report(bar, "since the commit's call", since * 1000, "ms")
    run.report(bar, "after the commit's end", after * 1000, "ms")
    run.report(bar, "bare NOTIFY, since its call", bare * 1000, "ms")
    run.at_most(bar, "after the end / bare NOTIFY", after / bare, 5)


def _take_turns(
    sides: dict[str, "tuple[subprocess.Popen[str], Iterator[object]]"], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return how long after the begin and the end of each call its message is here."""
    found: dict[str, list[tuple[float, float]]] = {who: [] for who in sides}
    for _ in range(rounds):
        for who, (child, messages) in sides.items():
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("go\n")
            child.stdin.flush()
            next(messages)
            seen = monotonic()
            # The clock of all processes since the machine was started.
            began, ended = map(float, child.stdout.readline().split())
            found[who].append((seen - began, seen - ended))
    return found


if __name__ == "__main__":
    sys.exit(main())

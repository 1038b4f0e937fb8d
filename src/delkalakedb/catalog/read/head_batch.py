"""Heads that many calls of one event loop ask for at once.

Two calls load their own heads. The calls that come meanwhile wait, and then one
statement loads the heads that all of them ask for: docs/decisions/0010 has figures.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import msgspec

from delkalakedb.catalog.engine import Backend, HeadRow, Session
from delkalakedb.catalog.read.head import Head, Identity, checked_head, load_head
from delkalakedb.errors import DeltalakeDBError
from delkalakedb.waits import Call, run

# heads in one message; more gain little, and wait for each other
_MOST = 50
# connections that load heads at once
_MOST_LOADERS = 2


@dataclass(frozen=True, slots=True)
class _Asked:
    """A table whose head one call asks for."""

    name: str
    identity: Identity | None
    answer: asyncio.Future[Head]

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Batches:
    """The heads of one catalog that the calls of one event loop wait for."""

    def __init__(self) -> None:
        self._waiting: deque[_Asked] = deque()
        self._loaders = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def load(self, call: Call, backend: Backend, asked: _Asked) -> Head:
        """Load a latest head, together with those of other calls if it must wait."""
        if self._loaders < _MOST_LOADERS:
            self._loaders += 1
            try:
                with backend.reading() as session:
                    return load_head(session, asked.name, identity=asked.identity)
            finally:
                self._end(backend)
        self._waiting.append(asked)
        return call.wait(asked.answer)

    def _end(self, backend: Backend) -> None:
        """Load the heads that calls wait for, now that there are fewer loaders."""
        self._loaders -= 1
        if self._waiting:
            self._loaders += 1
            # A task of its own, because any of the calls may be cancelled.
            task = asyncio.create_task(run(self._load, backend))
            self._tasks.add(task)
            task.add_done_callback(partial(self._end_task, backend))

    def _end_task(self, backend: Backend, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            for asked in self._take():
                asked.answer.cancel()
        self._end(backend)

    def _load(self, backend: Backend) -> None:
        while self._waiting:
            taken: list[_Asked] = []
            try:
                with backend.reading() as session:
                    taken = self._take(_MOST)
                    _answer(session, taken)
            except Exception as error:
                for asked in taken or self._take():
                    asked.fail(error)

    def _take(self, most: int | None = None) -> list[_Asked]:
        count = len(self._waiting)
        taken = [self._waiting.popleft() for _ in range(min(count, most or count))]
        return [asked for asked in taken if not asked.answer.done()]


def _answer(session: Session, taken: list[_Asked]) -> None:
    names = sorted({asked.name for asked in taken})
    if not names:
        return
    # One statement: with one for each name, half as many tables are opened a second.
    given = {"names": msgspec.json.encode(names).decode()}
    rows = {row.name: row for row in session.rows(HeadRow, "load_heads_of", given)}
    for asked in taken:
        try:
            found = [rows[asked.name]] if asked.name in rows else []
            head = checked_head(session, found, asked.name, asked.identity)
        except DeltalakeDBError as error:
            asked.fail(error)
        else:
            if not asked.answer.done():
                asked.answer.set_result(head)


_batches: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Batches]] = (
    WeakKeyDictionary()
)


def find_latest(
    call: Call, backend: Backend, name: str, identity: Identity | None
) -> Head:
    """Return a table at its latest version."""
    loop = asyncio.get_running_loop()
    batches = _batches.setdefault(loop, {}).setdefault(backend.key, _Batches())
    answer: asyncio.Future[Head] = loop.create_future()
    return batches.load(call, backend, _Asked(name, identity, answer))

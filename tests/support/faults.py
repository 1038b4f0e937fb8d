"""A store on which requests go wrong, the same way each time for the same seed."""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from delkalakedb.errors import StorageError
from delkalakedb.storage import ObjectMeta, Store

Answer = TypeVar("Answer")


class FaultStore(Store):
    """A store that passes requests on to another, some of them badly.

    Each request meets at most one of these, with the probability given:

    - `refused`: it fails, and nothing was done;
    - `lost`: it is done, but the answer is lost: it fails all the same;
    - `doubled`: it is done twice, as by a client that sends it again, and the second
      answer counts (so `put_new` says False of the object it has created itself);
    - `delayed`: it is done after up to `delay_s` seconds.

    A failure is a `StorageError` whose text begins with `injected`. `injected` counts
    the faults by kind. One thread gets the same faults for the same seed and the same
    requests; of several threads that is only true of them together. Set `quiet` to
    pass everything on, as after an outage.
    """

    def __init__(
        self,
        store: Store,
        seed: int,
        *,
        refused: float = 0.0,
        lost: float = 0.0,
        doubled: float = 0.0,
        delayed: float = 0.0,
        delay_s: float = 0.01,
    ) -> None:
        super().__init__(store.url)
        self.store = store
        self.quiet = False
        chances = {
            "refused": refused,
            "lost": lost,
            "doubled": doubled,
            "delayed": delayed,
        }
        assert sum(chances.values()) <= 1
        self.injected = dict.fromkeys(chances, 0)
        self._chances = chances
        self._delay_s = delay_s
        self._random = random.Random(seed)
        self._lock = threading.Lock()

    def get(self, path: str) -> bytes:
        return self._ask(path, lambda: self.store.get(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self._ask(path, lambda: self.store.get_range(path, start, length))

    def put_new(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        return self._ask(path, lambda: self.store.put_new(path, data, durable=durable))

    def put(self, path: str, data: bytes) -> None:
        self._ask(path, lambda: self.store.put(path, data))

    def put_file(self, path: str, source: Path) -> None:
        self._ask(path, lambda: self.store.put_file(path, source))

    def head(self, path: str) -> ObjectMeta | None:
        return self._ask(path, lambda: self.store.head(path))

    def list(
        self, prefix: str = "", start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        yield from self._ask(prefix, lambda: [*self.store.list(prefix, start_after)])

    def folders(self, prefix: str = "") -> Sequence[str]:
        return self._ask(prefix, lambda: self.store.folders(prefix))

    def delete(self, path: str) -> None:
        self._ask(path, lambda: self.store.delete(path))

    def delete_many(self, paths: Iterable[str]) -> None:
        listed = [*paths]
        self._ask("", lambda: self.store.delete_many(listed))

    def set_modified(self, path: str, modified_ms: int) -> None:
        self._ask(path, lambda: self.store.set_modified(path, modified_ms))

    def _ask(self, path: str, request: Callable[[], Answer]) -> Answer:
        fault, delay_s = self._draw()
        if fault == "refused":
            raise StorageError(f"injected: {path}: refused")
        if fault == "delayed":
            time.sleep(delay_s)
        if fault == "doubled":
            request()
        answer = request()
        if fault == "lost":
            raise StorageError(f"injected: {path}: the answer was lost")
        return answer

    def _draw(self) -> tuple[str | None, float]:
        with self._lock:
            drawn, delay_s = self._random.random(), self._random.random()
            if self.quiet:
                return None, 0.0
            for fault, chance in self._chances.items():
                if drawn < chance:
                    self.injected[fault] += 1
                    return fault, delay_s * self._delay_s
                drawn -= chance
        return None, 0.0

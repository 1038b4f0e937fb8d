"""What was loaded last, for a database that nobody else can write to."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Cache"]

_T = TypeVar("_T")


class Cache(Generic[_T]):
    """The newest `size` values, until the next write."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, _T] = OrderedDict()
        self._writes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], _T]) -> _T:
        """The value of a key, loaded if need be."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            writes = self._writes
        value = load()
        with self._lock:
            # What a write overtook while it was loaded may be from before it.
            if writes == self._writes:
                self._values[key] = value
                if len(self._values) > self._size:
                    self._values.popitem(last=False)
        return value

    def forget(self) -> None:
        """To be called after each write, before it returns."""
        with self._lock:
            self._writes += 1
            self._values.clear()

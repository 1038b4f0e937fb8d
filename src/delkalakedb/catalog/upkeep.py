"""What restoring and vacuuming ask of the catalog."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from delkalakedb.catalog.backend import Backend, Row
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.rows import add_from_row
from delkalakedb.model.actions import Add, Cdc, DeletionVector
from delkalakedb.model.codec import decode_struct

__all__ = ["Upkeep", "load_only_in"]

_PATHS = pa.schema([("path", pa.string())])


def load_only_in(backend: Backend, head: Head, other: int) -> list[Add]:
    """The files at a head's version that another version of the table hasn't."""
    params = {"table_id": head.table_id, "version": head.version, "other": other}
    with backend.reading() as session:
        rows = session.query("load_only_in", params)
    return [add_from_row(row) for row in rows]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """A table as vacuum sees it.

    A file is needed if it is live, if a version since `floor` had it, or if its
    remove is younger than `cutoff_ms`.
    """

    backend: Backend
    head: Head
    floor: int
    cutoff_ms: int

    def expired(self) -> dict[str, int]:
        """The sizes, by path, of removed files that aren't needed any more."""
        return dict(self._query("load_expired"))

    def vectors(self) -> Iterator[tuple[DeletionVector, bool]]:
        """Each deletion vector in a file of its own, and whether it is needed."""
        for vector, expired in self._query("load_vectors"):
            yield decode_struct(vector, DeletionVector), not expired

    def needed(self) -> Iterator[str]:
        """The paths of the files that are needed, those with change data too."""
        statement = self.backend.statements["load_needed"]
        for batch in self.backend.batches(statement, self._params, _PATHS):
            yield from batch["path"].to_pylist()
        since = {"after": self.floor, "upto": self.head.current_version}
        for _, cdc in self._query("load_cdc_since", **since):
            yield decode_struct(cdc, Cdc).path

    @property
    def _params(self) -> dict[str, int]:
        return {
            "table_id": self.head.table_id,
            "floor": self.floor,
            "cutoff_ms": self.cutoff_ms,
        }

    def _query(self, name: str, **window: int) -> list[Row]:
        params = window | {"table_id": self.head.table_id} if window else self._params
        with self.backend.reading() as session:
            return session.query(name, params)

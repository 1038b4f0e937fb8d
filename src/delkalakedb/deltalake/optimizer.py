"""`DeltaTable.optimize`: deltalake's methods, and `purge`."""

import json
from typing import Any

from deltalake import CommitProperties
from deltalake.table import (
    FilterConjunctionType,
    TableOptimizer,
    _encode_filter_conjunction,
)

from delkalakedb.deltalake.raw import is_ours
from delkalakedb.errors import DeltaError


class Optimizer(TableOptimizer):
    """The operations that rewrite files and change no row.

    `DeltaTable.optimize` returns one. deltalake documents `compact` and `z_order`.

    Examples:
        >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
        >>> metrics = table.optimize.compact()
        >>> metrics["numFilesRemoved"], metrics["numFilesAdded"]
        (2, 1)
    """

    def purge(
        self,
        partition_filters: FilterConjunctionType | None = None,
        dead_share: float = 0.0,
        max_concurrent_tasks: int | None = None,
        *,
        commit_properties: CommitProperties | None = None,
    ) -> dict[str, Any]:
        """Rewrite files without the rows that deletion vectors delete.

        The old files stay until vacuum deletes them.

        Args:
            partition_filters: rewrites only files of these partitions.
            dead_share: rewrites only files with a larger share of deleted rows. By
                default, any deleted row is enough.
            max_concurrent_tasks: how many files to write concurrently.
            commit_properties: more of the commit.

        Returns:
            The metrics of `compact`, and how many deletion vectors and deleted rows are
            gone.

        Raises:
            DeltaError: The table isn't a table of a catalog.
            CommitFailedError: Other commits conflict with the purge even after retries.

        Examples:
            >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
            >>> table.optimize.purge()["numFilesRemoved"]
            0
        """
        raw: Any = self.table._table
        if not is_ours(raw):
            raise DeltaError(
                f"{self.table.table_uri}: only tables of a catalog can be purged; use "
                "optimize.z_order(), which rewrites all files"
            )
        filters = _encode_filter_conjunction(partition_filters or [])
        metrics = raw.purge(
            filters or None, dead_share, max_concurrent_tasks, commit_properties
        )
        self.table.update_incremental()
        found: dict[str, Any] = json.loads(metrics)
        return found

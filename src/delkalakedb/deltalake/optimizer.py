"""`DeltaTable.optimize`: deltalake's methods, and `purge`."""

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from deltalake import CommitProperties, PostCommitHookProperties, WriterProperties
from deltalake.table import (
    FilterConjunctionType,
    TableOptimizer,
    _encode_filter_conjunction,
)

from delkalakedb.deltalake.raw import is_ours
from delkalakedb.errors import DeltaError
from delkalakedb.progress import ProgressOption, reporting


class Optimizer(TableOptimizer):
    """The operations that rewrite files and change no row.

    `DeltaTable.optimize` returns one. deltalake documents `compact` and `z_order`.

    Examples:
        >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
        >>> metrics = table.optimize.compact()
        >>> metrics["numFilesRemoved"], metrics["numFilesAdded"]
        (2, 1)
    """

    def compact(
        self,
        partition_filters: FilterConjunctionType | None = None,
        target_size: int | None = None,
        max_concurrent_tasks: int | None = None,
        max_spill_size: int | None = None,
        max_temp_directory_size: int | None = None,
        min_commit_interval: int | timedelta | None = None,
        writer_properties: WriterProperties | None = None,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        progress: ProgressOption = None,
    ) -> dict[str, Any]:
        """Rewrite small files as larger ones; deltalake documents the arguments.

        Args:
            partition_filters: as deltalake takes it, as are all others but `progress`.
            target_size: in bytes.
            max_concurrent_tasks: how many files to write concurrently.
            max_spill_size: in bytes.
            max_temp_directory_size: in bytes.
            min_commit_interval: in seconds.
            writer_properties: of the Parquet writer.
            args: deprecated by deltalake.
            commit_properties: of the commit.
            post_commithook_properties: as deltalake takes them.
            progress: called with a `Progress` of the bytes written; True draws a bar.

        Returns:
            The metrics of the compaction.

        Examples:
            >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
            >>> table.optimize.compact()["numFilesRemoved"]
            2
        """
        with reporting(progress):
            return super().compact(
                partition_filters,
                target_size,
                max_concurrent_tasks,
                max_spill_size,
                max_temp_directory_size,
                min_commit_interval,
                writer_properties,
                *args,
                commit_properties=commit_properties,
                post_commithook_properties=post_commithook_properties,
            )

    def z_order(
        self,
        columns: Iterable[str],
        partition_filters: FilterConjunctionType | None = None,
        target_size: int | None = None,
        max_concurrent_tasks: int | None = None,
        max_spill_size: int | None = None,
        max_temp_directory_size: int | None = None,
        min_commit_interval: int | timedelta | None = None,
        writer_properties: WriterProperties | None = None,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        progress: ProgressOption = None,
    ) -> dict[str, Any]:
        """Rewrite files with their rows in Z-order; deltalake documents the arguments.

        Args:
            columns: the columns of the order.
            partition_filters: as `compact` takes it, as are all others.
            target_size: in bytes.
            max_concurrent_tasks: how many files to write concurrently.
            max_spill_size: in bytes.
            max_temp_directory_size: in bytes.
            min_commit_interval: in seconds.
            writer_properties: of the Parquet writer.
            args: deprecated by deltalake.
            commit_properties: of the commit.
            post_commithook_properties: as deltalake takes them.
            progress: called with a `Progress` of the bytes written; True draws a bar.

        Returns:
            The metrics of the rewriting.

        Examples:
            >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
            >>> table.optimize.z_order(["city"])["numFilesAdded"]
            1
        """
        with reporting(progress):
            return super().z_order(
                columns,
                partition_filters,
                target_size,
                max_concurrent_tasks,
                max_spill_size,
                max_temp_directory_size,
                min_commit_interval,
                writer_properties,
                *args,
                commit_properties=commit_properties,
                post_commithook_properties=post_commithook_properties,
            )

    def purge(
        self,
        partition_filters: FilterConjunctionType | None = None,
        dead_share: float = 0.0,
        max_concurrent_tasks: int | None = None,
        *,
        commit_properties: CommitProperties | None = None,
        progress: ProgressOption = None,
    ) -> dict[str, Any]:
        """Rewrite files without the rows that deletion vectors delete.

        The old files stay until vacuum deletes them.

        Args:
            partition_filters: rewrites only files of these partitions.
            dead_share: rewrites only files with a larger share of deleted rows. By
                default, any deleted row is enough.
            max_concurrent_tasks: how many files to write concurrently.
            commit_properties: more of the commit.
            progress: called with a `Progress` of the files; True draws a bar.

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
        with reporting(progress):
            metrics = raw.purge(
                filters or None, dead_share, max_concurrent_tasks, commit_properties
            )
        self.table.update_incremental()
        found: dict[str, Any] = json.loads(metrics)
        return found

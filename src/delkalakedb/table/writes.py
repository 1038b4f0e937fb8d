"""What the stand-in for deltalake's `RawDeltaTable` does by committing.

Names, order of arguments and results are those of deltalake's own, which calls them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa

from delkalakedb.errors import DeltaError, PredicateError, TableExistsError
from delkalakedb.model.actions import Add, Metadata, known
from delkalakedb.model.predicate import Predicate, parse_predicate
from delkalakedb.model.prune import is_of_partitions
from delkalakedb.model.schema import parse_schema
from delkalakedb.model.stats import parse_stats
from delkalakedb.table.alters import EVERY_FILE, IN_PRIVATE, SqlRawAlters
from delkalakedb.table.merging import MergePlan
from delkalakedb.table.small import Groups, append, split_small
from delkalakedb.workspace import Operation, Spool, split_properties
from delkalakedb.workspace.inplace import stage

__all__ = ["SqlRawWrites"]

_TARGET_BYTES = 100 * 1024 * 1024
# What makes an append more than its rows.
_ASKING = (
    "partition_by",
    "schema_mode",
    "predicate",
    "target_file_size",
    "name",
    "description",
    "configuration",
    "writer_properties",
    "commit_properties",
)


class SqlRawWrites(SqlRawAlters):
    """The committing half of the stand-in; each call moves the handle."""

    def write(
        self,
        data: Any,
        batch_schema: Any,
        partition_by: list[str] | None,
        mode: str,
        schema_mode: str | None = None,
        predicate: str | None = None,
        target_file_size: int | None = None,
        name: str | None = None,
        description: str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        writer_properties: Any = None,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        """Append or overwrite."""
        if mode == "ignore":
            return
        if mode == "error":
            location = self._current().table.location
            raise TableExistsError(
                f"{self._name}: A table already exists at {location}"
            )
        options = {
            "batch_schema": batch_schema,
            "partition_by": partition_by,
            "mode": mode,
            "schema_mode": schema_mode,
            "predicate": predicate,
            "target_file_size": target_file_size,
            "name": name,
            "description": description,
            "configuration": split_properties(configuration)[0] or None,
            "writer_properties": writer_properties,
            "commit_properties": commit_properties,
            "post_commithook_properties": IN_PRIVATE,
        }
        if mode == "overwrite" and predicate is not None:
            self._replace(data, options)
            return
        if mode == "append" and not any(map(options.get, _ASKING)):
            small, data = split_small(self._current(), data)
            if small is not None:
                self._append(small)
                return
        operation = Operation[None](
            mode,
            lambda raw: raw.write(data=data, **options),
            remove_all=mode == "overwrite",
        )
        self._perform(operation, commit_properties)

    def _append(self, rows: Groups) -> None:
        run = partial(append, groups=rows, storage_options=self._storage_options)
        self._perform(Operation[Any]("append", run), None, stage)

    def _replace(self, data: Any, options: dict[str, Any]) -> None:
        """Overwrite where a predicate holds."""
        with closing(Spool(data)) as spool:
            operation = Operation[None](
                "overwrite",
                lambda raw: raw.write(data=spool.reader(), **options),
                self._parsed(options["predicate"]),
            )
            self._perform(operation, options["commit_properties"])

    def delete(
        self,
        predicate: str | None = None,
        writer_properties: Any = None,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> str:
        """Delete rows; metrics as JSON."""
        parsed = self._parsed(predicate)
        partitions = self._current().metadata.partition_columns
        whole = predicate is None or is_of_partitions(parsed, partitions)
        operation = Operation[str](
            "delete",
            lambda raw: raw.delete(
                predicate, writer_properties, commit_properties, IN_PRIVATE
            ),
            parsed,
            reads=lambda add: not (whole and _is_counted(add)),
        )
        return self._perform(operation, commit_properties)

    def update(
        self,
        updates: dict[str, str],
        predicate: str | None = None,
        writer_properties: Any = None,
        safe_cast: bool = False,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> str:
        """Update rows; metrics as JSON."""
        operation = Operation[str](
            "update",
            lambda raw: raw.update(
                updates,
                predicate,
                writer_properties,
                safe_cast=safe_cast,
                commit_properties=commit_properties,
                post_commithook_properties=IN_PRIVATE,
            ),
            self._parsed(predicate),
        )
        return self._perform(operation, commit_properties)

    def create_merge_builder(self, source: Any, **options: Any) -> MergePlan:
        """A merge to be described, for `merge_execute`."""
        return MergePlan(source, {**options, "post_commithook_properties": IN_PRIVATE})

    def merge_execute(self, merge_builder: MergePlan) -> str:
        """Merge; metrics as JSON."""
        with closing(Spool(merge_builder.source)) as spool:
            operation = Operation[str](
                "merge",
                lambda raw: merge_builder.run(raw, spool.reader()),
                self._matching(merge_builder, spool),
            )
            return self._perform(operation, merge_builder.commit_properties)

    def _matching(self, merge: MergePlan, spool: Spool) -> Predicate:
        """The files that a merge may touch, by the keys of its source."""
        snapshot = self._current()
        try:
            return merge.matching(snapshot.metadata, spool)
        except pa.ArrowException as error:
            raise DeltaError(
                f"{self._name}: merge on version {snapshot.version}: the source can't "
                f"be read: {error}"
            ) from error

    def compact_optimize(
        self,
        partition_filters: Sequence[Any] | None = None,
        target_size: int | None = None,
        max_concurrent_tasks: int | None = None,
        max_spill_size: int | None = None,
        max_temp_directory_size: int | None = None,
        min_commit_interval: int | None = None,
        writer_properties: Any = None,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> str:
        """Compact small files; metrics as JSON."""
        arguments = (
            partition_filters,
            target_size,
            max_concurrent_tasks,
            max_spill_size,
            max_temp_directory_size,
            min_commit_interval,
            writer_properties,
            commit_properties,
            IN_PRIVATE,
        )
        enough = target_size or _target_bytes(self._current().metadata)
        return self._rearrange(
            "compact",
            lambda raw: raw.compact_optimize(*arguments),
            partition_filters,
            commit_properties,
            # Those of that size are passed over.
            reads=lambda add: add.size < enough,
        )

    def z_order_optimize(
        self,
        z_order_columns: list[str],
        partition_filters: Sequence[Any] | None = None,
        target_size: int | None = None,
        max_concurrent_tasks: int | None = None,
        max_spill_size: int | None = None,
        max_temp_directory_size: int | None = None,
        min_commit_interval: int | None = None,
        writer_properties: Any = None,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> str:
        """Rewrite files in Z-order; metrics as JSON."""
        arguments = (
            z_order_columns,
            partition_filters,
            target_size,
            max_concurrent_tasks,
            max_spill_size,
            max_temp_directory_size,
            min_commit_interval,
            writer_properties,
            commit_properties,
            IN_PRIVATE,
        )
        return self._rearrange(
            "z_order",
            lambda raw: raw.z_order_optimize(*arguments),
            partition_filters,
            commit_properties,
        )

    def create_write_transaction(
        self,
        actions: Sequence[Any],
        mode: str,
        partition_by: list[str],
        schema: Any,
        partitions_filters: Any = None,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        """Commit files that are in their place already; the handle stays."""
        everything = mode == "overwrite" and not partitions_filters
        some = mode == "overwrite" and partitions_filters
        operation = Operation[None](
            "write transaction",
            lambda raw: raw.create_write_transaction(
                actions,
                mode,
                partition_by,
                schema,
                partitions_filters,
                commit_properties,
                IN_PRIVATE,
            ),
            self._parsed(partitions_filters) if some else None,
            remove_all=everything,
        )
        here = self._snapshot
        self._perform(operation, commit_properties)
        self._snapshot = here

    def _rearrange(
        self,
        name: str,
        run: Callable[[Any], str],
        filters: Sequence[Any] | None,
        commit_properties: Any,
        reads: Callable[[Add], bool] = lambda add: True,
    ) -> str:
        operation = Operation(
            name, run, self._parsed(filters), rearranges=True, reads=reads
        )
        return self._perform(operation, commit_properties)

    def _parsed(self, predicate: str | Sequence[Any] | None) -> Predicate:
        """The predicate; one that only delta-rs understands may hold for any row."""
        metadata = self._current().metadata
        try:
            if isinstance(predicate, str) and not _reads_alike(predicate):
                return EVERY_FILE
            return parse_predicate(
                predicate or None,
                parse_schema(metadata.schema_string),
                metadata.partition_columns,
            )
        except PredicateError:
            return EVERY_FILE


def _reads_alike(predicate: str) -> bool:
    # Only where it can matter: sqlglot takes long to import, and to parse.
    if "distinct" not in predicate.lower():
        return True
    from delkalakedb.model.sql_predicate import reads_alike

    return reads_alike(predicate)


def _target_bytes(metadata: Metadata) -> int:
    """How large compaction makes files, as delta-rs reads the table's properties."""
    given = (known(metadata.configuration) or {}).get("delta.targetFileSize") or ""
    size_bytes = int(given) if given.isascii() and given.isdecimal() else 0
    return size_bytes or _TARGET_BYTES


def _is_counted(add: Add) -> bool:
    """Whether the log says how many rows a file has, so that nobody has to look."""
    stats = parse_stats(known(add.stats))
    counted = stats is not None and stats.num_records is not None
    return counted and known(add.deletion_vector) is None

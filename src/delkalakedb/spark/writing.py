"""Writing a DataFrame to a table, which the first write creates."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.errors import DeltaError, TableExistsError, TableNotFoundError
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    Metadata,
    Protocol,
    Txn,
)
from delkalakedb.model.predicate import Anything
from delkalakedb.model.protocol import check_writable
from delkalakedb.spark.assigning import find_field
from delkalakedb.spark.checking import finished, required
from delkalakedb.spark.evolving import (
    evolved_metadata,
    evolved_protocol,
    fitted,
    plain_schema,
)
from delkalakedb.spark.files_out import CHANGE_TYPE, write_files
from delkalakedb.spark.mapping import is_mapped
from delkalakedb.spark.output import Output, commit_info
from delkalakedb.spark.partition_overwrite import SETTING, is_dynamic, partitions_of
from delkalakedb.spark.rewriting import deletion
from delkalakedb.spark.schemas import table_schema
from delkalakedb.spark.session import check_spark
from delkalakedb.spark.target import Target, kept, pruning
from delkalakedb.table.create import creation
from delkalakedb.table.opened import open_catalog
from delkalakedb.table.perform import perform
from delkalakedb.table.write import make_table_in
from delkalakedb.uri import parse_uri, require_table
from delkalakedb.workspace import Captured, Operation, run_new
from delkalakedb.workspace.inplace import Work, stage, stage_new

__all__ = ["Write", "write"]

_MODES = {
    "append": "Append",
    "overwrite": "Overwrite",
    "error": "ErrorIfExists",
    "errorifexists": "ErrorIfExists",
    "default": "ErrorIfExists",
    "ignore": "Ignore",
}


def write(
    df: DataFrame,
    uri: str,
    mode: str = "append",
    *,
    partition_by: Sequence[str] | str | None = None,
    merge_schema: bool = False,
    overwrite_schema: bool = False,
    replace_where: str | None = None,
    partition_overwrite_mode: str | None = None,
    txn: tuple[str, int] | None = None,
    location: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    description: str | None = None,
    user_metadata: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Write rows to a table, which the first write creates.

    Args:
        df: the rows; a column that isn't there is null.
        uri: the table's `deltasql://` URI.
        mode: where there is a table: "append" to it, "overwrite" its rows, "ignore" the
            call, or "error" (also "errorifexists").
        partition_by: the columns that a new table is partitioned by.
        merge_schema: whether new columns are added to the table.
        overwrite_schema: whether "overwrite" replaces the schema, too.
        replace_where: with "overwrite", a condition in Spark's SQL: the rows for which
            it holds are replaced, and it must hold for the new ones.
        partition_overwrite_mode: with "overwrite" of a partitioned table, "dynamic"
            replaces only the partitions that get rows, "static" all of them; the
            session's `spark.sql.sources.partitionOverwriteMode` by default.
        txn: an application's id and its own version. What it has written before isn't
            written again.
        location: where a new table's files go.
        configuration: the properties of a new table.
        description: the description of a new table.
        user_metadata: a text for the table's history.
        storage_options: of the table's object store, as deltalake takes them.
    """
    check_spark(df.sparkSession)
    parsed = parse_uri(uri)
    name, catalog = require_table(parsed), open_catalog(parsed)
    plan = Write(
        df,
        name,
        mode,
        partition_by=partition_by,
        merge_schema=merge_schema,
        overwrite_schema=overwrite_schema,
        replace_where=replace_where,
        partition_overwrite_mode=partition_overwrite_mode,
        txn=txn,
        configuration=configuration,
        description=description,
        user_metadata=user_metadata,
        storage_options=storage_options,
    )
    if not _write_again(catalog, plan):
        make_table_in(
            catalog,
            name,
            location or parsed.location,
            plan.creation(),
            storage_options,
            lambda made: _write_again(catalog, plan),
            stage_new,
        )


def _write_again(catalog: Catalog, plan: "Write") -> bool:
    """Write to the table if it is there."""
    try:
        snapshot = catalog.snapshot(plan.name)
    except TableNotFoundError:
        return False
    if (operation := plan.operation(snapshot)) is not None:
        options = plan.storage_options
        perform(catalog, snapshot, operation, storage_options=options, stage=stage)
    return True


@dataclass(frozen=True)
class Write:
    """One write, as `write` describes it, to be done on whichever version it takes."""

    df: DataFrame
    name: str
    mode: str
    _: KW_ONLY
    partition_by: Sequence[str] | str | None = None
    merge_schema: bool = False
    overwrite_schema: bool = False
    replace_where: str | None = None
    partition_overwrite_mode: str | None = None
    txn: tuple[str, int] | None = None
    configuration: Mapping[str, str | None] | None = None
    description: str | None = None
    user_metadata: str | None = None
    storage_options: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.mode.lower() not in _MODES:
            known = ", ".join(_MODES)
            raise DeltaError(f"{self.name}: mode {self.mode!r} isn't one of {known}")
        is_dynamic(self.partition_overwrite_mode, None)
        for option in ("overwrite_schema", "replace_where"):
            if getattr(self, option) and not self._overwrites:
                raise DeltaError(f"{self.name}: {option} needs mode='overwrite'")
        if self.overwrite_schema and self.replace_where is not None:
            raise DeltaError(
                f"{self.name}: replace_where keeps rows, so overwrite_schema can't "
                "replace their schema"
            )

    def creation(self) -> Operation[None]:
        """The operation that makes the table."""
        run: Any = self._create
        return Operation("write", run)

    def operation(self, snapshot: Snapshot) -> Operation[None] | None:
        """The operation on a table that is there; None where nothing is to be done."""
        said = _MODES[self.mode.lower()]
        if said == "Ignore" or self._repeats(snapshot):
            return None
        if said == "ErrorIfExists":
            raise TableExistsError(
                f"{self.name}: A table already exists at {snapshot.table.location}"
            )
        run: Any = self._run if self.replace_where is None else self._replace
        if self.replace_where is not None:
            files = pruning(self.replace_where, self._target(snapshot))
            self._is_dynamic(self._metadata(snapshot))
            return Operation("overwrite", run, files)
        if self._overwrites and self._is_dynamic(self._metadata(snapshot)):
            run = self._replace_partitions
            return Operation("overwrite", run, Anything())
        return Operation(said.lower(), run, remove_all=self._overwrites)

    @property
    def _overwrites(self) -> bool:
        return self.mode.lower() == "overwrite"

    @property
    def _partitions(self) -> list[str] | None:
        given = self.partition_by
        if given is None:
            return None
        return [given] if isinstance(given, str) else list(given)

    def _is_dynamic(self, metadata: Metadata) -> bool:
        """Return whether an overwrite replaces only the partitions that get rows.

        Options that contradict each other are refused, as Delta Spark refuses them.
        """
        given = self.partition_overwrite_mode
        setting = self.df.sparkSession.conf.get(SETTING, "static")
        if not metadata.partition_columns or not is_dynamic(given, setting):
            return False
        if self.replace_where is not None:
            if given is not None:
                raise DeltaError(
                    f"{self.name}: replace_where and partition_overwrite_mode="
                    "'dynamic' both say what is replaced; give one of them"
                )
            return False
        if self.overwrite_schema:
            raise DeltaError(
                f"{self.name}: overwrite_schema can't be used where only partitions "
                "are replaced; give partition_overwrite_mode='static', too"
            )
        return True

    def _repeats(self, snapshot: Snapshot) -> bool:
        if self.txn is None:
            return False
        written = snapshot.txn_version(self.txn[0])
        return written is not None and written >= self.txn[1]

    def _target(self, snapshot: Snapshot) -> Target:
        options = self.storage_options
        return Target(self.df.sparkSession, snapshot, storage_options=options)

    # ---- what is done, on a location or a version

    def _create(self, location: str) -> Work[None]:
        schema = plain_schema(self.df.schema).json()
        new = creation(
            schema,
            partition_by=self._partitions,
            configuration=self.configuration,
            description=self.description,
        )
        protocol, metadata = _made(run_new(self.name, location, new))
        protocol = evolved_protocol(protocol, metadata)
        check_writable(protocol, metadata)
        if self._overwrites:
            self._is_dynamic(metadata)
        written = write_files(
            self._rows(metadata),
            location,
            metadata,
            protocol,
            storage_options=self.storage_options,
        )
        info = self._info(written.adds)
        actions: list[Action] = [info, protocol, metadata, *written.adds, *self._txns]
        return Work(None, [actions], written.new_paths)

    def _run(self, snapshot: Snapshot) -> Work[None]:
        """Append or overwrite."""
        target, metadata = self._target(snapshot), self._metadata(snapshot)
        removed = {}
        if self._overwrites:
            target.check_removable()
            removed = {"numRemovedFiles": snapshot.table.num_files}
        with Output(target, metadata) as out:
            out.write(self._rows(metadata))
            return self._finish(out, (), removed)

    def _replace_partitions(self, snapshot: Snapshot) -> Work[None]:
        """Overwrite the partitions that get rows."""
        target, metadata = self._target(snapshot), self._metadata(snapshot)
        target.check_removable()
        with Output(target, metadata) as out:
            out.write(self._rows(metadata))
            partitions = partitions_of(metadata, out.adds)
            gone = partitions.files(snapshot)
            work = self._finish(out, (), {"numRemovedFiles": len(gone)}, gone.adds)
            return replace(work, looked_at=partitions.predicate)

    def _replace(self, snapshot: Snapshot) -> Work[None]:
        """Overwrite where a condition holds."""
        condition = self.replace_where
        assert condition is not None
        target, metadata = self._target(snapshot), self._metadata(snapshot)
        rule = (sf.expr(condition), f"replace_where ({condition})")
        rows = required(self._rows(metadata), [rule], metadata)
        files = pruning(condition, target)
        with Output(target, metadata) as out:
            gone: Any = deletion(self._target, condition, files).run(snapshot)
            out.new_paths += gone.new_paths
            actions = [a for c in gone.commits for a in c if type(a) is not CommitInfo]
            if any(isinstance(action, Cdc) for action in actions):
                with kept(rows):
                    out.write(rows)
                    out.write_changes(rows.withColumn(CHANGE_TYPE, sf.lit("insert")))
            else:
                out.write(rows)
            return self._finish(out, actions, {})

    def _finish(
        self,
        out: Output,
        more: Sequence[Action],
        metrics: Mapping[str, int],
        gone: Sequence[Add] | None = None,
    ) -> Work[None]:
        info = self._info(out.adds, metrics, dynamic=gone is not None)
        work = out.work(None, info, gone or ())
        (actions,) = work.commits
        return replace(work, commits=[[*actions, *more, *self._txns]])

    # ---- what comes of it

    def _metadata(self, snapshot: Snapshot) -> Metadata:
        """The metadata of the version to come."""
        snapshot.check_ours()
        metadata = snapshot.metadata
        if self.overwrite_schema:
            return self._replaced(metadata)
        given, there = self._partitions, metadata.partition_columns
        if given is not None and given != there:
            raise DeltaError(
                f"{self.name}: the table is partitioned by {there}, not by {given}; "
                "overwrite_schema=True changes that"
            )
        return (
            evolved_metadata(metadata, self.df.schema)
            if self.merge_schema
            else metadata
        )

    def _replaced(self, metadata: Metadata) -> Metadata:
        if is_mapped(metadata):
            raise DeltaError(
                f"{self.name}: overwrite_schema can't be used on a table with column "
                "mapping"
            )
        schema = plain_schema(self.df.schema)
        partitions = self._partitions
        if partitions is None:
            partitions = [n for n in metadata.partition_columns if n in schema.names]
        return msgspec.structs.replace(
            metadata, schema_string=schema.json(), partition_columns=partitions
        )

    def _rows(self, metadata: Metadata) -> DataFrame:
        schema = table_schema(metadata)
        given = [f.name for f in schema if find_field(self.df.schema, f.name)]
        return finished(fitted(self.df, schema, self.name), metadata, given)

    @property
    def _txns(self) -> list[Txn]:
        if self.txn is None:
            return []
        app_id, version = self.txn
        now_ms = int(time.time() * 1000)
        return [Txn(app_id=app_id, version=version, last_updated=now_ms)]

    def _info(
        self,
        adds: Sequence[Any],
        more: Mapping[str, int] = {},
        *,
        dynamic: bool = False,
    ) -> CommitInfo:
        parameters: dict[str, Any] = {
            "mode": _MODES[self.mode.lower()],
            "partitionBy": json.dumps(self._partitions or []),
        }
        if self.replace_where is not None:
            parameters["predicate"] = json.dumps([self.replace_where])
        if dynamic:
            parameters["isDynamicPartitionOverwrite"] = True
        rows = (json.loads(add.stats)["numRecords"] for add in adds)
        metrics = {
            "numFiles": len(adds),
            "numOutputRows": sum(rows),
            "numOutputBytes": sum(add.size for add in adds),
        }
        info = commit_info("WRITE", parameters, {**metrics, **more})
        if self.user_metadata is None:
            return info
        return CommitInfo({**info.fields, "userMetadata": self.user_metadata})


def _made(captured: Captured[None]) -> tuple[Protocol, Metadata]:
    """What delta-rs makes of a new table's schema and properties."""
    actions = [action for commit in captured.commits for action in commit]
    (protocol,) = (action for action in actions if isinstance(action, Protocol))
    (metadata,) = (action for action in actions if isinstance(action, Metadata))
    return protocol, metadata

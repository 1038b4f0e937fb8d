"""Import, verify and checkpoint huge tables with Spark's executors.

Executors read the log, and only the driver opens the catalog. Executors return the
bytes of commits and the file actions of checkpoints in the order of the log, so the
result equals that of a single process.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog import using_table
from delkalakedb.deltalake import DeltaTable
from delkalakedb.migrate import Imported, import_table as import_log
from delkalakedb.mirror.verify import Report, verify_table
from delkalakedb.model.actions import decode_commit, encode_commit
from delkalakedb.model.log import FileKey
from delkalakedb.progress import ProgressOption
from delkalakedb.spark.session import check_spark
from delkalakedb.storage import ObjectMeta, Readable, Store, open_store
from delkalakedb.storage.log import (
    ADDS,
    Part,
    Reading,
    batches,
    read_files,
    read_sidecars,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
Options = Mapping[str, str] | None
# tasks in one job, whose results are in the driver's memory together
_COMMIT_TASKS, _FILE_TASKS = 64, 4
_BODIES = pa.schema([("task", pa.int64()), ("body", pa.binary())])
# an add action as columns, or another action as one line of JSON
_FILES = pa.schema(
    [
        ("task", pa.int64()),
        *((column.name, column.type) for column in ADDS),
        ("line", pa.string()),
    ]
)


def import_table(
    spark: "SparkSession",
    location: str,
    uri: str,
    *,
    storage_options: Options = None,
    history: bool = True,
    deep: bool = False,
    outside_files: bool = False,
    progress: ProgressOption = None,
) -> Imported:
    """Import a table like `dk.import_table`, with executors reading the log.

    Args:
        spark: the Spark session.
        location: the table's location, a path or URL that executors can reach.
        uri: the `deltasql://` URI of the new table.
        storage_options: the options of the table's object store, as deltalake takes
            them.
        history: whether to import all versions in the log; otherwise the import starts
            at the newest checkpoint.
        deep: whether to verify every version and the data files, not only the latest
            state.
        outside_files: whether to accept a shallow clone, whose log names files of
            another location by absolute paths. Those files are read and never deleted.
        progress: called with a `Progress` as in `dk.import_table`; True draws a bar.

    Returns:
        The versions brought in, and the comparison of the catalog with the log.

    Raises:
        TableNotFoundError: There is no Delta table at the location.
        TableExistsError: Another table has the name or the location.

    Examples:
        >>> import deltalake
        >>> deltalake.write_deltalake("events", pa.table({"id": [1]}))
        >>> uri = "deltasql://sqlite/meta.db?table=events"
        >>> dks.import_table(spark, "events", uri).ok
        True
    """
    check_spark(spark)
    return import_log(
        location,
        uri,
        storage_options=storage_options,
        history=history,
        deep=deep,
        outside_files=outside_files,
        progress=progress,
        reading=_Executors(spark, storage_options),
    )


def verify(
    spark: "SparkSession",
    uri: str,
    *,
    deep: bool = False,
    storage_options: Options = None,
) -> Report:
    """Verify one table like `dk.verify`, with executors reading the log.

    Args:
        spark: the Spark session.
        uri: the table's URI.
        deep: whether to verify every version and the data files, not only the latest
            state.
        storage_options: the options of the table's object store, as deltalake takes
            them.

    Returns:
        The differences between the table's mirror and the catalog.

    Raises:
        TableNotFoundError: The catalog has no such table.
        StorageError: The object store can't be reached.

    Examples:
        >>> dks.verify(spark, "deltasql://sqlite/meta.db?table=sales").ok
        True
    """
    check_spark(spark)
    with using_table(uri) as (catalog, name):
        store = open_store(catalog.table(name).location, storage_options)
        reading = _Executors(spark, storage_options)
        return verify_table(catalog, name, store, deep=deep, reading=reading)


def checkpoint(
    spark: "SparkSession", uri: str, *, storage_options: Options = None
) -> None:
    """Write a V2 checkpoint of a table's latest version, streamed from SQL.

    The checkpoint has a sidecar for every 500,000 files. A table without the feature
    v2Checkpoint gets a classic checkpoint of one file.

    Args:
        spark: the Spark session.
        uri: the table's URI.
        storage_options: the options of the table's object store, as deltalake takes
            them.

    Raises:
        TableNotFoundError: The catalog has no such table.

    Examples:
        >>> dks.checkpoint(spark, "deltasql://sqlite/meta.db?table=sales")
        >>> dk.mirror.status("deltasql://sqlite/meta.db")[0].checkpoint_version
        1
    """
    check_spark(spark)
    options = dict(storage_options) if storage_options else None
    raw: Any = DeltaTable(uri, storage_options=options)._table
    raw.create_checkpoint(v2=True)


class _Executors(Reading):
    """A reader of logs by Spark jobs, which don't get the catalog's credentials."""

    def __init__(self, spark: "SparkSession", options: Options) -> None:
        self._spark = spark
        self._options = dict(options or {})

    def commits(self, store: Store, files: Iterable[ObjectMeta]) -> Iterator[bytes]:
        """Yield the bytes of commits, in order."""
        tasks = (tuple(meta.path for meta in some) for some in batches(files))
        for some in _some(tasks, _COMMIT_TASKS):
            read = _ReadCommits(store.url, self._options, some)
            yield from self._run(read, len(some), _BODIES)["body"].to_pylist()

    def files(
        self,
        store: Readable,
        paths: Sequence[str],
        kinds: Set[str],
        without: Set[FileKey],
    ) -> Iterator[Part]:
        """Yield the file actions of a checkpoint, each of whose files is one task."""
        if len(paths) == 1 and (sidecars := list(read_sidecars(store, paths[0]))):
            # The few actions outside of sidecars come first.
            yield from read_files(store, paths, kinds, without, sidecars=False)
            paths = sidecars
        for some in _some(iter(paths), _FILE_TASKS):
            given = (tuple(some), frozenset(kinds), frozenset(without))
            read = _ReadFiles(store.url, self._options, *given)
            for batch in self._run(read, len(some), _FILES).to_batches():
                yield from _parts(batch)

    def _run(
        self, read: "_ReadCommits | _ReadFiles", tasks: int, schema: pa.Schema
    ) -> pa.Table:
        from pyspark.sql.pandas.types import from_arrow_schema

        from delkalakedb.spark.pyspark_api import to_arrow

        numbers = self._spark.range(0, tasks, 1, tasks)
        found = to_arrow(numbers.mapInArrow(read, from_arrow_schema(schema)))
        numbers_of = found["task"].combine_chunks()
        if pc.all(pc.greater_equal(numbers_of[1:], numbers_of[:-1])).as_py() is False:
            found = found.take(pc.sort_indices(found["task"]))
        return found.cast(schema)


@dataclass(frozen=True)
class _ReadCommits:
    """The function that returns a row for each commit of a task."""

    location: str
    options: Mapping[str, str] = field(repr=False)
    tasks: Sequence[Sequence[str]]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(self.location, self.options)
        for number in _numbers(numbers):
            bodies = [store.get(path) for path in self.tasks[number]]
            columns = [[number] * len(bodies), bodies]
            yield pa.RecordBatch.from_arrays(
                list(map(pa.array, columns)), schema=_BODIES
            )


@dataclass(frozen=True)
class _ReadFiles:
    """The function that returns the file actions of a task's checkpoint part."""

    location: str
    options: Mapping[str, str] = field(repr=False)
    paths: Sequence[str]
    kinds: Set[str]
    without: Set[FileKey]

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(self.location, self.options)
        for number in _numbers(numbers):
            for part in read_files(
                store, [self.paths[number]], self.kinds, self.without
            ):
                if len(part):
                    yield _handed_over(number, part)


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _handed_over(number: int, part: Part) -> pa.RecordBatch:
    task = pa.repeat(pa.scalar(number, pa.int64()), len(part))
    if isinstance(part, pa.RecordBatch):
        columns = [task, *part.columns, pa.nulls(len(part), pa.string())]
    else:
        lines = [encode_commit([action]).decode() for action in part]
        nulls = [pa.nulls(len(part), column.type) for column in ADDS]
        columns = [task, *nulls, pa.array(lines, pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=_FILES)


def _parts(batch: pa.RecordBatch) -> Iterator[Part]:
    """Split a task's rows into add actions as columns and lists of other actions."""
    plain = batch["line"].is_null().to_pylist()
    changes = [i for i, (a, b) in enumerate(pairwise(plain), 1) if a != b]
    for start, end in pairwise([0, *changes, len(plain)]):
        run = batch.slice(start, end - start)
        if plain[start]:
            columns = [run[name] for name in ADDS.names]
            yield pa.RecordBatch.from_arrays(columns, schema=ADDS)
        else:
            yield list(decode_commit("".join(run["line"].to_pylist()).encode()))


def _some(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while some := list(islice(items, size)):
        yield some

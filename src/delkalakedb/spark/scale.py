"""Metadata at scale: executors read a huge log, the driver has the catalog.

What comes of it is what one process makes of the same log: executors hand over the
commits' own bytes and a checkpoint's files, in the order of the log.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog import connect
from delkalakedb.migrate.importing import Imported, ImportProgress, import_into
from delkalakedb.mirror.report import Report
from delkalakedb.mirror.verify import verify as compare
from delkalakedb.model.codec import decode_commit, encode_commit
from delkalakedb.model.replay import FileKey
from delkalakedb.spark.session import check_spark
from delkalakedb.storage import ObjectMeta, Store, open_store
from delkalakedb.storage.checkpoint import read_sidecars
from delkalakedb.storage.columns import ADDS, Part, read_files
from delkalakedb.storage.reading import Reading, batches
from delkalakedb.table import DeltaTable
from delkalakedb.uri import parse_uri, require_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["checkpoint", "import_table", "verify"]

T = TypeVar("T")
Options = Mapping[str, str] | None
# Tasks in one job: what they hand over is in the driver's memory at once.
_COMMIT_TASKS, _FILE_TASKS = 64, 4
_BODIES = pa.schema([("task", pa.int64()), ("body", pa.binary())])
# An add in its columns, or another action as the line of a commit.
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
    progress: Callable[[ImportProgress], None] | None = None,
) -> Imported:
    """`dk.import_table`, its log read by Spark's executors.

    Args:
        spark: the session.
        location: where the table is: a path or a URL that executors reach, too.
        uri: the URI that it will have, with the table's name.
        storage_options: of the table's object store, as deltalake takes them.
        history: as far back as the log goes; without it from the newest checkpoint.
        deep: verify every version and the data files, not only the latest state.
        outside_files: take in a shallow clone, whose log names files of another
            location by absolute paths; they are read, and never deleted.
        progress: called after each part that is in the catalog.
    """
    check_spark(spark)
    parsed = parse_uri(uri)
    name, store = require_table(parsed), open_store(location, storage_options)
    with connect(parsed) as catalog:
        return import_into(
            catalog,
            name,
            store,
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
    """`dk.verify` of one table, its log read by Spark's executors.

    Args:
        spark: the session.
        uri: the URI of a table.
        deep: every version instead of the latest, and the data files.
        storage_options: of the table's object store, as deltalake takes them.
    """
    check_spark(spark)
    parsed = parse_uri(uri)
    name = require_table(parsed)
    with connect(parsed) as catalog:
        store = open_store(catalog.table(name).location, storage_options)
        reading = _Executors(spark, storage_options)
        return compare(catalog, name, store, deep=deep, reading=reading)


def checkpoint(
    spark: "SparkSession", uri: str, *, storage_options: Options = None
) -> None:
    """Write a V2 checkpoint of a table's latest version, streamed from SQL.

    It has a sidecar for every 500,000 files. A table whose protocol has no V2
    checkpoints gets a classic one, a single file.

    Args:
        spark: the session.
        uri: the URI of a table.
        storage_options: of the table's object store, as deltalake takes them.
    """
    check_spark(spark)
    options = dict(storage_options) if storage_options else None
    raw: Any = DeltaTable(uri, storage_options=options)._table
    raw.create_checkpoint(v2=True)


class _Executors(Reading):
    """Reads by jobs of a few tasks; without a catalog, and without its credentials."""

    def __init__(self, spark: "SparkSession", options: Options) -> None:
        self._spark = spark
        self._options = dict(options or {})

    def commits(self, store: Store, files: Iterable[ObjectMeta]) -> Iterator[bytes]:
        """The bytes of commits, in order."""
        tasks = (tuple(meta.path for meta in some) for some in batches(files))
        for some in _some(tasks, _COMMIT_TASKS):
            read = _ReadCommits(store.url, self._options, some)
            yield from self._run(read, len(some), _BODIES)["body"].to_pylist()

    def files(
        self, store: Store, paths: Sequence[str], kinds: Set[str], without: Set[FileKey]
    ) -> Iterator[Part]:
        """The file actions of a checkpoint: a task for each of its files."""
        if len(paths) == 1 and (sidecars := list(read_sidecars(store, paths[0]))):
            # What it has of its own are few, and come first.
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

        numbers = self._spark.range(0, tasks, 1, tasks)
        found = numbers.mapInArrow(read, from_arrow_schema(schema)).toArrow()
        numbers_of = found["task"].combine_chunks()
        if pc.all(pc.greater_equal(numbers_of[1:], numbers_of[:-1])).as_py() is False:
            found = found.take(pc.sort_indices(found["task"]))
        return found.cast(schema)


@dataclass(frozen=True)
class _ReadCommits:
    """What a task does: a row for each commit."""

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
    """What a task does: the file actions of a part of a checkpoint."""

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
    """Runs of adds in columns and of other actions, as they were handed over."""
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

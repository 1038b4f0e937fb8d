"""URIs and partition values of data files, and lists of files for Spark to read."""

import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import unquote
from weakref import finalize

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from delkalakedb.clock import now_ms
from delkalakedb.model.actions import Metadata
from delkalakedb.model.paths import NULL_FOLDER, Outside, log_path
from delkalakedb.model.schema.partition import (
    format_partition_value,
    parse_partition_value,
)
from delkalakedb.model.schema.schema import Field, parse_schema
from delkalakedb.spark.pyspark_api import from_arrow
from delkalakedb.spark.schemas import arrow_schema, spark_schema
from delkalakedb.spark.session import is_connect, java_path, spark_url
from delkalakedb.storage import Store, canonical_location, open_store, resolve_readable
from delkalakedb.write import folder_of

# characters that Java doesn't escape in a URI, and the escapes that it writes
_VERBATIM = (
    r"^(?:[A-Za-z0-9_!.~'()*,;:$&+=@/-]|%(?:[01][0-9A-F]|2[0235]|3[CEF]|5[BCDE]|60"
    r"|7[BCDF]))+$"
)
_ROUNDABOUT = r"(?:^|/)(?:\.{0,2})(?:/|$)"
_HIDDEN = r"(?:^|/)(?:(?:\.|%2[Ee])[^/]*|(?:_|%5[Ff])[^/=]*)$"
# types whose values Spark parses from folder names as Delta does from the log
_SAME = frozenset({"boolean", "byte", "date", "integer", "long", "short", "string"})
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


class Partition(NamedTuple):
    """A partition column with its Spark type."""

    field: Field
    type: DataType

    def value(self, text: str) -> Any:
        """Parse the column's value in `text`, a file's partition values as JSON."""
        found = msgspec.json.decode(text).get(self.field.physical_name)
        return parse_partition_value(found, self.field.type)

    def text(self, text: str) -> str | None:
        """Return the column's value in `text` as a text that Spark can cast."""
        return format_partition_value(self.value(text), self.field.type)

    def values(self, texts: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
        """Parse the column's values of many files, each distinct text once."""
        encoded = texts.combine_chunks().dictionary_encode()
        values = map(self.value, encoded.dictionary.to_pylist())
        return pa.array(list(values), kind).take(encoded.indices)


def partitions_in(metadata: Metadata) -> list[Partition]:
    """Return the partition columns of a table."""
    fields = {f.name: f for f in parse_schema(metadata.schema_string).fields}
    kinds = spark_schema(metadata, metadata.partition_columns)
    return [Partition(fields[kind.name], kind.dataType) for kind in kinds]


def uris_of(root: str, paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the URIs of `paths` in the spelling of Spark's `_metadata.file_path`."""
    plain = is_verbatim(paths)
    if pc.all(plain).as_py() is not False:
        return pc.binary_join_element_wise(root, paths, "/")
    found = [
        f"{root}/{path}" if same else _uri(root, path)
        for path, same in zip(paths.to_pylist(), plain.to_pylist(), strict=True)
    ]
    return pa.chunked_array([found])


def is_verbatim(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return which paths in the log are also the end of the file's URI."""
    odd = pc.or_(
        pc.match_substring(paths, ":/"), pc.match_substring_regex(paths, _ROUNDABOUT)
    )
    return pc.and_not(pc.match_substring_regex(paths, _VERBATIM), odd)


def is_hidden(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return which files Spark silently skips because of their names."""
    return pc.match_substring_regex(paths, _HIDDEN)


def schemes_of(paths: pa.ChunkedArray) -> list[str]:
    """Return the schemes, such as `s3://`, of the absolute paths among `paths`."""
    found = pc.extract_regex(paths, r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)")
    return list(pc.struct_field(found, "scheme").unique().drop_null().to_pylist())


def told_by_folders(
    root: str, partitions: Sequence[Partition], files: pa.Table
) -> pa.ChunkedArray:
    """Return for which files Spark parses the log's values from folder names."""
    same = all(partition.field.type in _SAME for partition in partitions)
    if not same or "=" in root.rpartition("/")[2]:
        return pa.chunked_array([pa.repeat(False, files.num_rows)])
    names = [partition.field.physical_name for partition in partitions]

    @cache
    def told(folder: str, text: str) -> bool:
        values = msgspec.json.decode(text)
        return _values(folder, names) == [values.get(name) or None for name in names]

    folders = (path.rpartition("/")[0] for path in files["path"].to_pylist())
    found = list(map(told, folders, files["partition_values"].to_pylist()))
    # Verbatim paths only, because Spark needs all files below one folder.
    return pc.and_(pa.chunked_array([found]), is_verbatim(files["path"]))


def _values(folder: str, names: Sequence[str]) -> list[str | None] | None:
    """Return the partition values that Spark parses from a folder's name."""
    parts = [unquote(part) for part in folder.split("/")]
    while parts and "=" not in parts[-1]:
        parts.pop()
    found = [part.partition("=") for part in parts]
    if [_unescaped(name) for name, _, _ in found] != list(names):
        return None
    return [None if text == NULL_FOLDER else _unescaped(text) for _, _, text in found]


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def _uri(root: str, path: str) -> str:
    place = resolve_readable(path, root)
    if isinstance(place, Outside):
        return spark_url(canonical_location(place.url))
    return f"{root}/{java_path(log_path(place.path))}"


_KEY, _PATH = "__dk_key", "__dk_path"


class Attached(NamedTuple):
    """Rows joined with the log, and the columns that hold the log's values."""

    rows: DataFrame
    path: Column
    partitions: dict[str, Column]


def literals(partitions: Sequence[Partition], text: str) -> dict[str, Column]:
    """Return the partition values in `text` as literal columns by name."""
    found = {}
    for partition in partitions:
        value = partition.text(text)
        found[partition.field.name] = sf.lit(value).cast(partition.type)
    return found


def once_each(files: pa.Table) -> Iterator[pa.Table]:
    """Yield `files` in parts that have no path twice, as Spark needs them."""
    seen: Counter[str] = Counter()
    rounds = []
    for path in files["path"].to_pylist():
        rounds.append(seen[path])
        seen[path] += 1
    numbers = pa.array(rounds, pa.int64())
    for number in range(max(rounds, default=-1) + 1):
        yield files.filter(pc.equal(numbers, number))


def numbered(
    files: pa.Table, names: Sequence[str]
) -> tuple[pa.Array, list[tuple[Any, ...]]]:
    """Return a number for each file, and the values of columns by these numbers."""
    found: dict[tuple[Any, ...], int] = {}
    rows = zip(*(files[name].to_pylist() for name in names), strict=True)
    numbers = [found.setdefault(row, len(found)) for row in rows]
    return pa.array(numbers, pa.int64()), list(found)


def looked_up(
    number: Column, values: Sequence[str | int | None], to: DataType
) -> Column:
    """Return the value of type `to` at the index `number`."""
    if len(set(values)) == 1:
        return sf.lit(values[0]).cast(to)
    # one text, because each literal would be a call of Java
    array = sf.expr(f"array({', '.join(map(_literal, values))})")
    return sf.get(array.cast(ArrayType(to)), number.cast("int"))


def _literal(value: str | int | None) -> str:
    if isinstance(value, str):
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    return "NULL" if value is None else f"{value}L"


def attach(
    spark: SparkSession,
    rows: DataFrame,
    key: str,
    keys: pa.Array,
    files: pa.Table,
    partitions: Sequence[Partition],
) -> Attached:
    """Join `rows` with the paths and partition values of their files.

    `keys` are the values that the column `key` has in the rows of each file.
    """
    said = {p.field.name: f"__dk_{i}" for i, p in enumerate(partitions)}
    lookup = _lookup(spark, list(said.values()), partitions, keys, files)
    # not by paths, which take longer to compare
    there = sf.col(key) == sf.col(_KEY)
    joined = rows.join(sf.broadcast(lookup), there, "left")
    unknown = sf.concat(sf.lit("not a file of the list: "), sf.col(key))
    found = sf.col(_PATH).isNotNull()

    def checked(name: str) -> Column:
        # Fail without a match, because null would be a wrong value.
        return sf.when(found, sf.col(name)).otherwise(sf.raise_error(unknown))

    values = {name: checked(column) for name, column in said.items()}
    return Attached(joined, checked(_PATH), values)


def _lookup(
    spark: SparkSession,
    names: Sequence[str],
    partitions: Sequence[Partition],
    keys: pa.Array,
    files: pa.Table,
) -> DataFrame:
    kinds = [LongType(), StringType(), *(p.type for p in partitions)]
    schema = StructType(list(map(StructField, (_KEY, _PATH, *names), kinds)))
    arrow = arrow_schema(schema)
    texts = files["partition_values"]
    values = [
        partition.values(texts, arrow.field(name).type)
        for name, partition in zip(names, partitions, strict=True)
    ]
    columns = [keys, files["path"].combine_chunks(), *values]
    table = pa.table(
        [c.cast(f.type) for c, f in zip(columns, arrow, strict=True)], schema=arrow
    )
    return from_arrow(spark, table, schema)


LISTS = "spark.delkalakedb.lists"
_LOG = "_spark_metadata/0"
# bytes of the lists kept for classic sessions, which read a list when it is written;
# one list of 1M files is 200 MB
_KEPT_BYTES = 256 * 1024 * 1024
_STALE_SECONDS = 7 * 24 * 3600
_BATCH_ROWS = 10_000


@contextmanager
def listed(
    spark: SparkSession,
    uris: pa.ChunkedArray,
    files: pa.Table,
    storage_options: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Write a list of files, and return the URL by which Spark reads the list.

    A classic session must read the list while the context lasts.
    """
    home = _home()
    name = home.write(uris, files)
    try:
        place = spark.conf.get(LISTS, None)
        if place is not None:
            yield _shared(place, home.path / name, storage_options)
        else:
            yield spark_url(canonical_location(str(home.path / name)))
    finally:
        home.release(name, forget=not is_connect(spark))


class _Home:
    """The folder with this process's lists, which is deleted with the process."""

    def __init__(self) -> None:
        self.path = folder_of(self, "delkalakedb-lists")
        self._lock = Lock()
        # of lists that a classic session has read, by name, oldest first
        self._sizes_bytes: dict[str, int] = {}
        self._in_use: Counter[str] = Counter()

    def write(self, uris: pa.ChunkedArray, files: pa.Table) -> str:
        """Write a list, and return its name; the list stays until it is released."""
        while True:
            name = _write(self.path, uris, files)
            with self._lock:
                # not if another thread has deleted an equal list meanwhile
                if (self.path / name).exists():
                    self._in_use[name] += 1
                    return name

    def release(self, name: str, *, forget: bool) -> None:
        """End the use of a list; with `forget`, keep it only while there is room."""
        with self._lock:
            self._in_use[name] -= 1
            if forget:
                self._sizes_bytes.pop(name, None)
                self._sizes_bytes[name] = (self.path / name / _LOG).stat().st_size
            too_many = sum(self._sizes_bytes.values()) - _KEPT_BYTES
            for old in list(self._sizes_bytes)[:-1]:
                if too_many > 0 and not self._in_use[old]:
                    too_many -= self._sizes_bytes.pop(old)
                    shutil.rmtree(self.path / old, ignore_errors=True)
            self._in_use += Counter()


def _home() -> _Home:
    # by pid, because a parent deletes its folder before a forked child ends
    return _home_of(os.getpid())


@cache
def _home_of(pid: int) -> _Home:
    return _Home()


def _write(home: Path, uris: pa.ChunkedArray, files: pa.Table) -> str:
    """Write a list in a folder named by its hash, and return that name."""
    digest = hashlib.sha256()
    draft = Path(mkdtemp(prefix="draft-", dir=home))
    log = draft / _LOG
    log.parent.mkdir()
    with log.open("wb") as out:
        for part in _lines(uris, files):
            digest.update(part)
            out.write(part)
    name = digest.hexdigest()
    try:
        draft.rename(home / name)
    except OSError:  # an equal list exists
        shutil.rmtree(draft)
    return name


def _lines(uris: pa.ChunkedArray, files: pa.Table) -> Iterator[bytes]:
    yield b"v1"
    listed = files.select(["size_bytes", "modification_time_ms"])
    for batch in listed.append_column("uri", uris).to_batches(_BATCH_ROWS):
        sizes, times, paths = (column.cast(pa.string()) for column in batch.columns)
        lines = pc.binary_join_element_wise(
            '\n{"path":"',
            paths,
            '","size":',
            sizes,
            ',"isDir":false,"modificationTime":',
            times,
            ',"blockReplication":1,"blockSize":134217728,"action":"add"}',
            "",
        )
        yield "".join(lines.to_pylist()).encode()


def _shared(place: str, folder: Path, storage_options: Mapping[str, str] | None) -> str:
    store = _store(canonical_location(place), tuple((storage_options or {}).items()))
    # in a folder of this process, which deletes it at its end
    name = f"{folder.parent.name}/{folder.name}"
    path = f"{name}/{_LOG}"
    if not store.exists(path):
        store.put_file(path, folder / _LOG)
        finalize(_home(), store.delete, path)
    return f"{spark_url(store.url)}/{name}"


@cache
def _store(url: str, storage_options: tuple[tuple[str, str], ...]) -> Store:
    """Open the store of shared lists, and delete lists of processes that crashed."""
    store = open_store(url, dict(storage_options))
    before_ms = now_ms() - _STALE_SECONDS * 1000
    store.delete_many(
        found.path
        for found in list(store.list())
        if found.path.endswith(_LOG) and found.last_modified_ms < before_ms
    )
    return store

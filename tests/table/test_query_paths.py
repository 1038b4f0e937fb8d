"""DuckDB reads plain tables itself, and finds the rows that pyarrow finds."""

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delkalakedb as dk
from delkalakedb.errors import QueryError, StorageError
from delkalakedb.model.actions import Action, Add, Format, Metadata, Protocol
from delkalakedb.model.log import Staged
from delkalakedb.query import sources
from delkalakedb.query.selection import select

NAN, INF = float("nan"), float("inf")
File = tuple[dict[str, str | None], pa.Table]


class Lake:
    """A catalog with tables of given Parquet files, which are queried in two ways."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = dk.connect(f"deltasql://sqlite/{folder}/meta.db")
        self.plans: list[Any] = []
        self.by_duckdb = True

    def add(
        self,
        name: str,
        fields: dict[str, Any],
        files: Sequence[File],
        partition_by: Sequence[str] = (),
        **writing: Any,
    ) -> Path:
        """Create a table; return its folder. No file has statistics."""
        location = self.folder / f"{name} %41é"
        location.mkdir()
        columns = [
            {"name": n, "type": kind, "nullable": True, "metadata": {}}
            for n, kind in fields.items()
        ]
        schema = msgspec.json.encode({"type": "struct", "fields": columns}).decode()
        actions: list[Action] = [
            Protocol(
                min_reader_version=3,
                min_writer_version=7,
                reader_features=["timestampNtz"],
                writer_features=["timestampNtz"],
            ),
            Metadata(
                id=name,
                format=Format(provider="parquet"),
                schema_string=schema,
                partition_columns=list(partition_by),
                configuration={},
            ),
        ]
        for number, (values, rows) in enumerate(files):
            path = location / f"part={number}" / f"{number}.parquet"
            path.parent.mkdir()
            pq.write_table(rows, path, **writing)
            actions.append(
                Add(
                    path=str(path.relative_to(location)),
                    partition_values=values,
                    size=path.stat().st_size,
                    modification_time=1,
                    data_change=True,
                )
            )
        self.catalog.commit(Staged(name, actions, location=str(location)))
        return location

    def rows(self, sql: str, *, by_duckdb: bool) -> tuple[pa.Schema, list[Any]]:
        """Return the columns and the sorted rows of a query."""
        self.by_duckdb = by_duckdb
        self.plans.clear()
        with select(self.catalog, sql) as found:
            rows = [tuple(r.values()) for b in found.batches for r in b.to_pylist()]
        return found.schema, sorted(rows, key=str)

    def check(self, sql: str) -> list[Any]:
        """Compare both ways to read; return the rows."""
        schema, rows = self.rows(sql, by_duckdb=True)
        assert self.plans, "pyarrow has read the table"
        assert all(plan is not None for plan in self.plans), "pyarrow has read it"
        other, expected = self.rows(sql, by_duckdb=False)
        assert str(rows) == str(expected)
        assert schema == other
        return rows


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    found = Lake(tmp_path)
    plan = sources.parquet_files

    def planned(files: Any) -> Any:
        found.plans.append(plan(files) if found.by_duckdb else None)
        return found.plans[-1]

    monkeypatch.setattr(sources, "parquet_files", planned)
    with found.catalog:
        yield found


PARTITIONS: dict[str, list[str | None]] = {
    "string": ["a/b %2F*'\"", "", None, "NULL", "é", "x" * 300],
    "integer": ["-5", None, "2147483647"],
    "long": ["9223372036854775807", "0", None],
    "short": ["-32768", None],
    "byte": ["127", None],
    "double": ["0.1", "NaN", "-Infinity", None],
    "float": ["0.1", "3.4e38", None],
    "boolean": ["true", "false", None],
    "date": ["0001-01-01", "9999-12-31", None],
    "timestamp": ["2026-03-29 02:30:00.123456", "1969-12-31T23:59:59.9Z", None],
    "timestamp_ntz": ["2026-03-29 02:30:00.123456", None],
    "decimal(38,10)": ["1234567890123456789012345678.0123456789", "-1", None],
    "binary": ["é", None],
}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_partition_values_are_those_of_the_log(lake: Lake, kind: str) -> None:
    texts = PARTITIONS[kind]
    # The files have a column of this name, too, and lie in folders of other values.
    rows = [pa.table({"p": ["file"], "id": [n]}) for n in range(len(texts))]
    files = [({"p": text}, one) for text, one in zip(texts, rows, strict=True)]
    lake.add("t", {"p": kind, "id": "long"}, files, ["p"])

    assert len(lake.check("SELECT * FROM t")) == len(texts)
    lake.check("SELECT p FROM t WHERE p IS NOT NULL ORDER BY p DESC")
    lake.check("SELECT p, count(*) FROM t WHERE id <> 1 GROUP BY p")


TIME = datetime(2026, 3, 29, 2, 30, 0, 123456)
EVOLVED: list[tuple[str, Any, Sequence[pa.Array]]] = [
    ("long", 7, [pa.array([7, None], t) for t in (pa.int8(), pa.int16(), pa.int32())]),
    ("double", 1.5, [pa.array([1.5], pa.float32()), pa.array([1, 2], pa.int32())]),
    ("double", NAN, [pa.array([NAN, 1.0, None]), pa.array([-INF, INF])]),
    ("decimal(20,4)", 1, [pa.array([Decimal("1.50")], pa.decimal128(10, 2))]),
    ("date", 0, [pa.array([date(2026, 1, 1), None, date(1, 1, 1)])]),
    (
        "timestamp",
        0,
        [pa.array([TIME.replace(tzinfo=UTC)], pa.timestamp(u, "UTC")) for u in ("us",)]
        + [pa.array([TIME.replace(microsecond=0)], pa.timestamp("ms"))],
    ),
    ("timestamp", 0, [pa.array([TIME], pa.timestamp("us", "America/New_York"))]),
    ("timestamp_ntz", 0, [pa.array([TIME, None], pa.timestamp("us"))]),
    (
        "string",
        "a",
        [pa.array(["a", "", None, "\0é"]), pa.array(["a"]).dictionary_encode()],
    ),
    (
        "string",
        "a",
        [pa.array(["a", "b"], pa.large_string()), pa.nulls(2, pa.string())],
    ),
    ("binary", b"a", [pa.array([b"\xff\0", b"", None]), pa.array([b"a"])]),
    ("boolean", True, [pa.array([True, False, None])]),
]


@pytest.mark.parametrize(("kind", "value", "arrays"), EVOLVED)
def test_values_of_earlier_types_are_converted(
    lake: Lake, kind: str, value: Any, arrays: Sequence[pa.Array]
) -> None:
    files: list[File] = [
        ({}, pa.table({"x": array, "id": range(len(array))})) for array in arrays
    ]
    # A file without the column, and one with columns that the table doesn't have.
    files += [
        ({}, pa.table({"id": [9], "y": [1]})),
        ({}, files[0][1].select(["id", "x"])),
    ]
    lake.add("t", {"id": "long", "x": kind}, files)

    assert len(lake.check("FROM t")) == sum(rows.num_rows for _, rows in files)
    lake.check("SELECT x FROM t WHERE x IS NOT NULL")
    lake.check("SELECT count(x), min(x), max(x) FROM t WHERE id >= 0")


NESTED = {
    "type": "struct",
    "fields": [
        {"name": "a", "type": "long", "nullable": True, "metadata": {}},
        {"name": "o'd \"d", "type": "string", "nullable": True, "metadata": {}},
    ],
}


def test_nested_columns_keep_their_shape(lake: Lake) -> None:
    fields = {
        "s": NESTED,
        "l": {"type": "array", "elementType": NESTED, "containsNull": True},
        "m": {
            "type": "map",
            "keyType": "string",
            "valueType": "integer",
            "valueContainsNull": True,
        },
        "id": "long",
    }
    whole = pa.struct([("a", pa.int64()), ("o'd \"d", pa.string())])
    pairs = pa.map_(pa.string(), pa.int32())
    schema = pa.schema([("s", whole), ("l", pa.list_(whole)), ("m", pairs)])
    one = {"a": 1, "o'd \"d": "x"}
    rows = [
        {"s": one, "l": [one, None], "m": [("k", 1), ("n", None)]},
        {"s": None, "l": None, "m": None},
        {"s": {"a": None, "o'd \"d": None}, "l": [], "m": []},
    ]
    lake.add("t", fields, [({}, pa.Table.from_pylist(rows, schema))])

    assert len(lake.check("FROM t")) == 3
    assert lake.check("SELECT s.a, l[1].a, m['k'] FROM t WHERE s.a = 1") == [(1, 1, 1)]
    lake.check("SELECT id FROM t WHERE s IS NULL")


@pytest.mark.parametrize(
    "old", [{"use_deprecated_int96_timestamps": True}, {"version": "1.0"}]
)
def test_times_of_old_files_are_read(lake: Lake, old: dict[str, Any]) -> None:
    times = [TIME, datetime(1969, 12, 31, 23, 59, 59, 1), None]
    rows = pa.table({"t": pa.array(times, pa.timestamp("us", "UTC"))})
    lake.add("t", {"t": "timestamp"}, [({}, rows)], **old)

    lake.check("FROM t")
    assert lake.check("SELECT t FROM t WHERE t > TIMESTAMPTZ '2026-01-01'")


def test_nan_is_found_in_files_whose_statistics_leave_it_out(lake: Lake) -> None:
    rows = pa.table({"f": [0.5, NAN, -1.0], "g": pa.array([1, NAN, 2], pa.float32())})
    lake.add("t", {"f": "double", "g": "float"}, [({}, rows)], row_group_size=3)

    assert len(lake.check("SELECT f FROM t WHERE f > 1")) == 1
    assert len(lake.check("SELECT f FROM t WHERE f = 'nan'::DOUBLE AND g > 5")) == 1


def test_names_of_tables_and_columns_may_be_anything(lake: Lake) -> None:
    names = ['a "b"', "it's", "select", "file_index", "filename", "dk1", "t0c0", "é.ü"]
    rows = pa.table({name: [n] for n, name in enumerate(names)})
    lake.add('t "0"', dict.fromkeys(names, "long"), [({}, rows)])

    assert lake.check('FROM "t ""0"""') == [tuple(range(len(names)))]
    assert lake.check('SELECT "dk1" FROM "t ""0""" WHERE "it\'s" = 1') == [(5,)]
    hidden = 'SELECT file_row_number FROM "t ""0"""'
    with pytest.raises(QueryError, match="file_row_number"):
        lake.rows(hidden, by_duckdb=True)


def test_files_that_duckdb_must_not_read_are_left_to_pyarrow(lake: Lake) -> None:
    files: list[File] = [({}, pa.table({"id": [n]})) for n in range(2)]
    location = lake.add("t", {"id": "long"}, files)
    moved = lake.folder / "elsewhere.parquet"
    os.rename(location / "part=0" / "0.parquet", moved)
    (location / "part=0" / "0.parquet").symlink_to(moved)

    assert lake.rows("FROM t", by_duckdb=True)[1] == [(0,), (1,)]
    assert lake.plans == [None]


def test_query_has_no_access_to_files_by_name(lake: Lake) -> None:
    location = lake.add("t", {"id": "long"}, [({}, pa.table({"id": [1]}))])
    file = location / "part=0" / "0.parquet"
    for source in (f"read_parquet('{file}')", f"glob('{location}/*')"):
        with pytest.raises(QueryError, match="disabled"):
            lake.rows(f"SELECT * FROM t, {source}", by_duckdb=True)


def test_damaged_file_is_an_error_of_the_store(lake: Lake) -> None:
    location = lake.add("t", {"id": "long"}, [({}, pa.table({"id": [1]}))])
    file = location / "part=0" / "0.parquet"
    file.write_bytes(b"none")

    with pytest.raises((QueryError, StorageError)):
        lake.rows("FROM t", by_duckdb=True)

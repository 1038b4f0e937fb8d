"""Readers that weren't written here see what the catalog has, at every version."""

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from itertools import product
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.mirror.verify.verification import verify_table
from delkalakedb.storage import open_store
from tests.support.actions import domain, remove, txn
from tests.support.lakes import Lake
from tests.support.readers import READERS, UnreadableError, expected, read

PLAIN = pa.schema({"id": pa.int64(), "s": pa.string()})


def plain(*ids: int) -> dict[str, list[object]]:
    return {"id": list(ids), "s": [f"row {i}" if i % 3 else None for i in ids]}


def appends(lake: Lake) -> None:
    lake.create(PLAIN)
    for first in (0, 3, 6):
        lake.commit(lake.file(plain(first, first + 1)), lake.file(plain(first + 2)))
    lake.publish()


def partitioned(lake: Lake) -> None:
    schema = PLAIN.append(pa.field("p", pa.string())).append(pa.field("d", pa.date32()))
    lake.create(schema, partitions=["p", "d"])
    day = dt.date(2026, 2, 28)
    for number, p in enumerate(["x y", None, "ü/%", "a=b&c", "'\"", "%20", "日本"]):
        rows = {**plain(number, number + 9), "p": [p] * 2, "d": [day] * 2}
        folder = f"p={p}".replace("/", "%2F")
        lake.commit(lake.file(rows, f"{folder}/{number}.parquet", p=p, d="2026-02-28"))
    nothing = {**plain(99), "p": [None], "d": [None]}
    lake.commit(lake.file(nothing, p=None, d=None))
    lake.publish()


def overwritten(lake: Lake) -> None:
    lake.create(PLAIN)
    lake.commit(lake.file(plain(1, 2)), lake.file(plain(3)))
    lake.commit(lake.file(plain(5)), remove_all=True)
    lake.commit(remove_all=True)
    lake.commit(lake.file(plain(7)))
    lake.publish()


def deleted(lake: Lake) -> None:
    lake.create(PLAIN)
    one, two = lake.file(plain(1, 2)), lake.file(plain(3))
    lake.commit(one, two)
    lake.commit(remove(one), lake.file(plain(2)))
    lake.commit(remove(two))
    lake.commit(one)
    lake.publish()


def widened(lake: Lake) -> None:
    lake.create(PLAIN)
    lake.commit(lake.file(plain(1, 2)))
    more = PLAIN.append(pa.field("x", pa.float64())).append(pa.field("b", pa.bool_()))
    lake.widen(more)
    lake.commit(lake.file({**plain(3), "x": [0.5], "b": [True]}))
    lake.publish()


def transacted(lake: Lake) -> None:
    features = ("appendOnly", "invariants", "domainMetadata")
    lake.create(PLAIN, txn("app", 1), domain("d"), features=features)
    lake.commit(lake.file(plain(1)), txn("app", 2), domain("d", "{}", removed=True))
    lake.commit(lake.file(plain(2)), domain("e", '{"a":1}'))
    lake.publish()


TYPES = pa.schema(
    {
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "decimal": pa.decimal128(38, 10),
        "array": pa.list_(pa.int32()),
        "map": pa.map_(pa.string(), pa.float64()),
        "struct": pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
    }
)
MOMENT = dt.datetime(2026, 3, 1, 23, 59, 59, 999_999)
VALUES = {
    "byte": [-128, None],
    "short": [32_767, None],
    "integer": [-(2**31), None],
    "long": [2**63 - 1, None],
    "float": [1.5, None],
    "double": [math.nan, None],
    "boolean": [True, None],
    "string": ["ü\n日本", None],
    "binary": [b"\x00\xff", None],
    "date": [dt.date(1970, 1, 1), None],
    "timestamp": [MOMENT.replace(tzinfo=dt.UTC), None],
    "timestamp_ntz": [MOMENT, None],
    "decimal": [Decimal("12345678901234567890.0123456789"), None],
    "array": [[1, None, 3], None],
    "map": [[("k", 1.0), ("l", None)], None],
    "struct": [{"a": 1, "b": ["x", None]}, None],
}


def typed(lake: Lake) -> None:
    lake.create(TYPES, features=("appendOnly", "invariants", "timestampNtz"))
    lake.commit(lake.file(VALUES))
    lake.publish()


def vectored(lake: Lake) -> None:
    lake.create(
        PLAIN,
        features=("appendOnly", "invariants", "deletionVectors"),
        configuration={"delta.enableDeletionVectors": "true"},
    )
    one, two = lake.file(plain(*range(10))), lake.file(plain(20))
    lake.commit(one, two)
    _, marked = changes = lake.without(one, 0, 3, 9)
    lake.commit(*changes)
    lake.commit(remove(marked), lake.file(plain(30)))
    lake.publish(2)


MAPPED = {
    "features": ("appendOnly", "invariants", "columnMapping"),
    "configuration": {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": "3",
    },
}


def mapped(lake: Lake) -> None:
    lake.map_columns(id="col-1", s="col-2")
    lake.create(PLAIN, **MAPPED)
    lake.commit(lake.file(plain(1, 2)))
    lake.commit(lake.file(plain(3)))
    lake.publish(1)


def mapped_and_partitioned(lake: Lake) -> None:
    lake.map_columns(id="col-1", s="col-2", p="col-3")
    schema = PLAIN.append(pa.field("p", pa.string()))
    lake.create(schema, partitions=["p"], **MAPPED)
    lake.commit(lake.file({**plain(1, 2), "p": ["q"] * 2}, p="q"))
    lake.commit(lake.file({**plain(3), "p": [None]}, p=None))
    lake.publish(1)


def stamped(lake: Lake) -> None:
    lake.create(
        PLAIN,
        features=("appendOnly", "invariants", "inCommitTimestamp"),
        configuration={"delta.enableInCommitTimestamps": "true"},
    )
    lake.commit(lake.file(plain(1)))
    lake.commit(lake.file(plain(2)))
    lake.publish()


def checkpointed(lake: Lake) -> None:
    lake.create(PLAIN, txn("app", 1))
    files = [lake.file(plain(i)) for i in range(12)]
    for file in files:
        lake.commit(file)
    lake.commit(*(remove(file) for file in files[:3]))
    lake.publish(5, 10)


def checkpointed_with_structs(lake: Lake) -> None:
    schema = PLAIN.append(pa.field("p", pa.int32()))
    lake.create(
        schema,
        partitions=["p"],
        configuration={
            "delta.checkpoint.writeStatsAsStruct": "true",
            "delta.checkpoint.writeStatsAsJson": "false",
        },
    )
    for i in range(4):
        lake.commit(lake.file({**plain(i), "p": [i]}, p=str(i)))
    lake.publish(3)


def checkpointed_v2(lake: Lake) -> None:
    lake.create(
        PLAIN,
        features=("appendOnly", "invariants", "v2Checkpoint"),
        configuration={"delta.checkpointPolicy": "v2"},
    )
    files = [lake.file(plain(i)) for i in range(4)]
    for file in files:
        lake.commit(file)
    lake.commit(remove(files[0]))
    lake.publish(3)


def row_tracked(lake: Lake) -> None:
    lake.create(
        PLAIN,
        features=("appendOnly", "invariants", "rowTracking", "domainMetadata"),
        configuration={"delta.enableRowTracking": "true"},
    )
    lake.commit(lake.file(plain(1, 2)))
    lake.commit(lake.file(plain(3)))
    lake.publish(1)


def type_widened(lake: Lake) -> None:
    lake.create(
        pa.schema({"id": pa.int32(), "s": pa.string()}),
        features=("appendOnly", "invariants", "typeWidening"),
        configuration={"delta.enableTypeWidening": "true"},
    )
    lake.commit(lake.file(plain(1, 2)))
    lake.describe("id", typeChanges=[{"fromType": "integer", "toType": "long"}])
    lake.widen(PLAIN)
    lake.commit(lake.file(plain(2**40)))
    lake.publish(2)


def vacuum_checked(lake: Lake) -> None:
    lake.create(PLAIN, features=("appendOnly", "invariants", "vacuumProtocolCheck"))
    lake.commit(lake.file(plain(1)))
    lake.publish()


def fenced(lake: Lake) -> None:
    lake.create(
        PLAIN,
        features=("appendOnly", "invariants", "inCommitTimestamp", "catalogManaged"),
        configuration={"delta.enableInCommitTimestamps": "true"},
    )
    lake.commit(lake.file(plain(1)))
    lake.publish(1)


TABLES: dict[str, Callable[[Lake], None]] = {
    make.__name__: make
    for make in (
        appends,
        partitioned,
        overwritten,
        deleted,
        widened,
        transacted,
        typed,
        vectored,
        mapped,
        mapped_and_partitioned,
        stamped,
        checkpointed,
        checkpointed_with_structs,
        checkpointed_v2,
        row_tracked,
        type_widened,
        vacuum_checked,
        fenced,
    )
}
# What a reader can't read by nature, and what it says.
_WITHOUT_CATALOG = "Catalog-managed table requires max_catalog_version to be set"
UNREADABLE = {
    ("delta-rs", "fenced"): "Max catalog version is required when loading a catalog-",
    ("duckdb", "fenced"): _WITHOUT_CATALOG,
    ("clickhouse", "fenced"): _WITHOUT_CATALOG,
    ("delta-rs", "type_widened"): "Unsupported table features required: [TypeWidening]",
    ("delta-rs", "vacuum_checked"): "features required: [VacuumProtocolCheck]",
}
# The column that a reader takes for null: https://github.com/duckdb/duckdb-delta/issues/343
MISREAD = {("duckdb", "mapped_and_partitioned"): "p"}


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lake]]:
    """The tables, each of them made when it is first asked for."""
    folder = tmp_path_factory.mktemp("lakes")
    made: dict[str, Lake] = {}
    with dk.connect(f"deltasql://sqlite/{folder}/meta.db") as catalog:

        def lake(table: str) -> Lake:
            if table not in made:
                made[table] = Lake(catalog, folder / table)
                TABLES[table](made[table])
                assert made[table].version > 0
            return made[table]

        yield lake


def check_version(lake: Lake, reader: str, version: int, rows: pa.Table) -> None:
    schema_string = lake.catalog.snapshot(lake.name, version).metadata.schema_string
    found = read(reader, lake.location, version, rows.schema)
    assert found == expected(reader, lake.files(version), schema_string, rows)


def all_but(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [pair for pair in product(READERS, TABLES) if pair not in pairs]


@pytest.mark.parametrize(("reader", "table"), all_but([*UNREADABLE, *MISREAD]))
def test_every_version_is_read_as_the_catalog_has_it(
    lakes: Callable[[str], Lake], reader: str, table: str
) -> None:
    lake = lakes(table)
    for version in range(lake.version + 1):
        check_version(lake, reader, version, lake.rows(version))


@pytest.mark.parametrize(("reader", "table"), UNREADABLE)
def test_reader_that_lacks_a_feature_says_so(
    lakes: Callable[[str], Lake], reader: str, table: str
) -> None:
    lake = lakes(table)
    for version in range(lake.version + 1):
        with pytest.raises(UnreadableError, match=re.escape(UNREADABLE[reader, table])):
            read(reader, lake.location, version, lake.schema(version))


@pytest.mark.parametrize(("reader", "table"), MISREAD)
def test_reader_that_misreads_a_column_reads_the_others(
    lakes: Callable[[str], Lake], reader: str, table: str
) -> None:
    lake, column = lakes(table), MISREAD[reader, table]
    for version in range(lake.version + 1):
        rows = lake.rows(version)
        field = rows.schema.field(column)
        nulls = pa.nulls(len(rows), field.type)
        at = rows.schema.get_field_index(column)
        check_version(lake, reader, version, rows.set_column(at, field, nulls))


@pytest.mark.parametrize("table", TABLES)
def test_mirror_that_was_read_has_no_difference(
    lakes: Callable[[str], Lake], table: str
) -> None:
    lake = lakes(table)

    report = verify_table(lake.catalog, lake.name, open_store(lake.location), deep=True)

    assert report.ok, str(report)


@pytest.mark.parametrize("table", ["partitioned", "typed", "vectored"])
def test_table_of_any_engine_is_read_as_the_catalog_has_it(
    catalog: dk.Catalog, tmp_path: Path, table: str
) -> None:
    lake = Lake(catalog, tmp_path)
    TABLES[table](lake)

    for reader, version in product(READERS, range(lake.version + 1)):
        check_version(lake, reader, version, lake.rows(version))


def test_table_written_by_deltalake_is_read_as_it_was_written(
    catalog: dk.Catalog, catalog_uri: str
) -> None:
    uri = f"{catalog_uri}{'&' if '?' in catalog_uri else '?'}table=t"
    rows = pa.table(plain(1, 2, 3), PLAIN)
    for _ in range(2):
        dk.write_deltalake(uri, rows, mode="append", partition_by=["s"])

    location = unquote(urlsplit(catalog.table("t").location).path)
    for reader, version in product(READERS, (0, 1)):
        at = catalog.snapshot("t", version)
        files = [unquote(path) for path in at.files().read_all()["path"].to_pylist()]
        written = pa.concat_tables([rows] * (version + 1))
        found = read(reader, location, version, PLAIN)
        assert found == expected(reader, files, at.metadata.schema_string, written)

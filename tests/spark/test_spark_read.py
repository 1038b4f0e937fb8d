"""Reading through Spark: every row, exactly once, as the log says it is."""

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession, functions as sf

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import (
    DeltaError,
    ProtocolError,
    SchemaMismatchError,
    UriError,
    VersionNotFoundError,
)
from delkalakedb.settings.uri import format_uri
from delkalakedb.spark.pyspark_api import to_arrow
from delkalakedb.spark.reader import layout as lists, marks
from delkalakedb.spark.reader.frame import (
    FILE_COLUMN,
    INDEX_COLUMN,
    LIST_COLUMNS,
    frame,
)
from delkalakedb.spark.session import check_pyspark
from tests.support.actions import add, creation, metadata, schema
from tests.support.lakes import Lake

ODD = ["a b", "50%", "%20", "é", "日本", "a/b", "a=b", "x'y\"z", "a+b&c", "#?", "01"]
SMALL = pa.schema(
    [
        pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
        pa.field("p", pa.string(), metadata={"PARQUET:field_id": "2"}),
    ]
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[dk.Catalog]:
    """A catalog on one engine, for what no engine has a part in."""
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        yield catalog


@pytest.fixture
def lake(catalog: dk.Catalog, tmp_path: Path) -> Lake:
    return Lake(catalog, tmp_path)


def uri(lake: Lake) -> str:
    return format_uri(lake.catalog.uri.with_table(lake.name))


def num_records(lake: Lake, version: int) -> int:
    """The rows of a version as its files' statistics count them."""
    adds = lake.catalog.log(lake.name).adds(version)
    return sum(
        json.loads(add.stats)["numRecords"]
        - (add.deletion_vector.cardinality if add.deletion_vector else 0)
        for add in adds
    )


def rows_of(table: DataFrame | pa.Table) -> list[dict[str, Any]]:
    arrow = to_arrow(table) if isinstance(table, DataFrame) else table
    return sorted(arrow.to_pylist(), key=repr)


def check(spark: SparkSession, lake: Lake, version: int | None = None) -> DataFrame:
    """All the rows of a version, and no others, in its columns' order."""
    at = lake.version if version is None else version
    found = dks.read(spark, uri(lake), version=version)
    expected = lake.rows(at)
    assert found.columns == expected.column_names
    assert found.count() == num_records(lake, at)
    assert rows_of(found) == rows_of(expected)
    return found


def hive(name: str, value: str | None) -> str:
    """A partition's folder as Spark calls it."""
    if value is None:
        return f"{name}=__HIVE_DEFAULT_PARTITION__"
    escaped = [f"%{ord(c):02X}" if c in "\"#%'*/:=?\\" else c for c in value]
    return f"{name}={''.join(escaped)}"


def small(
    lake: Lake, values: Sequence[str | None], folder: Any = hive, **options: Any
) -> None:
    """A partitioned table with a file of two rows for each value."""
    lake.create(SMALL, partitions=["p"], **options)
    lake.commit(
        *(
            lake.file(
                {"id": [2 * i, 2 * i + 1], "p": [value or None] * 2},
                f"{folder('p', value)}/part-{i}.parquet",
                p=value,
            )
            for i, value in enumerate(values)
        )
    )


# ---- types and schemas


def test_values_of_every_type_come_out_as_written(
    spark: SparkSession, lake: Lake
) -> None:
    item = pa.struct([("a b", pa.int32()), ("list", pa.list_(pa.date32()))])
    moment = datetime(2026, 1, 31, 12, 30, 15, 123456)
    columns: dict[str, tuple[pa.DataType, Any]] = {
        "i8": (pa.int8(), -128),
        "i16": (pa.int16(), 32767),
        "i32": (pa.int32(), -(2**31)),
        "i64": (pa.int64(), 2**63 - 1),
        "f32": (pa.float32(), 1.5),
        "f64": (pa.float64(), -0.1),
        "yes": (pa.bool_(), True),
        "text": (pa.string(), "é\u0000\U0001f600"),
        "raw": (pa.binary(), b"\x00\xff"),
        "small": (pa.decimal128(9, 2), Decimal("-1234567.89")),
        "large": (pa.decimal128(38, 18), Decimal("1.000000000000000001")),
        "day": (pa.date32(), date(1, 1, 1)),
        "at": (pa.timestamp("us", "UTC"), moment.replace(tzinfo=UTC)),
        "local": (pa.timestamp("us"), moment),
        "many": (pa.list_(pa.string()), ["x", None]),
        "map": (pa.map_(pa.string(), pa.int64()), [("k", 1), ("l", None)]),
        "deep": (pa.list_(item), [{"a b": 1, "list": [date(2026, 1, 1)]}, None]),
    }
    arrow = pa.schema([(name, kind) for name, (kind, _) in columns.items()])
    lake.create(arrow, features=["timestampNtz"])
    values = {name: [value, None] for name, (_, value) in columns.items()}
    lake.commit(lake.file(values))

    found = check(spark, lake)

    kinds = [field.dataType.simpleString() for field in found.schema]
    assert kinds[:4] == ["tinyint", "smallint", "int", "bigint"]
    assert kinds[12:14] == ["timestamp", "timestamp_ntz"]


def test_added_and_dropped_columns_are_null_and_gone(
    spark: SparkSession, lake: Lake
) -> None:
    lake.create(SMALL, partitions=["p"])
    lake.commit(lake.file({"id": [1], "p": ["x"]}, "p=x/1.parquet", p="x"))
    wider = pa.schema([("id", pa.int64()), ("p", pa.string()), ("new", pa.int32())])
    lake.widen(wider)
    row = {"id": [2], "p": ["x"], "new": [7]}
    lake.commit(lake.file(row, "p=x/2.parquet", p="x"))
    check(spark, lake, 1)
    check(spark, lake)

    lake.widen(pa.schema([("new", pa.int32()), ("p", pa.string())]))

    found = dks.read(spark, uri(lake))
    assert found.columns == ["new", "p"]
    assert found.count() == num_records(lake, lake.version)
    assert rows_of(found) == [{"new": 7, "p": "x"}, {"new": None, "p": "x"}]


def test_widened_types_are_read_from_narrow_files(
    spark: SparkSession, lake: Lake
) -> None:
    lake.create(pa.schema([("n", pa.int32())]), features=["typeWidening"])
    lake.commit(lake.file({"n": [1, 2]}))
    lake.widen(pa.schema([("n", pa.int64())]))
    lake.commit(lake.file({"n": [2**40]}))

    check(spark, lake)


def test_columns_of_any_name_are_read_and_chosen(
    spark: SparkSession, lake: Lake
) -> None:
    names = ["a.b", "c d", "e`f", "_metadata", "Ünï", "p"]
    lake.create(pa.schema([(name, pa.int64()) for name in names]), partitions=["p"])
    values: dict[str, list[int]] = {name: [i] for i, name in enumerate(names)}
    lake.commit(lake.file(values, "1.parquet", p="5"))
    check(spark, lake)

    found = dks.read(spark, uri(lake), columns=["p", "c d", "a.b"])

    assert [tuple(row) for row in found.collect()] == [(5, 1, 0)]
    matching = dks.read(spark, uri(lake), where="`e``f` = 2", columns=["a.b"])
    assert [tuple(row) for row in matching.collect()] == [(0,)]
    with pytest.raises(SchemaMismatchError, match="no column nonsense; the table has"):
        dks.read(spark, uri(lake), columns=["nonsense"])


def test_comments_stay_and_defaults_do_not_fill_in(
    spark: SparkSession, catalog: dk.Catalog, tmp_path: Path
) -> None:
    fields = json.loads(schema(n="long", later="long"))
    fields["fields"][0]["metadata"] = {"comment": "a number"}
    fields["fields"][1]["metadata"] = {"CURRENT_DEFAULT": "5", "EXISTS_DEFAULT": "5"}
    lake = Lake(catalog, tmp_path)
    lake.create(pa.schema([("n", pa.int64())]))
    lake.commit(metadata(json.dumps(fields)), lake.file({"n": [1]}))

    found = dks.read(spark, uri(lake))

    assert found.schema["n"].metadata == {"comment": "a number"}
    assert [tuple(row) for row in found.collect()] == [(1, None)]


# ---- partitions


def delta_rs(name: str, value: str | None) -> str:
    """A partition's folder as delta-rs calls it, by UTF-8's bytes."""
    return f"{name}={'__HIVE_DEFAULT_PARTITION__' if not value else quote(value, '')}"


def none(name: str, value: str | None) -> str:
    return "data"


@pytest.mark.parametrize("folder", [hive, delta_rs, none])
def test_odd_partition_values_are_those_of_the_log(
    spark: SparkSession, lake: Lake, folder: Any
) -> None:
    values = [*ODD, None]
    small(lake, values, folder)

    found = check(spark, lake)

    for i, value in enumerate(values):
        same = found.filter(sf.col("p").eqNullSafe(value))
        assert sorted(row.id for row in same.collect()) == [2 * i, 2 * i + 1]


def test_filters_prune_partitions_that_only_the_log_knows(
    spark: SparkSession, lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    small(lake, ["a", "é", None], none)

    found = check(spark, lake).filter("p = 'é'")

    assert found.count() == 2
    found.explain()
    assert capsys.readouterr().out.count("FileScan") == 1


@pytest.mark.parametrize("tagged", [False, True])
def test_many_partition_values_that_only_the_log_knows_are_looked_up(
    spark: SparkSession, lake: Lake, tagged: bool
) -> None:
    values = [f"v {i}" for i in range(40)]
    small(
        lake,
        [*values, None, "told"],
        lambda name, v: v if v in values else hive(name, v),
    )
    check(spark, lake)
    snapshot = lake.catalog.snapshot(lake.name)
    files = snapshot.files(columns=LIST_COLUMNS).read_all()

    found = frame(spark, snapshot, files, tagged=tagged, columns=["p"])

    assert found.count() == num_records(lake, lake.version) == 84
    assert {row.p for row in found.collect()} == {*values, None, "told"}
    if tagged:
        paths = set(files["path"].to_pylist())
        assert {row[FILE_COLUMN] for row in found.collect()} == paths


def test_empty_partition_value_is_null(spark: SparkSession, lake: Lake) -> None:
    small(lake, ["", "x"])

    found = check(spark, lake)

    assert found.filter("p IS NULL").count() == 2


@pytest.mark.parametrize(
    ("kind", "texts", "values"),
    [
        (pa.int32(), ["1", "01", "-5"], [1, 1, -5]),
        (pa.date32(), ["2026-01-31", "0001-01-01"], [date(2026, 1, 31), date.min]),
        (pa.bool_(), ["true", "false"], [True, False]),
        (pa.float64(), ["1.5", "-Infinity"], [1.5, float("-inf")]),
        (pa.decimal128(10, 2), ["1.50", "-2.5"], [Decimal("1.5"), Decimal("-2.5")]),
        (pa.binary(), ["ab", "é"], [b"ab", "é".encode()]),
        (
            pa.timestamp("us", "UTC"),
            ["2026-01-31 12:30:00", "2026-01-31T12:30:00.000001Z"],
            [
                datetime(2026, 1, 31, 12, 30, tzinfo=UTC),
                datetime(2026, 1, 31, 12, 30, 0, 1, tzinfo=UTC),
            ],
        ),
    ],
    ids=["integer", "date", "boolean", "double", "decimal", "binary", "timestamp"],
)
def test_partition_values_have_their_types_from_folders_and_log(
    spark: SparkSession,
    catalog: dk.Catalog,
    tmp_path: Path,
    kind: pa.DataType,
    texts: list[str],
    values: list[Any],
) -> None:
    for folder in (hive, none):
        lake = Lake(catalog, tmp_path / folder.__name__)
        lake.create(pa.schema([("p", kind), ("id", pa.int64())]), partitions=["p"])
        files = [
            lake.file(
                {"p": [value], "id": [i]},
                f"{folder('p', text)}/{i}.parquet",
                p=text,
            )
            for i, (text, value) in enumerate(zip(texts, values, strict=True))
        ]
        null = lake.file({"p": [None], "id": [9]}, f"{hive('p', None)}/9", p=None)
        lake.commit(*files, null)

        check(spark, lake)


def test_several_partition_columns_keep_their_places(
    spark: SparkSession, lake: Lake
) -> None:
    kinds = [("a", pa.int32()), ("id", pa.int64()), ("b", pa.string())]
    lake.create(pa.schema(kinds), partitions=["b", "a"])
    lake.commit(
        *(
            lake.file(
                {"a": [a], "id": [a], "b": [b]},
                f"{hive('b', b)}/a={a}/deeper/{a}.parquet",
                b=b,
                a=str(a),
            )
            for a, b in [(1, "x"), (2, "x"), (3, None)]
        )
    )

    found = check(spark, lake)

    assert found.filter("a = 2 AND b = 'x'").count() == 1
    assert found.filter("b IS NULL").count() == 1
    assert rows_of(dks.read(spark, uri(lake), columns=["a"])) == [
        {"a": a} for a in (1, 2, 3)
    ]


# ---- where files are


def test_folder_like_a_partition_above_the_table_adds_no_column(
    spark: SparkSession, catalog: dk.Catalog, tmp_path: Path
) -> None:
    for i, place in enumerate(("env=prod/table", "env=prod")):
        lake = Lake(catalog, tmp_path)
        lake.location = f"{tmp_path}/{i}/{place}"
        small(lake, ["a", None])

        check(spark, lake)


def test_files_under_two_prefixes_are_read(spark: SparkSession, lake: Lake) -> None:
    lake.create(SMALL, partitions=["p"])
    paths = ["p=a/1.parquet", "ab/p=b/2.parquet", "cd/3.parquet", "p=d/p=e/4.parquet"]
    files = [
        lake.file({"id": [i], "p": [p]}, path, p=p)
        for i, (path, p) in enumerate(zip(paths, "abce", strict=True))
    ]
    lake.commit(*files)

    check(spark, lake)


def test_absolute_and_encoded_paths_are_read_and_named_as_in_the_log(
    spark: SparkSession, lake: Lake, catalog: dk.Catalog, tmp_path: Path
) -> None:
    lake.create(SMALL, partitions=["p"])
    other = Lake(catalog, tmp_path / "another é")
    other.create(SMALL, partitions=["p"])
    far = other.file({"id": [1], "p": ["far"]}, "x y%.parquet", p="far")
    names = ["a b.parquet", "100%.parquet", "é/日本.parquet", "[x]{y}|^.parquet", "a~b"]
    near = [lake.file({"id": [2], "p": ["near"]}, name, p="near") for name in names]
    url = f"file://{quote(other.location)}/{far.path}"
    moved = msgspec.structs.replace(far, path=url)
    raw = lake.file({"id": [3], "p": [None]}, "raw name.parquet", p=None)
    raw = msgspec.structs.replace(raw, path="raw name.parquet")
    lake.commit(moved, raw, *near)
    snapshot = catalog.snapshot(lake.name)
    files = snapshot.files(columns=LIST_COLUMNS).read_all()

    tagged = frame(spark, snapshot, files, tagged=True)

    expected = {url: ("far", 1), raw.path: (None, 3)}
    expected |= {file.path: ("near", 2) for file in near}
    found = {row[FILE_COLUMN]: (row.p, row.id) for row in tagged.collect()}
    assert found == expected
    assert tagged.count() == num_records(lake, lake.version)


def test_roundabout_paths_are_read_and_none_leads_out_of_the_location(
    spark: SparkSession, lake: Lake
) -> None:
    lake.create(SMALL)
    near = quote(lake.location)
    starts = ("./", ".//", "s/../", f"{near}/", f"file:{near}/", f"file://{near}/")
    names = [f"{n}.parquet" for n in range(len(starts))]
    paths = [*map("".join, zip(starts, names, strict=True)), "%5Fx.parquet"]
    files = [
        msgspec.structs.replace(lake.file({"id": [n], "p": [""]}, name), path=path)
        for n, (name, path) in enumerate(
            zip([*names, "_x.parquet"], paths, strict=True)
        )
    ]
    lake.commit(*files)
    snapshot = lake.catalog.snapshot(lake.name)
    listed = snapshot.files(columns=LIST_COLUMNS).read_all()

    tagged = frame(spark, snapshot, listed, tagged=True).collect()

    assert {row[FILE_COLUMN]: row.id for row in tagged} == {
        file.path: number for number, file in enumerate(files)
    }
    for path in ("../x", "s/../../x"):
        column = pa.chunked_array([pa.repeat(path, listed.num_rows)])
        at = listed.schema.get_field_index("path")
        hostile = listed.set_column(at, "path", column)
        with pytest.raises(DeltaError, match="doesn't lead to a file below"):
            frame(spark, snapshot, hostile)


@pytest.mark.parametrize("partitions", [[], ["p"]])
def test_tagged_rows_name_their_files(
    spark: SparkSession, lake: Lake, partitions: list[str]
) -> None:
    lake.create(SMALL, partitions=partitions)
    values = {"p": "a b"} if partitions else {}
    paths = ["p=a b/x y.parquet", "p=a b/é.parquet"]
    files = [lake.file({"id": [1, 2], "p": ["a b"] * 2}, p, **values) for p in paths]
    lake.commit(*files)
    snapshot = lake.catalog.snapshot(lake.name)
    listed = snapshot.files(columns=LIST_COLUMNS).read_all()

    tagged = frame(spark, snapshot, listed, tagged=True, columns=["id"])

    assert tagged.columns == ["id", FILE_COLUMN, INDEX_COLUMN]
    named = tagged.groupBy(FILE_COLUMN).count().collect()
    assert {tuple(row) for row in named} == {(file.path, 2) for file in files}
    one = listed.filter(pc.equal(listed["path"], files[0].path))
    assert frame(spark, snapshot, one).count() == 2


def test_files_that_spark_would_pass_over_are_read(
    spark: SparkSession, lake: Lake
) -> None:
    lake.create(SMALL)
    names = [".hidden.parquet", "_under.parquet", "_d/plain.parquet", "plain"]
    lake.commit(*(lake.file({"id": [1], "p": ["x"]}, name) for name in names))

    check(spark, lake)


def test_dead_files_beside_live_ones_are_not_read(
    spark: SparkSession, lake: Lake
) -> None:
    lake.create(SMALL)
    lake.file({"id": [1], "p": ["dead"]}, "dead.parquet")
    lake.commit(lake.file({"id": [2], "p": ["live"]}, "live.parquet"))

    check(spark, lake)


def test_tables_without_files_have_no_rows(spark: SparkSession, lake: Lake) -> None:
    lake.create(SMALL, partitions=["p"])

    found = check(spark, lake)

    assert found.schema.simpleString() == "struct<id:bigint,p:string>"


@pytest.mark.parametrize("kind", ["name", "id", "vectors", "id vectors"])
def test_mapped_columns_and_deletion_vectors_are_heeded(
    spark: SparkSession, lake: Lake, kind: str
) -> None:
    features, configuration = [], {}
    if mode := kind.partition("vectors")[0].strip():
        lake.map_columns(id="col-1", p="col-2")
        features.append("columnMapping")
        configuration["delta.columnMapping.mode"] = mode
    if "vectors" in kind:
        features.append("deletionVectors")
        configuration["delta.enableDeletionVectors"] = "true"
    small(lake, ["a b", None], none, features=features, configuration=configuration)
    if "vectors" in kind:
        first = next(iter(lake.catalog.log(lake.name).adds()))
        lake.commit(*lake.without(first, 1))

    found = check(spark, lake)

    assert found.filter("p = 'a b'").count() + found.filter("p IS NULL").count() == (
        num_records(lake, lake.version)
    )


def test_nested_mapped_columns_have_their_own_names(
    spark: SparkSession, catalog: dk.Catalog, tmp_path: Path
) -> None:
    lake = Lake(catalog, tmp_path)
    lake.create(pa.schema([("c1", pa.struct([("c2", pa.int64())]))]))
    inner = json.loads(schema(inner="long"))
    fields = json.loads(schema(outer=inner))
    names = "delta.columnMapping.physicalName"
    fields["fields"][0]["metadata"] = {names: "c1"}
    inner["fields"][0]["metadata"] = {names: "c2"}
    fields["fields"][0]["type"] = inner
    mapped = metadata(
        json.dumps(fields), configuration={"delta.columnMapping.mode": "name"}
    )
    lake.commit(mapped, lake.file({"c1": [{"c2": 5}, None]}))

    found = dks.read(spark, uri(lake))

    assert rows_of(found) == [{"outer": None}, {"outer": {"inner": 5}}]
    assert found.filter("outer.inner = 5").count() == 1


def test_feature_that_spark_does_not_know_is_refused_by_name(
    spark: SparkSession, lake: Lake
) -> None:
    schema = SMALL.append(pa.field("t", pa.timestamp("ns")))
    lake.create(schema, features=["timestampNanos"])

    with pytest.raises(ProtocolError, match="timestampNanos"):
        dks.read(spark, uri(lake))


# ---- planning


def test_where_looks_at_matching_files_only_and_gives_exact_rows(
    spark: SparkSession, catalog: dk.Catalog, tmp_path: Path
) -> None:
    target = format_uri(catalog.uri.with_table("t"))
    for start in (0, 100, 200):
        values = {"n": range(start, start + 100), "s": [f"s{start}"] * 100}
        dk.write_deltalake(target, pa.table(values), mode="append")

    found = dks.read(spark, target, where="n >= 150 AND s <> 's0'")

    assert len(found.inputFiles()) == 2
    assert sorted(row.n for row in found.collect()) == list(range(150, 300))
    wide = dks.read(spark, target, where=sf.col("n") % 100 == 5, columns=["n"])
    assert sorted(tuple(row) for row in wide.collect()) == [(5,), (105,), (205,)]
    assert dks.read(spark, target, where="n > 1000").count() == 0
    # To Spark, double quotes enclose a text.
    assert dks.read(spark, target, where='s = "s100"').count() == 100
    with pytest.raises(AnalysisException, match="nonsense"):
        dks.read(spark, target, where="nonsense = 1")


def test_times_in_where_are_of_the_sessions_zone(
    spark: SparkSession, catalog: dk.Catalog
) -> None:
    target = format_uri(catalog.uri.with_table("t"))
    for hour in (1, 5):
        at = datetime(2026, 1, 1, hour, tzinfo=UTC)
        column = pa.array([at], pa.timestamp("us", "UTC"))
        dk.write_deltalake(target, pa.table({"at": column}), mode="append")
    where = "at >= '2026-01-01 00:00:00'"

    assert dks.read(spark, target, where=where).count() == 2
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert dks.read(spark, target, where=where).count() == 1
        later = "at < '2025-12-31 23:00:00'"
        assert dks.read(spark, target, where=later).count() == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_reads_stay_at_their_version_and_travel_in_time(
    spark: SparkSession, lake: Lake
) -> None:
    lake.create(SMALL)
    for i in range(3):
        lake.commit(lake.file({"id": [i], "p": ["x"]}))
    before = dks.read(spark, uri(lake), version=2)
    lake.commit(remove_all=True)

    assert before.count() == num_records(lake, 2) == 2
    check(spark, lake, 1)
    check(spark, lake)
    times = [c.timestamp_ms for c in lake.catalog.snapshot(lake.name).history()]
    created = datetime.fromtimestamp(times[-1] / 1000, UTC)
    later = created + timedelta(days=1)
    assert dks.read(spark, uri(lake), timestamp=later).count() == 0
    assert dks.read(spark, uri(lake), timestamp=later.isoformat()).count() == 0
    with pytest.raises(VersionNotFoundError):
        dks.read(spark, uri(lake), timestamp="2001-01-01")
    with pytest.raises(VersionNotFoundError):
        dks.read(spark, uri(lake), version=9)
    with pytest.raises(DeltaError, match="a version or a timestamp, not both"):
        dks.read(spark, uri(lake), version=1, timestamp="2026-01-01")
    with pytest.raises(UriError, match="no table"):
        dks.read(spark, format_uri(lake.catalog.uri))


def test_views_over_reads_answer_sql(spark: SparkSession, lake: Lake) -> None:
    small(lake, ["a", "b", None])
    found = check(spark, lake)

    found.createOrReplaceTempView("rows")
    named = dks.read(spark, uri(lake), columns=["p"])
    named.createOrReplaceTempView("named")
    counted = spark.sql("SELECT p, count(*) AS n FROM rows GROUP BY p ORDER BY p")

    assert [tuple(row) for row in counted.collect()] == [(None, 2), ("a", 2), ("b", 2)]
    joined = "SELECT count(*) FROM rows JOIN named USING (p)"
    assert spark.sql(joined).first()[0] == 8
    assert found.cache().count() == 6
    found.unpersist()


def test_classic_frames_outlive_their_lists(spark: SparkSession, lake: Lake) -> None:
    small(lake, ["a", "é", None], delta_rs)
    found = dks.read(spark, uri(lake))
    found.createOrReplaceTempView("outlived")
    for folder in lists._home().path.iterdir():
        shutil.rmtree(folder)

    assert found.count() == num_records(lake, lake.version)
    assert found.filter("p = 'a'").cache().count() == 2
    assert spark.sql("SELECT * FROM outlived WHERE p IS NULL").count() == 2
    assert spark.table("outlived").join(found, "id").count() == 6
    check(spark, lake)


def test_fifty_thousand_files_are_planned_without_a_look_at_them(
    spark: SparkSession, catalog: dk.Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 50_000
    files = [
        add(f"p={i % 100}/{i}.parquet", partition={"p": str(i % 100)})
        for i in range(count)
    ]
    meta = metadata(schema(id="long", p="integer"), partitions=["p"])
    catalog.commit(creation("big", *files, meta=meta))

    found = dks.read(spark, format_uri(catalog.uri.with_table("big")))

    assert len(found.inputFiles()) == count
    found.filter("p = 7").explain()
    assert "PartitionFilters: [isnotnull(p" in capsys.readouterr().out


def test_reads_on_every_engine_show_nothing_of_the_catalog(
    spark: SparkSession, catalog_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with dk.connect(catalog_uri) as catalog:
        target = format_uri(catalog.uri.with_table("t"))
    dk.write_deltalake(target, pa.table({"n": [1, 2, 3]}))

    found = dks.read(spark, target, where="n > 1")

    assert found.count() == 2
    found.explain("extended")
    assert "deltasql" not in capsys.readouterr().out


# ---- deletion vectors


VECTORS = {"delta.enableDeletionVectors": "true"}


@pytest.mark.parametrize(
    ("partitions", "inline_bytes", "array_files"),
    [
        (0, "0", 64),
        (0, "1000000", 0),
        (1, "0", 0),
        (1, "1000000", 64),
        (40, "0", 64),
        (40, "1000000", 100),
    ],
)
def test_rows_in_deletion_vectors_are_left_out_by_sparks_own_reader(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    inline_bytes: str,
    array_files: int,
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", inline_bytes)
    monkeypatch.setattr(marks, "_ARRAY_FILES", array_files)
    target = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    by = ["p"] if partitions else None
    for start in (0, 3000):
        # Spark reads no timestamp from a folder's name.
        ids = range(start, start + 3000)
        first = datetime(2026, 1, 1, tzinfo=UTC)
        days = [first + timedelta(days=i % (partitions or 1)) for i in ids]
        rows = pa.table({"id": ids, "v": [str(i) for i in ids], "p": days})
        dk.write_deltalake(
            target, rows, mode="append", partition_by=by, configuration=VECTORS
        )
    chance = random.Random(partitions)
    gone = [*chance.sample(range(6000), 150), *range(63, 129), 2999, 3000, 5999]
    dk.DeltaTable(target).delete(f"id IN ({', '.join(map(str, gone))})")
    dk.write_deltalake(target, rows.slice(0, 10), mode="append", partition_by=by)
    expected = dk.DeltaTable(target).to_pyarrow_table()

    found = dks.read(spark, target)

    assert rows_of(found) == rows_of(expected)
    assert "MapInArrow" not in scans(found)
    # of at most 80 files, whose words are an array or rows to join
    in_array = array_files >= 2 * (partitions or 1) and check_pyspark() >= (4, 0)
    assert ("LeftAnti" in plan_of(found)) is not in_array
    assert found.filter("id = 3001 OR v = '3000'").count() == 3
    narrow = dks.read(spark, target, columns=["v"])
    assert rows_of(narrow) == rows_of(expected.select(["v"]))


def plan_of(found: DataFrame) -> str:
    return str(found._jdf.queryExecution().executedPlan().toString())


def scans(found: DataFrame) -> str:
    """The lines of the plan that read or compute rows of the table's files."""
    plan = plan_of(found)
    broadcasts = plan.index("BroadcastExchange") if "BroadcastExchange" in plan else 0
    return plan[:broadcasts]

"""Each table feature with each operation: the right rows, or refused by name."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.table import TableFeatures

import delkalakedb as dk
from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.mirror.fences import fence
from delkalakedb.model.actions import Add, CommitInfo, DomainMetadata, known
from tests.support.actions import domain
from tests.support.lakes import Lake
from tests.support.twins import Twins

SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("twice", pa.int64())])
Row = tuple[int, str, int]
Rows = frozenset[Row]
FIRST: Rows = frozenset({(1, "a", 2), (2, "a", 4)})
BASE: Rows = FIRST | {(3, "b", 6), (4, "b", 8)}


def data(*rows: Row) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), SCHEMA)


def read(found: Any) -> Rows:
    rows = [tuple(row[n] for n in SCHEMA.names) for row in pa.table(found).to_pylist()]
    assert len(rows) == len(set(rows))
    return frozenset(rows)


@dataclass(frozen=True)
class Feature:
    """A table with a feature, and which operations are refused with what words."""

    features: Sequence[str] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    more: Sequence[Any] = ()
    fenced: bool = False


def merge(table: DeltaTable) -> None:
    source = data((1, "m", 2), (7, "m", 14))
    merger = table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def replace(table: DeltaTable) -> None:
    rows = data((2, "z", 4))
    write_deltalake(table, rows, mode="overwrite", predicate="id = 2")


Operation = tuple[Callable[[DeltaTable], Any], Callable[[Rows], Rows]]
OPERATIONS: dict[str, Operation] = {
    "append": (
        lambda t: write_deltalake(t, data((9, "z", 18)), mode="append"),
        lambda rows: rows | {(9, "z", 18)},
    ),
    "append_odd": (
        lambda t: write_deltalake(t, data((-9, "z", 7)), mode="append"),
        lambda rows: rows | {(-9, "z", 7)},
    ),
    "overwrite": (
        lambda t: write_deltalake(t, data((9, "z", 18)), mode="overwrite"),
        lambda _: frozenset({(9, "z", 18)}),
    ),
    "replace": (replace, lambda rows: rows - {(2, "a", 4)} | {(2, "z", 4)}),
    "delete": (lambda t: t.delete("id = 1"), lambda rows: rows - {(1, "a", 2)}),
    "update": (
        lambda t: t.update({"city": "'u'"}, predicate="id = 1"),
        lambda rows: rows - {(1, "a", 2)} | {(1, "u", 2)},
    ),
    "update_odd": (
        lambda t: t.update({"id": "id - 100"}, predicate="id = 1"),
        lambda rows: rows - {(1, "a", 2)} | {(-99, "a", 2)},
    ),
    "merge": (merge, lambda rows: rows - {(1, "a", 2)} | {(1, "m", 2), (7, "m", 14)}),
    "compact": (lambda t: t.optimize.compact(), lambda rows: rows),
    "z_order": (lambda t: t.optimize.z_order(["id"]), lambda rows: rows),
    "add_columns": (
        lambda t: t.alter.add_columns([Field("x", PrimitiveType("long"))]),
        lambda rows: rows,
    ),
    "set_property": (
        lambda t: t.alter.set_table_properties(
            {"delta.logRetentionDuration": "interval 9 days"}
        ),
        lambda rows: rows,
    ),
    "restore": (lambda t: t.restore(t.version() - 1), lambda _: FIRST),
    "vacuum": (
        lambda t: t.vacuum(
            0, dry_run=False, enforce_retention_duration=False, full=True
        ),
        lambda rows: rows,
    ),
    "repair": (lambda t: t.repair(), lambda rows: rows),
}
_BY_DELTA_RS = OPERATIONS.keys() - {"restore", "vacuum", "repair"}
_ON_DATA = ("overwrite", "replace", "delete", "update", "update_odd", "merge")
_ROW_IDS = "delta.rowTracking.materializedRow"

_IDENTITY = {
    "identity.start": 1,
    "identity.step": 1,
    "identity.allowExplicitInsert": True,
}

FEATURES = {
    "none": Feature(),
    "appendOnly": Feature(
        ["appendOnly"],
        {"delta.appendOnly": "true"},
        refused=dict.fromkeys([*_ON_DATA, "restore"], "append-only"),
    ),
    "invariants": Feature(
        ["invariants"],
        columns={"id": {"invariants": '{"expression":{"expression":"id > 0"}}'}},
        refused=dict.fromkeys(["append_odd", "update_odd"], "failed validation"),
    ),
    "checkConstraints": Feature(
        ["checkConstraints"],
        {"delta.constraints.positive": "id > 0"},
        refused=dict.fromkeys(["append_odd", "update_odd"], "failed validation"),
    ),
    "generatedColumns": Feature(
        ["generatedColumns"],
        columns={"twice": {"generationExpression": "id * 2"}},
        refused=dict.fromkeys(["append_odd", "update_odd"], "failed validation"),
    ),
    "changeDataFeed": Feature(
        ["changeDataFeed"], {"delta.enableChangeDataFeed": "true"}
    ),
    "rowTracking": Feature(
        ["rowTracking", "domainMetadata"],
        {
            "delta.enableRowTracking": "true",
            f"{_ROW_IDS}IdColumnName": "_row-id",
            f"{_ROW_IDS}CommitVersionColumnName": "_row-version",
        },
    ),
    "inCommitTimestamp": Feature(
        ["inCommitTimestamp"], {"delta.enableInCommitTimestamps": "true"}
    ),
    "v2Checkpoint": Feature(["v2Checkpoint"], {"delta.checkpointPolicy": "v2"}),
    "variantType": Feature(["variantType"]),
    "clustering": Feature(
        ["clustering", "domainMetadata"],
        more=[domain("delta.clustering", '{"clusteringColumns":[["id"]]}')],
    ),
    "typeWidening": Feature(
        ["typeWidening"],
        {"delta.enableTypeWidening": "true"},
        refused=dict.fromkeys(_BY_DELTA_RS, "typeWidening; Spark can"),
    ),
    "identityColumns": Feature(
        ["identityColumns"],
        columns={"id": _IDENTITY},
        refused=dict.fromkeys(_BY_DELTA_RS, "identityColumns; Spark can"),
    ),
    "catalogManaged": Feature(fenced=True),
}
UNWRITABLE = {
    "variantShredding": Feature(
        ["variantShredding"], {"delta.enableVariantShredding": "true"}
    ),
    "icebergCompatV2": Feature(
        ["icebergCompatV2"], {"delta.enableIcebergCompatV2": "true"}
    ),
    "checkpointProtection": Feature(["checkpointProtection"]),
    "materializePartitionColumns": Feature(["materializePartitionColumns"]),
}


def make(feature: Feature, folder: Path) -> tuple[dk.DeltaTable, Lake]:
    """A table with the rows of BASE in two files, each of its own version."""
    lake = Lake(dk.connect(f"deltasql://sqlite/{folder}/meta.db"), folder)
    for column, fields in feature.columns.items():
        lake.describe(column, **fields)
    lake.create(
        SCHEMA,
        *feature.more,
        features=feature.features,
        configuration=feature.configuration,
    )
    if feature.fenced:
        fence(lake.catalog, table=lake.name)
    for rows in (FIRST, BASE - FIRST):
        lake.commit(lake.file(data(*sorted(rows)).to_pydict()))
    lake.publish()
    uri = f"deltasql://sqlite/{folder}/meta.db?table={lake.name}"
    return dk.DeltaTable(uri), lake


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_gives_the_right_rows_or_is_refused_by_name(
    name: str, operation: str, tmp_path: Path
) -> None:
    feature, (run, expected) = FEATURES[name], OPERATIONS[operation]
    table, lake = make(feature, tmp_path)
    rows, version = BASE, table.version()
    if words := feature.refused.get(operation):
        with pytest.raises(DeltaError, match=f"^{lake.name}: (?s:.)*{words}"):
            run(table)
        assert lake.version == version
    else:
        run(table)
        rows = expected(rows)
        assert set(feature.features) <= set(table.protocol().writer_features or ())
    if name != "typeWidening":
        reopened = dk.DeltaTable(table.catalog_uri)
        assert read(reopened.scan()) == read(reopened.to_pyarrow_table()) == rows
    report = dk.verify(table.catalog_uri, deep=True)
    assert report.ok, report


def test_table_that_nothing_here_reads_rightly_is_refused_by_name(
    tmp_path: Path,
) -> None:
    table, _ = make(FEATURES["typeWidening"], tmp_path)
    with pytest.raises(ProtocolError, match=r"typeWidening; read .* with Spark"):
        table.to_pyarrow_table()
    with pytest.raises(DeltaError, match=r"scan of version 2: .*TypeWidening"):
        table.scan()


@pytest.mark.parametrize("name", UNWRITABLE)
def test_table_that_nothing_here_writes_rightly_is_refused_by_name(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ProtocolError, match=name):
        make(UNWRITABLE[name], tmp_path)


def test_null_is_refused_where_a_column_has_none(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    dk.write_deltalake(uri, pa.table({"id": [1]}, schema))
    table = dk.DeltaTable(uri)
    with pytest.raises(DeltaError, match=r"^t: append on version 0: "):
        write_deltalake(
            table,
            pa.table({"id": [None]}, pa.schema([("id", pa.int64())])),
            mode="append",
        )
    with pytest.raises(DeltaError, match=r"^t: update on version 0: "):
        table.update({"id": "NULL"})
    assert table.to_pyarrow_table().to_pylist() == [{"id": 1}]


def test_changes_are_those_of_plain_deltalake(catalog_uri: str, tmp_path: Path) -> None:
    twins = Twins(catalog_uri, tmp_path)
    twins.write(
        data(*sorted(BASE)),
        partition_by="city",
        configuration={"delta.enableChangeDataFeed": "true"},
    )
    for name in ("append", "delete", "update", "merge", "replace", "compact"):
        twins.do(OPERATIONS[name][0])
    twins.write(data((5, "c", 10)), mode="overwrite")

    def changes(table: DeltaTable, **span: int) -> list[str]:
        found = pa.table(table.load_cdf(**span)).drop_columns(["_commit_timestamp"])
        return sorted(str(sorted(row.items())) for row in found.to_pylist())

    for span in ({}, {"starting_version": 2}, {"ending_version": 3}):
        ours, plain = changes(twins.ours, **span), changes(twins.plain, **span)
        assert ours == plain
        assert ours


def test_row_ids_stay_unique_and_timestamps_grow(tmp_path: Path) -> None:
    feature = FEATURES["rowTracking"]
    timed = FEATURES["inCommitTimestamp"]
    both = Feature(
        [*feature.features, *timed.features],
        {**feature.configuration, **timed.configuration},
    )
    table, lake = make(both, tmp_path)
    for name in ("append", "update", "merge", "compact", "overwrite"):
        OPERATIONS[name][0](table)
    log, stamps, spans, mark = lake.catalog.log(lake.name), [], [], -1
    for version in range(1, table.version() + 1):
        for action in log.commit(version):
            if isinstance(action, CommitInfo):
                stamps.append(action.fields["inCommitTimestamp"])
            if isinstance(action, Add):
                first = known(action.base_row_id)
                assert first is not None
                spans.append((first, first + _rows(action)))
            if isinstance(action, DomainMetadata):
                mark = int(action.configuration.split(":")[1].rstrip("}"))
    assert stamps == sorted(set(stamps))
    spans.sort()
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert mark == spans[-1][1] - 1


def test_feature_is_listed_once_whoever_asks_for_it(tmp_path: Path) -> None:
    table, _ = make(FEATURES["clustering"], tmp_path)
    table.alter.add_feature(TableFeatures.RowTracking, True)
    listed = table.protocol().writer_features or []
    assert sorted(listed) == sorted(set(listed))
    assert {"clustering", "domainMetadata", "rowTracking"} <= set(listed)


def _rows(add: Add) -> int:
    stats = known(add.stats)
    assert stats is not None
    return int(json.loads(stats)["numRecords"])

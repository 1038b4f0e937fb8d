"""Protocol checks: what is honoured passes, everything else is refused by name."""

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableFeatures
from hypothesis import given, settings, strategies as st

from delkalakedb.errors import DeltaError, ProtocolError, SchemaMismatchError
from delkalakedb.model.actions import (
    UNSET,
    Action,
    Add,
    Cdc,
    CheckpointMetadata,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    Sidecar,
    Txn,
    UnknownAction,
    decode_commit,
)
from delkalakedb.model.log import Replay
from delkalakedb.model.rules.features import FEATURES, FENCE_FEATURES
from delkalakedb.model.rules.protocol import (
    DROP_FEATURE,
    active_features,
    check_actions,
    check_readable,
    check_transition,
    check_writable,
    complete_upgrade,
    supported_features,
    unfenced,
    upgraded,
    with_feature,
    with_needed,
    without_feature,
)
from tests.support.examples import examples

READERS = sorted(name for name, feature in FEATURES.items() if feature.reader)


def protocol(reader: int, writer: int, *features: str) -> Protocol:
    """Versions, with features put in the lists that they belong in."""
    known_readers = [name for name in features if name in READERS]
    return Protocol(
        min_reader_version=reader,
        min_writer_version=writer,
        reader_features=known_readers if reader == 3 else UNSET,
        writer_features=list(features) if writer == 7 else UNSET,
    )


def column(name: str, kind: str = "long", **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def metadata(
    *columns: dict[str, Any],
    partition_columns: tuple[str, ...] = (),
    provider: str = "parquet",
    **configuration: str,
) -> Metadata:
    fields = list(columns) or [column("a"), column("p", "string")]
    return Metadata(
        id="i",
        format=Format(provider=provider),
        schema_string=json.dumps({"type": "struct", "fields": fields}),
        partition_columns=list(partition_columns),
        configuration={f"delta.{k}": v for k, v in configuration.items()},
    )


PLAIN = protocol(1, 2)
TABLE = metadata()
VECTOR = DeletionVector(
    storage_type="u", path_or_inline_dv="v", size_in_bytes=1, cardinality=1
)


def add(path: str = "x", **changes: Any) -> Add:
    base = Add(
        path=path, partition_values={}, size=1, modification_time=1, data_change=True
    )
    return msgspec.structs.replace(base, **changes)


def remove(path: str = "x", **changes: Any) -> Remove:
    base = Remove(path=path, data_change=True)
    return msgspec.structs.replace(base, **changes)


def domain(name: str) -> DomainMetadata:
    return DomainMetadata(domain=name, configuration="", removed=False)


@pytest.mark.parametrize(
    ("versions", "implied"),
    [
        ((1, 1), set()),
        ((1, 2), {"appendOnly", "invariants"}),
        ((1, 3), {"appendOnly", "invariants", "checkConstraints"}),
        ((2, 1), {"columnMapping"}),
        (
            (2, 6),
            {"appendOnly", "invariants", "checkConstraints", "changeDataFeed"}
            | {"generatedColumns", "columnMapping", "identityColumns"},
        ),
        ((1, 7), set()),
        ((2, 7), {"columnMapping"}),
        ((3, 7), set()),
    ],
)
def test_legacy_versions_imply_their_features(
    versions: tuple[int, int], implied: set[str]
) -> None:
    assert supported_features(protocol(*versions)) == implied


def test_a_supported_feature_is_active_when_metadata_uses_it() -> None:
    columns = [
        column("a", **{"delta.invariants": "{}"}),
        column("b", **{"delta.generationExpression": "a"}),
    ]
    used = metadata(
        *columns,
        appendOnly="true",
        enableChangeDataFeed="false",
        **{"columnMapping.mode": "none", "constraints.c": "a > 0"},
    )
    assert active_features(protocol(2, 6), used) == {
        *["appendOnly", "invariants", "checkConstraints", "generatedColumns"],
    }
    assert active_features(protocol(2, 6), TABLE) == set()
    assert active_features(protocol(1, 2), used) == {"appendOnly", "invariants"}


def test_an_unknown_feature_counts_as_active() -> None:
    assert active_features(protocol(1, 7, "brandNew"), TABLE) == {"brandNew"}


@pytest.mark.parametrize(
    "versions", [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6), (2, 7), (3, 7)]
)
def test_versions_of_the_protocol_can_be_read_and_written(
    versions: tuple[int, int],
) -> None:
    check_readable(protocol(*versions))
    check_writable(protocol(*versions), TABLE)


@pytest.mark.parametrize("name", sorted(FEATURES))
def test_each_feature_is_honoured_or_refused_by_name(name: str) -> None:
    feature = FEATURES[name]
    needed = [name, *feature.needs]
    version = 3 if any(n in READERS for n in needed) else 1
    given = protocol(version, 7, *needed)
    if feature.read:
        check_readable(given)
    else:
        with pytest.raises(ProtocolError, match=f"read .*{name}"):
            check_readable(given)
    if not feature.write and name in active_features(given, TABLE):
        with pytest.raises(ProtocolError, match=name):
            check_writable(given, TABLE)
    else:
        check_writable(given, TABLE)


def test_an_unknown_reader_feature_stops_readers_and_writers() -> None:
    given = Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=["brandNew"],
        writer_features=["brandNew"],
    )
    with pytest.raises(ProtocolError, match=r"read .*brandNew \(unknown\)"):
        check_readable(given)
    with pytest.raises(ProtocolError, match="brandNew"):
        check_writable(given, TABLE)


def test_an_unknown_writer_feature_stops_writers_only() -> None:
    given = protocol(1, 7, "brandNew", "other")
    check_readable(given)
    with pytest.raises(ProtocolError, match=r"write .*brandNew .*other"):
        check_writable(given, TABLE)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (protocol(1, 7, "icebergCompatV1"), metadata(enableIcebergCompatV1="true")),
        (protocol(1, 7, "icebergCompatV2"), metadata(enableIcebergCompatV2="true")),
    ],
)
def test_features_beyond_us_are_refused_only_in_use(
    given: Protocol, used: Metadata
) -> None:
    check_writable(given, TABLE)
    check_readable(given)
    with pytest.raises(ProtocolError, match="can't write"):
        check_writable(given, used)


def test_newer_writer_version_can_be_read_but_not_written() -> None:
    newer = Protocol(min_reader_version=1, min_writer_version=8)
    check_readable(newer)
    with pytest.raises(ProtocolError, match="writer version 8 is not known"):
        check_writable(newer, TABLE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Protocol(min_reader_version=4, min_writer_version=7), "not known"),
        (Protocol(min_reader_version=0, min_writer_version=2), "not known"),
        (
            Protocol(min_reader_version=3, min_writer_version=6),
            "needs writer version 7",
        ),
        (
            Protocol(min_reader_version=3, min_writer_version=7, writer_features=[]),
            "needs readerFeatures",
        ),
        (Protocol(min_reader_version=1, min_writer_version=7), "needs writerFeatures"),
        (
            Protocol(
                min_reader_version=1,
                min_writer_version=2,
                writer_features=["appendOnly"],
            ),
            "can't have writerFeatures",
        ),
        (
            Protocol(
                min_reader_version=2,
                min_writer_version=7,
                reader_features=["columnMapping"],
                writer_features=["columnMapping"],
            ),
            "can't have readerFeatures",
        ),
        (
            Protocol(
                min_reader_version=3,
                min_writer_version=7,
                reader_features=["deletionVectors"],
                writer_features=[],
            ),
            "writerFeatures lacks deletionVectors, which readerFeatures has",
        ),
        (
            Protocol(
                min_reader_version=3,
                min_writer_version=7,
                reader_features=[],
                writer_features=["deletionVectors"],
            ),
            "readerFeatures lacks deletionVectors, which",
        ),
        (protocol(1, 7, "columnMapping"), "readerFeatures lacks columnMapping, which"),
    ],
)
def test_a_protocol_that_breaks_its_own_rules_is_refused(
    given: Protocol, message: str
) -> None:
    for check in (check_readable, lambda p: check_writable(p, TABLE)):
        with pytest.raises(ProtocolError, match=message):
            check(given)


def test_column_mapping_may_be_a_writer_feature_at_reader_version_two() -> None:
    check_readable(protocol(2, 7, "columnMapping"))


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("rowTracking", "domainMetadata"),
        ("clustering", "domainMetadata"),
        ("catalogManaged", "inCommitTimestamp"),
    ],
)
def test_a_feature_without_the_one_it_needs_is_refused(name: str, needed: str) -> None:
    with pytest.raises(ProtocolError, match=f"{name} needs {needed}"):
        check_writable(protocol(3, 7, name), TABLE)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (protocol(1, 4), protocol(1, 2), r"down from \(1, 4\) to \(1, 2\)"),
        (protocol(2, 7), protocol(1, 7), "down"),
        (protocol(1, 7, "appendOnly"), protocol(1, 7), "drop appendOnly"),
        (protocol(1, 2), protocol(1, 7, "appendOnly"), "drop invariants"),
    ],
)
def test_a_protocol_never_takes_back_a_promise(
    old: Protocol, new: Protocol, message: str
) -> None:
    with pytest.raises(ProtocolError, match=message):
        check_transition(old, new)


def test_only_a_fence_can_be_dropped_and_only_by_name() -> None:
    features = ("appendOnly", *sorted(FENCE_FEATURES))
    old = protocol(3, 7, *features)
    table = metadata(**{"delta.enableInCommitTimestamps": "true"})
    new, plain = unfenced(old, table)
    drop, other = (CommitInfo({"operation": name}) for name in (DROP_FEATURE, "WRITE"))

    check_actions((drop, new, plain), old, table, 1)
    assert supported_features(new) == {"appendOnly"}
    with pytest.raises(ProtocolError, match="would drop catalogManaged"):
        check_actions((other, new, plain), old, table, 1)
    with pytest.raises(ProtocolError, match="would drop appendOnly"):
        check_actions((drop, protocol(3, 7), plain), old, table, 1)


legacy = st.sampled_from([(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6)])
listed = st.sets(st.sampled_from(sorted(FEATURES)), max_size=4)


@settings(max_examples=examples(150), deadline=None)
@given(legacy, listed)
def test_a_completed_upgrade_is_sound_and_keeps_every_feature(
    versions: tuple[int, int], names: set[str]
) -> None:
    old, new = protocol(*versions), protocol(3, 7, *sorted(names))
    completed = complete_upgrade(old, new)
    check_transition(old, completed)
    assert supported_features(completed) == names | supported_features(old)
    assert set(completed.reader_features or ()) <= set(completed.writer_features or ())
    assert complete_upgrade(completed, completed) is completed


def test_an_upgrade_within_legacy_versions_is_left_alone() -> None:
    new = protocol(1, 4)
    assert complete_upgrade(PLAIN, new) is new
    check_transition(PLAIN, new)


@given(listed)
def test_a_protocol_gets_the_features_that_its_own_need(names: set[str]) -> None:
    completed = with_needed(protocol(3, 7, *sorted(names)))
    features = supported_features(completed)
    needed = {need for name in features for need in FEATURES[name].needs}
    assert needed <= features <= names | needed
    assert not any(FEATURES[need].reader for need in needed)
    assert with_needed(completed) is completed


def test_upgrades_of_delta_rs_can_be_completed(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1]}))
    DeltaTable(tmp_path).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    old, new = (
        next(
            action
            for action in decode_commit(entry.read_bytes())
            if isinstance(action, Protocol)
        )
        for entry in sorted((tmp_path / "_delta_log").glob("*.json"))
    )
    completed = complete_upgrade(old, new)
    check_transition(old, completed)
    check_writable(completed, TABLE)


# -- one commit ---------------------------------------------------------------

DOMAINS = protocol(1, 7, "domainMetadata")
VECTORS = protocol(3, 7, "deletionVectors")
DV_ON = metadata(enableDeletionVectors="true")
PARTITIONED = metadata(partition_columns=("p",))
MAPPED = metadata(
    column("a"),
    column("p", "string", **{"delta.columnMapping.physicalName": "col-1"}),
    partition_columns=("p",),
    **{"columnMapping.mode": "name"},
)


@pytest.mark.parametrize(
    ("actions", "table_protocol", "table"),
    [
        ([], PLAIN, TABLE),
        ([CommitInfo({}), add(), Txn(app_id="a", version=1)], PLAIN, TABLE),
        ([add(data_change=False)], PLAIN, metadata(appendOnly="true")),
        ([remove(data_change=False)], PLAIN, metadata(appendOnly="true")),
        ([remove()], PLAIN, metadata(appendOnly="false")),
        ([add(partition_values={"p": None})], PLAIN, PARTITIONED),
        ([remove(partition_values={"other": "1"})], PLAIN, PARTITIONED),
        ([add(partition_values={"col-1": "x"})], protocol(2, 5), MAPPED),
        ([domain("mine"), domain("delta.clustering")], DOMAINS, TABLE),
        ([remove(), add(deletion_vector=VECTOR)], VECTORS, DV_ON),
        ([remove(deletion_vector=VECTOR), add()], VECTORS, TABLE),
        # A vector that is there already outlives the property.
        ([add(deletion_vector=VECTOR)], VECTORS, TABLE),
        (
            [
                CommitInfo({"operation": "RESTORE"}),
                remove(),
                add(deletion_vector=VECTOR),
            ],
            VECTORS,
            TABLE,
        ),
        ([protocol(1, 4), metadata(column("b"))], PLAIN, TABLE),
        ([UnknownAction("new", {})], PLAIN, TABLE),
        (
            [Cdc(path="x", partition_values={}, size=1, data_change=False), add()],
            PLAIN,
            TABLE,
        ),
    ],
)
def test_a_sound_commit_passes(
    actions: list[Action], table_protocol: Protocol, table: Metadata
) -> None:
    check_actions(actions, table_protocol, table, 5)


@pytest.mark.parametrize(
    ("actions", "table_protocol", "table", "message"),
    [
        ([PLAIN, PLAIN], PLAIN, TABLE, "one protocol action"),
        ([TABLE, TABLE], PLAIN, TABLE, "one metaData action"),
        (
            [CommitInfo({}), CommitInfo({})],
            PLAIN,
            TABLE,
            "one commitInfo action",
        ),
        ([Txn(app_id="a", version=v) for v in (1, 2)], PLAIN, TABLE, "2 txn.*'a'"),
        ([domain("d"), domain("d")], DOMAINS, TABLE, "2 domainMetadata.*'d'"),
        ([add(), add("y"), add()], PLAIN, TABLE, "2 add actions for 'x'"),
        ([remove(), remove(data_change=False)], PLAIN, TABLE, "2 remove.*'x'"),
        ([add(), remove()], PLAIN, TABLE, "x is added and removed"),
        (
            [add(), add(deletion_vector=VECTOR)],
            VECTORS,
            DV_ON,
            "2 add actions for 'x'",
        ),
        ([CheckpointMetadata(version=1)], PLAIN, TABLE, "checkpointMetadata"),
        (
            [Sidecar(path="s", size_in_bytes=1, modification_time=1)],
            PLAIN,
            TABLE,
            "sidecar",
        ),
        ([remove()], PLAIN, metadata(appendOnly="true"), "append-only"),
        ([metadata(appendOnly="true"), remove()], PLAIN, TABLE, "append-only"),
        ([domain("mine")], PLAIN, TABLE, "needs feature domainMetadata"),
        ([domain("delta.other")], DOMAINS, TABLE, "delta.other is reserved"),
        ([add(deletion_vector=VECTOR)], PLAIN, TABLE, "needs feature deletionVectors"),
        (
            [remove(), add(deletion_vector=VECTOR)],
            VECTORS,
            TABLE,
            "enableDeletionVectors=true",
        ),
        ([add(partition_values={"p": "1"})], PLAIN, TABLE, "partitionValues"),
        ([add()], PLAIN, PARTITIONED, "partitionValues"),
        ([add(partition_values={"p": "1"})], protocol(2, 5), MAPPED, "col-1"),
        ([metadata(partition_columns=("p",)), add()], PLAIN, TABLE, "partitionValues"),
        ([add(size=-1)], PLAIN, TABLE, "negative"),
        ([add(modification_time=-1)], PLAIN, TABLE, "negative"),
        ([add("")], PLAIN, TABLE, "path is empty"),
        ([remove("")], PLAIN, TABLE, "path is empty"),
        (
            [Cdc(path="c", partition_values={}, size=1, data_change=True)],
            PLAIN,
            TABLE,
            "dataChange",
        ),
        ([protocol(1, 1)], PLAIN, TABLE, "down"),
        ([protocol(1, 7, "brandNew")], PLAIN, TABLE, "brandNew"),
        ([add()], protocol(1, 7, "brandNew"), TABLE, "brandNew"),
        ([metadata(column("t", "timestamp_ntz"))], PLAIN, TABLE, "timestampNtz"),
        ([metadata(column("v", "variant"))], PLAIN, TABLE, "variantType"),
        ([metadata(provider="orc")], PLAIN, TABLE, "orc"),
    ],
)
def test_a_commit_that_breaks_a_rule_is_refused(
    actions: list[Action], table_protocol: Protocol, table: Metadata, message: str
) -> None:
    with pytest.raises(ProtocolError, match=message):
        check_actions(actions, table_protocol, table, 5)


def test_a_commit_with_a_bad_schema_or_property_is_refused() -> None:
    with pytest.raises(SchemaMismatchError):
        check_actions([metadata(column("a"), column("A"))], PLAIN, TABLE, 1)
    with pytest.raises(DeltaError, match="checkpointInterval"):
        check_actions([metadata(checkpointInterval="0")], PLAIN, TABLE, 1)


@pytest.mark.parametrize("actions", [[], [PLAIN], [TABLE], [add()]])
def test_the_first_commit_needs_protocol_and_metadata(actions: list[Action]) -> None:
    with pytest.raises(ProtocolError, match="version 0"):
        check_actions(actions, None, None, 0)
    check_actions([PLAIN, TABLE, add()], None, None, 0)


def test_a_later_commit_needs_a_table() -> None:
    with pytest.raises(ProtocolError, match="version 3"):
        check_actions([add()], PLAIN, None, 3)


def test_commits_of_delta_rs_pass(tmp_path: Path) -> None:
    data = pa.table({"a": [1, 2, 3], "p": ["x", "é /%", None]})
    on = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(tmp_path, data, partition_by="p", configuration=on)
    table = DeltaTable(tmp_path)
    for _ in range(2):
        write_deltalake(table, data, mode="append")
    table.update(updates={"a": "a + 1"}, predicate="a > 1")
    table.delete("a = 1")
    table.optimize.compact()
    table.alter.add_constraint({"positive": "a > 0"})
    write_deltalake(table, data, mode="overwrite", schema_mode="overwrite")
    state = Replay()
    for entry in sorted((tmp_path / "_delta_log").glob("*.json")):
        actions, version = list(decode_commit(entry.read_bytes())), int(entry.stem)
        check_actions(actions, state.protocol, state.metadata, version)
        state.apply(version, actions)
    assert state.version == DeltaTable(tmp_path).version()


def test_large_commits_are_checked_quickly() -> None:
    adds = [add(f"part-{i}", partition_values={"p": "1"}) for i in range(100_000)]
    start = time.perf_counter()
    check_actions(adds, PLAIN, PARTITIONED, 1)
    assert time.perf_counter() - start < 1


UNUSED = Metadata(
    id="i",
    format=Format(provider="parquet"),
    schema_string='{"type":"struct","fields":[]}',
    partition_columns=[],
    configuration={},
)


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        (protocol(1, 2), "appendOnly", protocol(1, 2)),
        (protocol(1, 2), "checkConstraints", protocol(1, 3)),
        (
            protocol(1, 2),
            "changeDataFeed",
            protocol(1, 7, "appendOnly", "changeDataFeed", "invariants"),
        ),
        (
            protocol(1, 2),
            "deletionVectors",
            protocol(3, 7, "appendOnly", "deletionVectors", "invariants"),
        ),
        (
            protocol(1, 7, "appendOnly", "invariants"),
            "checkConstraints",
            protocol(1, 7, "appendOnly", "invariants", "checkConstraints"),
        ),
    ],
)
def test_added_feature_makes_the_weakest_protocol_that_is_not_weaker(
    before: Protocol, name: str, after: Protocol
) -> None:
    assert with_feature(before, name) == after


def test_feature_that_would_make_a_table_unwritable_is_not_added() -> None:
    for name, reason in (
        ("nonsense", "DELTA_UNSUPPORTED_FEATURES_IN_CONFIG"),
        ("icebergCompatV2", "can't write"),
        ("catalogManaged", "mirror.fence"),
    ):
        with pytest.raises(ProtocolError, match=reason):
            with_feature(protocol(1, 2), name)


def test_versions_are_raised_and_never_lowered() -> None:
    assert upgraded(protocol(1, 3), 1, 2) == protocol(1, 3)
    assert upgraded(protocol(1, 2), 2, 5) == protocol(2, 5)
    listed = upgraded(protocol(2, 5), 3, 7)
    assert supported_features(listed) == supported_features(protocol(2, 5))
    assert listed.reader_features == ["columnMapping"]
    for reader, writer in ((3, 6), (4, 7), (1, 8)):
        with pytest.raises(ProtocolError):
            upgraded(protocol(1, 2), reader, writer)


def test_unused_feature_is_dropped_and_another_one_is_not() -> None:
    def drop(before: Protocol, name: str, truncate: bool = False) -> Protocol:
        return without_feature(before, used, name, domains, truncate_history=truncate)

    used, domains = UNUSED, list[str]()
    assert drop(protocol(1, 3), "checkConstraints") == protocol(1, 2)
    legacy = ("appendOnly", "invariants", "inCommitTimestamp")
    assert drop(protocol(1, 7, *legacy), "inCommitTimestamp") == protocol(1, 2)
    rows = protocol(1, 7, "rowTracking", "domainMetadata")
    vectors = protocol(3, 7, "deletionVectors")
    for before, name, reason in (
        (protocol(1, 2), "nonsense", "DROP_UNSUPPORTED_CLIENT_FEATURE"),
        (protocol(1, 2), "domainMetadata", "DROP_FEATURE_NOT_PRESENT"),
        (vectors, "deletionVectors", "DROP_NONREMOVABLE_FEATURE"),
        (rows, "domainMetadata", "in use.*rowTracking"),
    ):
        with pytest.raises(ProtocolError, match=reason):
            drop(before, name)
    with pytest.raises(ProtocolError, match="HISTORY_TRUNCATION_NOT_ALLOWED"):
        drop(protocol(1, 3), "checkConstraints", truncate=True)
    used = msgspec.structs.replace(UNUSED, configuration={"delta.constraints.a": "x"})
    with pytest.raises(ProtocolError, match="in use"):
        drop(protocol(1, 3), "checkConstraints")
    used, domains = UNUSED, ["mine"]
    with pytest.raises(ProtocolError, match="in use"):
        drop(protocol(1, 7, "domainMetadata"), "domainMetadata")

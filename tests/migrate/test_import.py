"""Existing Delta tables become tables of the catalog, with all that their logs say."""

import os
import time
import uuid
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import delkalakedb as dk
from delkalakedb.errors import (
    CodecError,
    DeltaError,
    ProtocolError,
    TableExistsError,
    TableNotFoundError,
)
from delkalakedb.migrate.importer import import_table
from delkalakedb.model.actions import Cdc, CommitInfo, DomainMetadata, Txn
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from tests.support.actions import protocol as protocol_of
from tests.support.imports import assert_same_history, log_files
from tests.support.integrity import check_integrity
from tests.support.logs import (
    FORMS,
    LAST,
    PROTOCOL,
    VECTORS,
    add,
    drop_commits,
    lines_at,
    log_path,
    metadata,
    remove,
    rows,
    view,
    write_history,
    write_log,
)


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Store:
    return open_store(f"memory:///{request.node.name}")


def test_table_with_one_of_everything_reads_the_same_at_every_version(
    uri: str, catalog: dk.Catalog, location: Path
) -> None:
    write_history(str(location))
    before = log_files(location)

    done = dk.import_table(str(location), uri, deep=True)

    assert done.ok, done.report
    assert (done.first_version, done.version, done.versions) == (0, LAST, LAST + 1)
    assert_same_history(catalog, "t", open_store(str(location)), first=0)
    check_integrity(catalog)
    assert log_files(location) == before
    theirs = deltalake.DeltaTable(str(location))
    ours = dk.DeltaTable(uri)
    assert [h["operation"] for h in ours.history()] == [
        h["operation"] for h in theirs.history()
    ]
    assert ours.to_pyarrow_table().sort_by("id") == theirs.to_pyarrow_table().sort_by(
        "id"
    )


def test_first_commit_after_import_continues_the_same_log(
    uri: str, location: Path
) -> None:
    write_history(str(location))
    dk.import_table(str(location), uri)

    dk.write_deltalake(uri, rows(40), mode="append")
    dk.DeltaTable(uri).delete("id = 41")

    plain_table = deltalake.DeltaTable(str(location))
    assert plain_table.version() == LAST + 2
    assert plain_table.to_pyarrow_table().num_rows == 4 + 4 + 4 - 1
    report = dk.verify(uri, deep=True)
    assert isinstance(report, dk.mirror.verify.Report)
    assert report.ok, report


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("commit_kept", [True, False])
def test_log_that_starts_at_a_checkpoint_reads_the_same_from_there(
    catalog: dk.Catalog, location: Path, form: str, commit_kept: bool
) -> None:
    write_history(str(location))
    store = open_store(str(location))
    FORMS[form](store, 5, *lines_at(FileTxnLogReader(store), 5))
    drop_commits(store, range(5 if commit_kept else 6))

    done = import_table(store, catalog, table="t")

    assert done.ok, done.report
    assert (done.first_version, done.version) == (5, LAST)
    assert_same_history(catalog, "t", store, first=5)
    with pytest.raises(DeltaError, match="the catalog holds 5 to 9"):
        catalog.snapshot("t", 4)


def test_without_history_import_starts_at_the_newest_checkpoint(
    catalog: dk.Catalog, location: Path
) -> None:
    write_history(str(location))
    store = open_store(str(location))
    for version in (3, 7):
        FORMS["v1"](store, version, *lines_at(FileTxnLogReader(store), version))

    done = import_table(store, catalog, table="t", history=False)

    assert done.ok, done.report
    assert (done.first_version, done.version, done.versions) == (7, LAST, 3)
    assert_same_history(catalog, "t", store, first=7)


def test_gap_in_the_log_is_bridged_by_the_checkpoint_after_it(
    catalog: dk.Catalog, location: Path
) -> None:
    write_history(str(location))
    store = open_store(str(location))
    FORMS["v1"](store, 6, *lines_at(FileTxnLogReader(store), 6))
    drop_commits(store, [3])

    done = import_table(store, catalog, table="t")

    assert (done.first_version, done.version) == (6, LAST)
    assert_same_history(catalog, "t", store, first=6)


def test_gap_that_no_checkpoint_bridges_is_an_error_that_names_it(
    catalog: dk.Catalog, location: Path
) -> None:
    write_history(str(location))
    store = open_store(str(location))
    drop_commits(store, [3])

    with pytest.raises(DeltaError, match="version 3 is missing"):
        import_table(store, catalog, table="t")

    assert catalog.tables() == []


def test_what_few_writers_write_is_kept(catalog: dk.Catalog, memory: Store) -> None:
    features = protocol_of("domainMetadata", "deletionVectors", "rowTracking")
    first = [features, metadata(**{"delta.enableDeletionVectors": "true"})]
    odd = add("odd", stats='{"numRecords": 1.50}', tags={"k": None})
    with_vector = add("a", deletion_vector=VECTORS[0])
    write_log(
        memory,
        [
            CommitInfo({"operation": "X", "readVersion": "no", "userMetadata": "\0"}),
            *first,
            add("a", base_row_id=0, default_row_commit_version=0),
            add("b", stats=None),
        ],
        [remove("a"), with_vector, odd, Txn(app_id="x", version=7)],
        # No commitInfo, a tombstone of nothing, a path added anew, change data.
        [
            remove("never there", size=3, partition_values={}),
            add("b", stats='{"numRecords":2}'),
            Cdc(path="c", size=1, partition_values={}, data_change=False),
            DomainMetadata(domain="d", configuration="{}", removed=False),
        ],
        [
            remove("a", deletion_vector=VECTORS[0]),
            add("a", deletion_vector=VECTORS[1]),
            DomainMetadata(domain="d", configuration="", removed=True),
            Txn(app_id="x", version=3, last_updated=1),
        ],
        # Within one commit, what comes last counts.
        [add("late"), remove("late")],
    )

    done = import_table(memory, catalog, table="t")

    assert done.ok, done.report
    assert_same_history(catalog, "t", memory, first=0)
    assert odd in list(catalog.log("t").adds())


_PATHS = st.sampled_from(["a", "b", "c d", "é%"])
_VECTORS = st.sampled_from([{}, {"deletion_vector": VECTORS[0]}])
_ACTIONS = st.one_of(
    st.builds(lambda p, v: add(p, **v), _PATHS, _VECTORS),
    st.builds(lambda p, v: remove(p, **v), _PATHS, _VECTORS),
    st.builds(lambda n: Txn(app_id=f"app{n % 2}", version=n), st.integers(0, 9)),
    st.builds(
        lambda n, gone: DomainMetadata(
            domain=f"d{n}", configuration=str(n), removed=gone
        ),
        st.integers(0, 1),
        st.booleans(),
    ),
    st.builds(
        lambda n: metadata(**{"delta.enableDeletionVectors": "true", "note": str(n)}),
        st.integers(0, 3),
    ),
)


def _key(action: object) -> tuple[object, ...]:
    named = [getattr(action, name, None) for name in ("path", "app_id", "domain")]
    return (type(action).__name__ if not named[0] else "file", *named)


_COMMITS = st.lists(
    st.lists(_ACTIONS, max_size=5, unique_by=_key), min_size=1, max_size=8
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(commits=_COMMITS, checkpoint=st.integers(0, 8), cut=st.booleans())
def test_any_history_reads_as_the_log_replays_at_every_version(
    catalog: dk.Catalog, commits: list[list[object]], checkpoint: int, cut: bool
) -> None:
    name = f"t{len(catalog.tables())}"
    store = open_store(f"memory:///{uuid.uuid4()}")
    configuration = {"delta.enableDeletionVectors": "true"}
    protocol = protocol_of("domainMetadata", "deletionVectors")
    write_log(store, [protocol, metadata(**configuration)], *commits)
    first = 0
    if cut and checkpoint <= len(commits):
        lines = lines_at(FileTxnLogReader(store), checkpoint)
        FORMS["v2 json inline"](store, checkpoint, *lines)
        drop_commits(store, range(checkpoint))
        first = checkpoint

    done = import_table(store, catalog, table=name)

    assert done.ok, done.report
    assert done.first_version == first
    assert_same_history(catalog, name, store, first)


def test_second_import_finds_nothing_to_do(uri: str, location: Path) -> None:
    write_history(str(location))
    first = dk.import_table(str(location), uri)

    again = dk.import_table(str(location), uri)

    assert (again.version, again.versions, again.ok) == (first.version, 0, True)


def test_second_import_catches_up_with_what_others_wrote(
    uri: str, catalog: dk.Catalog, location: Path
) -> None:
    write_history(str(location))
    dk.import_table(str(location), uri)
    deltalake.write_deltalake(str(location), rows(50), mode="append")
    deltalake.DeltaTable(str(location)).delete("id = 50")

    again = dk.import_table(str(location), uri)

    assert (again.version, again.versions, again.adopted) == (LAST + 2, 2, 2)
    assert again.ok
    assert_same_history(catalog, "t", open_store(str(location)), first=0)


def test_indexed_bounds_of_an_imported_table_find_its_files(
    catalog: dk.Catalog, location: Path
) -> None:
    for start in (0, 100, 200):
        table = pa.table({"id": range(start, start + 10)})
        deltalake.write_deltalake(str(location), table, mode="append")
    deltalake.DeltaTable(str(location)).delete("id >= 200")

    import_table(open_store(str(location)), catalog, table="t")

    def found(where: str, version: int | None = None) -> int:
        return catalog.snapshot("t", version).files(where).read_all().num_rows

    assert (found("id = 105"), found("id < 50"), found("id > 150")) == (1, 1, 0)
    assert (found("id > 150", 2), found("id > 150", 1)) == (1, 0)
    head = catalog.log("t").head()
    assert [c.physical for c in head.stat_columns if c.classes] == [("id",)]


def test_progress_is_told_and_ends_with_the_whole_table(
    catalog: dk.Catalog, location: Path
) -> None:
    write_history(str(location))
    told: list[dk.Progress] = []

    done = import_table(
        open_store(str(location)), catalog, table="t", progress=told.append
    )

    *_, last = (each for each in told if isinstance(each, dk.ImportProgress))
    assert last == dk.ImportProgress(
        what="import t",
        done=LAST + 1,
        total=LAST + 1,
        unit="versions",
        version=LAST,
        latest_version=LAST,
        num_files=done.num_files,
    )
    assert told[-1].what == "verify t"


def test_feature_that_cannot_be_read_is_refused_by_name(
    catalog: dk.Catalog, memory: Store
) -> None:
    unreadable = protocol_of("adaptiveMetadata-preview")
    write_log(memory, [PROTOCOL, metadata(), add("a")], [unreadable])

    with pytest.raises(ProtocolError, match=r"t can't be imported.*adaptiveMetadata"):
        import_table(memory, catalog, table="t")

    assert catalog.tables() == []
    _assert_empty(catalog)


def test_broken_commit_is_named_and_leaves_nothing(
    catalog: dk.Catalog, memory: Store
) -> None:
    write_log(memory, [PROTOCOL, metadata(), add("a")])
    memory.put(log_path(1, "json"), b'{"add": 1}\n')

    with pytest.raises(CodecError, match=r"00000000000000000001\.json"):
        import_table(memory, catalog, table="t")

    _assert_empty(catalog)


def test_folder_without_a_log_is_no_table(catalog: dk.Catalog, tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="there is no Delta log"):
        import_table(open_store(str(tmp_path)), catalog, table="t")


def test_name_or_location_that_is_taken_is_refused(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        deltalake.write_deltalake(str(tmp_path / name), rows(0))
    import_table(open_store(str(tmp_path / "one")), catalog, table="t")

    with pytest.raises(TableExistsError, match="of this name at another location"):
        import_table(open_store(str(tmp_path / "two")), catalog, table="t")
    with pytest.raises(
        TableExistsError, match=r"location file:.*one is already used by table t"
    ):
        import_table(open_store(str(tmp_path / "one")), catalog, table="other")


def test_lost_catalog_is_rebuilt_from_its_logs(
    uri: str, catalog: dk.Catalog, tmp_path: Path
) -> None:
    dk.write_deltalake(uri, rows(0))
    dk.write_deltalake(uri, rows(4), mode="append")
    dk.DeltaTable(uri).update({"id": "id + 1"}, predicate="id > 3")
    dk.mirror.fence(uri)
    dk.write_deltalake(uri, rows(8), mode="append")
    location = dk.DeltaTable(uri).table_uri
    lost = catalog.log("t")

    rebuilt = f"deltasql://sqlite/{tmp_path}/rebuilt.db?table=t"
    done = dk.import_table(location, rebuilt, deep=True)

    assert done.ok, done.report
    with dk.connect(rebuilt) as other:
        for version in range(done.version + 1):
            assert view(other.log("t"), version) == view(lost, version)
            assert other.log("t").commit(version) == lost.commit(version)
    dk.write_deltalake(rebuilt, rows(12), mode="append")
    assert dk.DeltaTable(rebuilt).version() == done.version + 1


def test_table_of_another_catalog_that_is_behind_is_refused(
    catalog: dk.Catalog, memory: Store
) -> None:
    stamped = {"delta.enableInCommitTimestamps": "true"}
    info = CommitInfo({"inCommitTimestamp": 5})
    protocol = protocol_of("catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck")
    write_log(memory, [info, protocol, metadata(**stamped)])
    staged = "_delta_log/_staged_commits/00000000000000000001.0a.json"
    memory.put(staged, b"{}\n")

    with pytest.raises(ProtocolError, match="another catalog manages the table"):
        import_table(memory, catalog, table="t")


def _assert_empty(catalog: dk.Catalog) -> None:
    tables = ("dl_tables", "dl_table_versions", "dl_files", "dl_metadata", "dl_txns")
    with catalog._backend.reading() as session:
        for table in tables:
            assert session.query_sql(f"SELECT * FROM {table}", {}) == []


def test_times_of_a_copied_log_do_not_hide_in_commit_timestamps(
    uri: str, catalog: dk.Catalog, tmp_path: Path
) -> None:
    """Its files are newer than its commits say."""
    source = f"deltasql://sqlite/{tmp_path}/source.db?table=t&location={tmp_path}/t"
    dk.write_deltalake(source, rows(0))
    dk.write_deltalake(source, rows(4), mode="append")
    stamped = {"delta.enableInCommitTimestamps": "true"}
    dk.DeltaTable(source).alter.set_table_properties(stamped)
    dk.write_deltalake(source, rows(8), mode="append")
    later = time.time() + 3600
    for entry in (tmp_path / "t" / "_delta_log").iterdir():
        os.utime(entry, (later, later))
    name = dk.import_table(str(tmp_path / "t"), uri).table
    reference = FileTxnLogReader(open_store(str(tmp_path / "t")))

    for seconds in (time.time(), later, later + 1):
        timestamp_ms = int(seconds * 1000)
        found = catalog.snapshot(name, timestamp_ms=timestamp_ms).version
        assert found == reference.version_at(timestamp_ms) == 3

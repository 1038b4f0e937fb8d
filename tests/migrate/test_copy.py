"""Tables go from one catalog to another with all that the first one knew of them."""

import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import deltalake
import pytest

import delkalakedb as dk
from delkalakedb.catalog.load import copies
from delkalakedb.catalog.load.copies import PARTS
from delkalakedb.errors import (
    CatalogError,
    MirrorError,
    ReadOnlyError,
    TableNotFoundError,
)
from delkalakedb.migrate import copier as copying
from delkalakedb.model.actions import Cdc, DomainMetadata
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.storage import open_store
from tests.support.actions import protocol as protocol_of
from tests.support.imports import with_table
from tests.support.integrity import check_integrity
from tests.support.logs import (
    LAST,
    VECTORS,
    add,
    metadata,
    remove,
    rows,
    view,
    write_history,
    write_log,
)
from tests.support.processes import program

POINTS = ("held", "begun", "row", "rows", "compared", "shown", "let go")
ENGINES = ("sqlite", "duckdb", "postgres")
NOT_COPIED = {
    "dl_events",
    "dl_mirrors",
    "dl_reconcilers",
    "dl_schema_versions",
    "dl_table_ids",
    "dl_tables",
}


Place = Callable[[str, str], str]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The URI of a catalog of an engine that isn't there yet, by its name."""

    def uri(engine: str, name: str) -> str:
        if engine == "postgres":
            server = parse_uri(request.getfixturevalue("postgres_uri"))
            return format_uri(replace(server, schema=name))
        return f"deltasql://{engine}/{tmp_path}/{name}.{engine}"

    return uri


@pytest.fixture
def sqlite_target(tmp_path: Path) -> str:
    return f"deltasql://sqlite/{tmp_path}/other.db"


@pytest.fixture
def sqlite_source(tmp_path: Path) -> str:
    """A catalog with two tables, `t` and `odd`, which have one of everything."""
    uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    fill(uri, tmp_path)
    return uri


def fill(uri: str, folder: Path) -> None:
    write_odd(folder / "odd")
    dk.import_table(str(folder / "odd"), with_table(uri, "odd"))
    location = str(folder / "a table")
    write_history(location)
    dk.import_table(location, with_table(uri, "t"))
    dk.write_deltalake(with_table(uri, "t"), rows(40), mode="append")
    dk.DeltaTable(with_table(uri, "t")).delete("id = 41")


def write_odd(folder: Path) -> None:
    """Two versions, with what deltalake doesn't write."""
    vector = {"delta.enableDeletionVectors": "true"}
    write_log(
        open_store(str(folder)),
        [
            protocol_of("deletionVectors", "domainMetadata", "changeDataFeed"),
            metadata(**vector),
            add("a", stats='{"numRecords":2}', tags={"k": "v"}),
            DomainMetadata(domain="d", configuration="{}", removed=False),
        ],
        [
            remove("a"),
            add("a", deletion_vector=VECTORS[0]),
            remove("never there", size=3, partition_values={}),
            Cdc(path="c", size=1, partition_values={}, data_change=False),
        ],
    )


def known(catalog: dk.Catalog, name: str) -> dict[str, Any]:
    """All that a catalog says of a table."""
    log = catalog.log(name)
    head = log.head()
    versions = range(head.first_version, head.version + 1)
    history = [commit.to_dict() for commit in catalog.snapshot(name).history()]
    snapshot = catalog.snapshot(name)
    found = {
        where: sorted(snapshot.files(where).read_all()["path"].to_pylist())
        for where in ("id = 31", "id >= 40", "id < 0")
        if name == "t"
    }
    return {
        "states": [view(log, version) for version in versions],
        "commits": [log.commit(version) for version in versions],
        "history": history,
        "found": found,
        "mirror": catalog._mirror_state(name),
        "table": catalog.table(name),
    }


def pairs() -> list[Any]:
    """From each engine and to each engine; every pair takes longer."""
    short = {("sqlite", "postgres"), ("postgres", "duckdb"), ("duckdb", "sqlite")}
    return [
        pytest.param(*pair, marks=() if pair in short else pytest.mark.soak)
        for pair in product(ENGINES, ENGINES)
    ]


@pytest.mark.parametrize(("before", "after"), pairs())
def test_every_version_is_the_same_in_the_other_catalog(
    place: Place,
    before: str,
    after: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copies, "_BATCH_ROWS", 3)
    source_uri, target_uri = place(before, "ours"), place(after, "theirs")
    fill(f"{source_uri}?data_path={tmp_path}/tables", tmp_path)
    with dk.connect(source_uri) as source:
        expected = {name: known(source, name) for name in ("odd", "t")}

    done = dk.copy_catalog(source_uri, target_uri)

    assert [(c.table, c.state) for c in done] == [("odd", "copied"), ("t", "copied")]
    with dk.connect(target_uri) as target:
        assert {name: known(target, name) for name in ("odd", "t")} == expected
        check_integrity(target)
    dk.write_deltalake(with_table(target_uri, "t"), rows(60), mode="append")
    report = dk.verify(with_table(target_uri, "t"), deep=True)
    assert isinstance(report, dk.mirror.verify.Report)
    assert report.ok, report
    assert deltalake.DeltaTable(str(tmp_path / "a table")).version() == LAST + 3


def test_source_is_read_only_after_the_copy(
    sqlite_source: str, sqlite_target: str
) -> None:
    uri = with_table(sqlite_source, "t")
    dk.copy_catalog(sqlite_source, sqlite_target)

    with pytest.raises(ReadOnlyError, match=r"moved to deltasql://sqlite/.* there$"):
        dk.write_deltalake(uri, rows(60), mode="append")
    assert dk.DeltaTable(uri).version() == LAST + 2
    (odd, t) = dk.mirror.status(sqlite_source)
    assert (odd.state, t.state) == ("held", "held")

    # It follows the log that the other catalog writes now.
    dk.write_deltalake(with_table(sqlite_target, "t"), rows(60), mode="append")
    assert dk.mirror.run(sqlite_source, once=True)[1].state == "held"
    assert dk.sync(uri).version == LAST + 3


def test_moved_table_is_forgotten_by_the_source(
    sqlite_source: str, sqlite_target: str
) -> None:
    dk.copy_catalog(sqlite_source, sqlite_target, ["t"], move=True)

    with dk.connect(sqlite_source) as source:
        assert [table.name for table in source.tables()] == ["odd"]
    with pytest.raises(TableNotFoundError):
        dk.DeltaTable(with_table(sqlite_source, "t"))


def test_copy_again_finds_that_all_is_there(
    sqlite_source: str, sqlite_target: str
) -> None:
    dk.copy_catalog(sqlite_source, sqlite_target)

    done = dk.copy_catalog(sqlite_source, sqlite_target)

    assert [(c.state, c.rows) for c in done] == [("already there", 0)] * 2


def test_versions_that_wait_are_published_by_the_other_catalog(
    sqlite_target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"deltasql://sqlite/{tmp_path}/meta.db"
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "external")
    dk.write_deltalake(with_table(source, "t"), rows(0))

    dk.copy_catalog(source, sqlite_target)
    dk.mirror.run(source, once=True)
    assert dk.mirror.status(source)[0].published_version == -1
    (status,) = dk.mirror.run(sqlite_target, once=True)

    assert (status.published_version, status.state) == (0, "published")


def test_dry_run_counts_and_changes_nothing(
    sqlite_source: str, sqlite_target: str, tmp_path: Path
) -> None:
    counted = dk.copy_catalog(sqlite_source, sqlite_target, dry_run=True)

    assert [c.state for c in counted] == ["would copy"] * 2
    assert not (tmp_path / "other.db").exists()
    done = dk.copy_catalog(sqlite_source, sqlite_target)
    assert [c.rows for c in counted] == [c.rows for c in done]


# ---- what is refused


def test_catalog_is_not_copied_to_itself(sqlite_source: str) -> None:
    with pytest.raises(CatalogError, match="to itself"):
        dk.copy_catalog(sqlite_source, sqlite_source)


def test_moved_table_goes_to_no_third_catalog(
    sqlite_source: str, sqlite_target: str, tmp_path: Path
) -> None:
    dk.copy_catalog(sqlite_source, sqlite_target)

    with pytest.raises(ReadOnlyError, match="isn't copied: it is moved to"):
        dk.copy_catalog(sqlite_source, f"deltasql://sqlite/{tmp_path}/third.db")


def test_location_that_the_other_catalog_has_is_refused(
    sqlite_source: str, sqlite_target: str, tmp_path: Path
) -> None:
    dk.import_table(str(tmp_path / "a table"), with_table(sqlite_target, "mine"))

    with pytest.raises(MirrorError, match="has a table mine at its location"):
        dk.copy_catalog(sqlite_source, sqlite_target, ["t"])
    dk.write_deltalake(with_table(sqlite_source, "t"), rows(60), mode="append")


def test_copy_that_fails_lets_go_of_the_table(
    sqlite_source: str, sqlite_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(copying, "find_difference", lambda *_: "dl_files")
        with pytest.raises(CatalogError, match="dl_files differs"):
            dk.copy_catalog(sqlite_source, sqlite_target, ["t"])

    dk.write_deltalake(with_table(sqlite_source, "t"), rows(60), mode="append")
    with dk.connect(sqlite_target) as target, pytest.raises(TableNotFoundError):
        target.table("t")
    assert dk.copy_catalog(sqlite_source, sqlite_target, ["t"])[0].version == LAST + 3


def test_rows_that_are_lost_on_the_way_are_missed(
    sqlite_source: str, sqlite_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = copying.inserts
    for part in PARTS:

        def without_one(
            kind: copies.CatalogTable, batch: Any, lost: str = part.table
        ) -> Any:
            fewer = batch.slice(1) if kind.table == lost else batch
            return given(kind, fewer) if fewer.num_rows else []

        monkeypatch.setattr(copying, "inserts", without_one)
        table = "odd" if part.table in ("dl_domains", "dl_cdc_files") else "t"
        with pytest.raises(CatalogError, match=f"{part.table} differs"):
            dk.copy_catalog(sqlite_source, sqlite_target, [table])


# ---- cut short


@pytest.mark.parametrize(
    "after",
    [
        "sqlite",
        pytest.param("duckdb", marks=pytest.mark.soak),
        pytest.param("postgres", marks=pytest.mark.soak),
    ],
)
def test_copy_that_is_killed_again_and_again_ends_whole(
    sqlite_source: str, place: Place, after: str
) -> None:
    target_uri = place(after, "theirs")
    with dk.connect(sqlite_source) as source:
        expected = known(source, "t")
    for point in POINTS:
        command = program("copy_worker", sqlite_source, target_uri, "t", point)
        killed = subprocess.run(command, check=False, timeout=120)
        assert killed.returncode == -signal.SIGKILL, point
        with dk.connect(target_uri) as target:
            # The first one dies before anything is written there.
            assert target.init() == (point == "held")
            there = point in ("shown", "let go")
            assert [t.name for t in target.tables()] == ["t"] * there
        with pytest.raises(ReadOnlyError):
            dk.write_deltalake(with_table(sqlite_source, "t"), rows(60), mode="append")

    dk.copy_catalog(sqlite_source, target_uri, ["t"], move=True)

    with dk.connect(target_uri) as target:
        assert known(target, "t") == expected
        check_integrity(target)
    with dk.connect(sqlite_source) as source:
        assert [t.name for t in source.tables()] == ["odd"]


def test_copy_that_was_given_up_can_be_taken_back(
    sqlite_source: str, sqlite_target: str
) -> None:
    command = program("copy_worker", sqlite_source, sqlite_target, "t", "row")
    subprocess.run(command, check=False, timeout=120)
    uri = with_table(sqlite_source, "t")

    assert dk.cut_over(uri).hold is None
    dk.write_deltalake(uri, rows(60), mode="append")

    assert dk.copy_catalog(sqlite_source, sqlite_target, ["t"])[0].version == LAST + 3


# ---- nothing is forgotten


def test_parts_name_every_column_there_is(catalog: dk.Catalog, engine: str) -> None:
    asked = {
        "sqlite": "SELECT m.name, c.name FROM sqlite_master m "
        "JOIN pragma_table_info(m.name) c WHERE m.type = 'table'",
        "duckdb": "SELECT table_name, column_name FROM duckdb_columns() "
        "WHERE NOT internal",
        "postgres": "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = 'public'",
    }
    with catalog._backend.reading() as session:
        found = set(session.query_sql(asked[engine], {}))

    copied = {(part.table, name) for part in PARTS for name in part.schema.names}
    assert {row for row in found if row[0] not in NOT_COPIED} == copied

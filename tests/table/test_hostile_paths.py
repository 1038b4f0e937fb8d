"""Hostile logs: nothing outside the location is read, made or deleted."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delkalakedb as dk
from delkalakedb.deltalake.create import convert_folder
from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.mirror.verify import Report
from delkalakedb.model.actions import Remove
from delkalakedb.storage import open_store
from tests.support.actions import DV, attempt, schema
from tests.support.cli import Cli
from tests.support.hostile_tables import (
    ABSOLUTE,
    FEATURE,
    IMPOSSIBLE,
    INSIDE,
    LEAVING,
    OUTSIDE,
    HostileTable,
    aged,
    hostile_actions,
    tombstone,
    tree,
)
from tests.support.s3_tables import sqlite
from tests.support.servers.stores import Place

ANY_AGE: dict[str, Any] = {"retention_hours": 0, "enforce_retention_duration": False}
ALL = {**ANY_AGE, "dry_run": False, "full": True}


@pytest.fixture
def table(tmp_path: Path) -> HostileTable:
    """A table without files in `lake/t`."""
    return HostileTable(tmp_path / "lake" / "t")


@pytest.fixture
def lax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catalogs as they came to be before paths were checked at the door."""
    for door in ("migrate.loader", "catalog.load.adoption"):
        monkeypatch.setattr(f"delkalakedb.{door}.check_inside", lambda *a, **k: None)


def uri_of(catalog_uri: str) -> str:
    return f"{catalog_uri}{'&' if '?' in catalog_uri else '?'}table=t"


def queried(catalog_uri: str) -> list[int]:
    """What `deltasql query` reads."""
    found = Cli(catalog_uri).json("query", "SELECT x FROM t ORDER BY x")
    return [row["x"] for row in found]


def scanned(table: dk.DeltaTable) -> list[int]:
    """What delta-rs reads for us."""
    found = dk.QueryBuilder().register("t", table).execute("SELECT x FROM t ORDER BY x")
    return [row["x"] for row in pa.table(found.read_all()).to_pylist()]


def test_each_spelling_is_read_rewritten_and_never_vacuumed(
    table: HostileTable, catalog_uri: str
) -> None:
    table.begin()
    table.commit(*table.spelt(INSIDE))
    rows = [*range(len(INSIDE))]
    plain = deltalake.DeltaTable(table.folder)
    live = pa.table(plain.get_add_actions())["path"].to_pylist()
    assert len(live) == len(INSIDE)
    orphan = table.data(99, name="s/orphan.parquet")
    assert dk.import_table(str(table.folder), uri_of(catalog_uri), deep=True).ok

    ours = dk.DeltaTable(uri_of(catalog_uri))
    assert queried(catalog_uri) == scanned(ours) == rows
    assert ours.to_pyarrow_table().num_rows == len(rows)
    assert all(Path(path).is_file() for path in ours.file_uris())

    assert ours.vacuum(**ALL) == ["s/orphan.parquet"]
    assert not orphan.exists()
    assert queried(catalog_uri) == rows

    before = {path for path in tree(table.folder.parent) if not path.startswith("t/")}
    ours = dk.DeltaTable(uri_of(catalog_uri))
    assert ours.delete("x = 3")["num_deleted_rows"] == 1
    assert ours.update({"x": "x + 100"}, predicate="x > 7")["num_updated_rows"] == 4
    rows = [x + 100 * (x > 7) for x in rows if x != 3]
    assert queried(catalog_uri) == scanned(ours) == sorted(rows)
    ours.optimize.compact()
    ours.vacuum(**ALL)
    assert queried(catalog_uri) == sorted(rows)
    assert pa.table(deltalake.DeltaTable(table.folder).to_pyarrow_table()).num_rows
    assert len([*table.folder.rglob("*.parquet")]) == len(ours.file_uris()) == 1
    assert {
        path for path in tree(table.folder.parent) if not path.startswith("t/")
    } == before
    assert dk.verify(uri_of(catalog_uri), deep=True).ok


def test_tombstone_of_a_live_file_under_another_name_deletes_nothing(
    table: HostileTable, catalog_uri: str
) -> None:
    table.begin()
    adds = [*table.spelt(INSIDE)]
    table.commit(*adds)
    names = [Path(path).name for path in sorted(table.folder.glob("*.parquet"))]
    spellings = [spell(table.folder, n) for n in names for spell in INSIDE.values()]
    given = {add.path for add in adds}
    table.commit(*(tombstone(path) for path in spellings if path not in given))
    dk.import_table(str(table.folder), uri_of(catalog_uri))
    ours = dk.DeltaTable(uri_of(catalog_uri))

    for full in (False, True):
        assert ours.vacuum(dry_run=False, full=full, **ANY_AGE) == []
    assert queried(catalog_uri) == [*range(len(INSIDE))]


def test_vectors_by_any_path_are_heeded_and_kept(
    table: HostileTable, catalog_uri: str
) -> None:
    table.begin(FEATURE, **{DV: "true"})
    kinds = ("plain", "absolute", "file with three slashes", "dot")
    for number, kind in enumerate(kinds):
        path, where = table.data(number, 2), table.folder / f"v{number}.bin"
        spelling = INSIDE[kind](table.folder, where.name)
        vector = table.vector(where, f"file://{where}")
        vector = msgspec.structs.replace(vector, path_or_inline_dv=spelling)
        table.commit(table.add(path.name, path, deletion_vector=vector))
    dk.import_table(str(table.folder), uri_of(catalog_uri))
    ours = dk.DeltaTable(uri_of(catalog_uri))
    assert queried(catalog_uri) == scanned(ours) == [0, 1, 2, 3]

    assert ours.vacuum(**ALL) == []
    ours.update({"x": "x + 10"}, predicate="x > 1")
    assert queried(catalog_uri) == [0, 1, 12, 13]
    ours.optimize.compact()
    ours.vacuum(**ALL)

    assert queried(catalog_uri) == [0, 1, 12, 13]
    assert not [*table.folder.glob("v*.bin")]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[HostileTable]:
    """Tables without files, each in a folder of its own."""
    return (HostileTable(tmp_path / f"lake{n}" / "t") for n in range(1000))


def test_import_and_adopt_refuse_what_leaves_the_location(
    places: Iterator[HostileTable], catalog: dk.Catalog, catalog_uri: str
) -> None:
    good = next(places)
    good.begin(FEATURE, **{DV: "true"})
    dk.import_table(str(good.folder), uri_of(catalog_uri))
    for n, (name, spell) in enumerate(OUTSIDE.items()):
        path = spell(good.folder, "victim.parquet")
        # Each kind of action somewhere, each path as an add.
        actions = hostile_actions(path)
        kind = [*actions][n % len(actions)]
        for action in {"add": actions["add"], kind: actions[kind]}.values():
            good.commit(action)
            match = r"version 1 .* can't be adopted: .*isn't a file below"
            with pytest.raises(ProtocolError, match=match):
                dk.mirror.adopt(uri_of(catalog_uri))
            # An absolute path is what a clone has: who commits one has to mean it.
            if not isinstance(action, Remove) and name.startswith("relative"):
                with pytest.raises(ProtocolError, match=r"t: .*isn't a file below"):
                    attempt(catalog, action)
            (good.folder / "_delta_log" / f"{1:020}.json").unlink()
            good.version = 0
        bad = next(places)
        bad.begin(FEATURE, **{DV: "true"})
        bad.commit(actions[kind])
        other = uri_of(catalog_uri).replace("table=t", "table=bad")
        with pytest.raises(ProtocolError, match=r"bad can't be imported: .*isn't a"):
            dk.import_table(str(bad.folder), other)
        if name.startswith("relative"):
            with pytest.raises(ProtocolError, match="tampered"):
                dk.import_table(str(bad.folder), other, outside_files=True)
    assert [found.name for found in catalog.tables()] == ["t"]


NO_FILES = {
    "%FF.parquet": "isn't valid UTF-8",
    "a%00b.parquet": "not a file below",
    "../t": "not a file below",
    "": "not a file below",
}


@pytest.mark.parametrize("path", NO_FILES)
def test_add_that_can_be_no_file_is_refused_at_each_door(
    places: Iterator[HostileTable], catalog: dk.Catalog, catalog_uri: str, path: str
) -> None:
    good, bad = next(places), next(places)
    good.begin()
    dk.import_table(str(good.folder), uri_of(catalog_uri))
    action = hostile_actions(path)["add"]
    other = uri_of(catalog_uri).replace("table=t", "table=bad")

    with pytest.raises(ProtocolError, match=f"t: add .*{NO_FILES[path]}"):
        attempt(catalog, action)
    good.commit(action)
    with pytest.raises(ProtocolError, match=f"can't be adopted: .*{NO_FILES[path]}"):
        dk.mirror.adopt(uri_of(catalog_uri))
    bad.begin()
    bad.commit(action)
    with pytest.raises(ProtocolError, match=f"can't be imported: .*{NO_FILES[path]}"):
        dk.import_table(str(bad.folder), other)
    assert [found.name for found in catalog.tables()] == ["t"]


def test_import_of_a_checkpoint_refuses_what_leaves_the_location(
    table: HostileTable, catalog_uri: str
) -> None:
    table.begin()
    table.commit(*table.spelt(INSIDE))
    table.commit(hostile_actions("../victim.parquet")["add"])
    deltalake.DeltaTable(table.folder).create_checkpoint()

    with pytest.raises(ProtocolError, match=r"add \.\./victim.parquet"):
        dk.import_table(str(table.folder), uri_of(catalog_uri), history=False)


def test_path_that_leaves_an_older_catalog_is_neither_read_nor_deleted(
    lax: None, places: Iterator[HostileTable], catalog_uri: str, catalog: dk.Catalog
) -> None:
    cli = Cli(catalog_uri)
    for spell in LEAVING.values():
        table = next(places)
        table.begin()
        kept = table.data(1, name="kept.parquet")
        table.commit(table.add("kept.parquet", kept))
        victim = table.folder.parent / "victim.parquet"
        pq.write_table(pa.table({"x": [666]}), victim)
        path = spell(table.folder, victim.name)
        table.commit(table.add(path, victim))
        dk.import_table(str(table.folder), uri_of(catalog_uri))
        before = {n: v for n, v in tree(table.folder.parent).items() if n[:2] != "t/"}
        ours = dk.DeltaTable(uri_of(catalog_uri))

        for words in (("query", "SELECT * FROM t"), ("head", "t")):
            assert "lead to a file below" in cli(*words, code=5).stderr
        with pytest.raises(DeltaError, match="lead to a file below"):
            ours.file_uris()
        with pytest.raises(DeltaError, match="lead to a file below"):
            ours.to_pyarrow_table()
        with pytest.raises(DeltaError, match="lead to a file below"):
            scanned(ours)
        with pytest.raises(DeltaError, match="outside"):
            ours.delete("x > 0")
        assert ours.vacuum(**ALL) == []
        ours = dk.DeltaTable(uri_of(catalog_uri))
        ours.restore(1)
        assert queried(catalog_uri) == [1]
        assert ours.vacuum(**ALL) == []
        assert {
            n: v for n, v in tree(table.folder.parent).items() if n[:2] != "t/"
        } == before
        catalog.drop_table("t", with_data=True)
        assert tree(table.folder.parent) == {"victim.parquet": before[victim.name]}


def test_tombstones_that_name_no_file_do_not_stop_vacuum(
    lax: None,
    table: HostileTable,
    catalog_uri: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    victim = tmp_path / "lake" / "victim.parquet"
    victim.write_bytes(b"x")
    table.begin()
    table.commit(table.add("kept.parquet", table.data(1, name="kept.parquet")))
    gone = table.data(2, name="gone.parquet")
    outside = [spell(table.folder, victim.name) for spell in OUTSIDE.values()]
    table.commit(*map(tombstone, [*outside, *IMPOSSIBLE, "gone.parquet"]))
    dk.import_table(str(table.folder), uri_of(catalog_uri))

    with caplog.at_level(logging.WARNING, "delkalakedb.vacuum"):
        deleted = dk.DeltaTable(uri_of(catalog_uri)).vacuum(dry_run=False, **ANY_AGE)

    assert "gone.parquet" in deleted
    assert not gone.exists()
    assert victim.exists()
    assert queried(catalog_uri) == [1]
    told = [record.getMessage() for record in caplog.records]
    assert any("nothing outside of it is ever deleted" in text for text in told)


def test_clone_is_taken_when_asked_and_its_files_are_never_deleted(
    places: Iterator[HostileTable], catalog_uri: str, catalog: dk.Catalog
) -> None:
    cli = Cli(catalog_uri)
    source = next(places)
    source.begin()
    outside = [source.data(n) for n in range(len(ABSOLUTE))]
    before = tree(source.folder)
    clone = next(places)
    clone.begin()
    names = (
        f"{s(source.folder / 'x', p.name)}"
        for s, p in zip(ABSOLUTE.values(), outside, strict=True)
    )
    adds = [clone.add(name, path) for name, path in zip(names, outside, strict=True)]
    clone.commit(clone.add("own.parquet", clone.data(9, name="own.parquet")), *adds)
    words = ("import", str(clone.folder), "--name", "t")
    assert "--outside-files" in cli(*words, code=5).stderr

    assert cli.json(*words, "--outside-files")[0]["state"] == "imported"

    ours = dk.DeltaTable(uri_of(catalog_uri))
    rows = [*range(len(ABSOLUTE)), 9]
    assert queried(catalog_uri) == scanned(ours) == rows
    assert sorted(ours.file_uris())[:-1] != []
    assert all(Path(path).is_file() for path in ours.file_uris())
    with pytest.raises(DeltaError, match="lies outside"):
        ours.delete("x = 1")
    clone.commit(tombstone(adds[0].path))
    assert dk.mirror.adopt(uri_of(catalog_uri)) == (2,)
    assert queried(catalog_uri) == rows[1:]
    ours = dk.DeltaTable(uri_of(catalog_uri))
    ours.restore(1)
    assert queried(catalog_uri) == rows
    dk.write_deltalake(ours, pa.table({"x": [5]}), mode="overwrite")
    assert ours.vacuum(**ALL) == ["own.parquet"]
    assert tree(source.folder) == before
    catalog.drop_table("t", with_data=True)
    assert tree(source.folder) == before
    assert not clone.folder.exists()


def test_location_by_a_link_keeps_files_that_the_log_names_by_its_target(
    table: HostileTable, catalog_uri: str, tmp_path: Path
) -> None:
    table.begin()
    paths = [table.data(n) for n in range(2)]
    table.commit(*(table.add(f"file://{path}", path) for path in paths))
    link = tmp_path / "link"
    link.symlink_to(table.folder.parent, target_is_directory=True)
    uri = uri_of(catalog_uri)
    with pytest.raises(ProtocolError, match="--outside-files"):
        dk.import_table(str(link / "t"), uri)
    dk.import_table(str(link / "t"), uri, outside_files=True)
    orphan = table.data(7)

    assert dk.DeltaTable(uri).vacuum(**ALL) == [orphan.name]
    assert queried(catalog_uri) == [0, 1]


@pytest.fixture
def linked(table: HostileTable, tmp_path: Path) -> Path:
    """A folder full of what others need, to which links in the table lead."""
    others = tmp_path / "others"
    HostileTable(others / "theirs").data(5, name="theirs.parquet")
    aged(others / "theirs" / "theirs.parquet")
    (others / "note.parquet").write_bytes(b"note")
    table.begin()
    table.commit(table.add("kept.parquet", table.data(1, name="kept.parquet")))
    aged_link(table.folder / "folder", others)
    aged_link(table.folder / "s" / "deep", others / "theirs")
    aged_link(table.folder / "file.parquet", others / "note.parquet")
    aged_link(table.folder / "dangling.parquet", others / "nothing")
    aged_link(table.folder / "circle", table.folder)
    table.data(8, name="s/orphan.parquet")
    return others


def aged_link(link: Path, target: Path) -> None:
    link.symlink_to(target)
    aged(link)


def test_full_vacuum_leaves_links_and_what_is_behind_them(
    linked: Path, table: HostileTable, catalog_uri: str
) -> None:
    paths = ("folder/note.parquet", "s/deep/theirs.parquet", "circle/kept.parquet")
    table.commit(*map(tombstone, paths), tombstone("gone/kept.parquet"))
    before = tree(linked)
    dk.import_table(str(table.folder), uri_of(catalog_uri))

    deleted = dk.DeltaTable(uri_of(catalog_uri)).vacuum(**ALL)

    assert "s/orphan.parquet" in deleted
    assert {*paths}.isdisjoint(deleted)
    assert tree(linked) == before
    assert queried(catalog_uri) == [1]


def test_live_file_behind_a_link_of_the_table_is_not_vacuumed(
    table: HostileTable, catalog_uri: str
) -> None:
    table.begin()
    real = table.data(1, name="real/a.parquet")
    other = table.data(2, name="b.parquet")
    aged_link(table.folder / "part", table.folder / "real")
    aged_link(table.folder / "link.parquet", other)
    table.commit(table.add("part/a.parquet", real), table.add("link.parquet", other))
    table.commit(tombstone("real/a.parquet"), tombstone("b.parquet"))
    dk.import_table(str(table.folder), uri_of(catalog_uri))
    ours = dk.DeltaTable(uri_of(catalog_uri))

    for full in (False, True):
        assert ours.vacuum(dry_run=False, full=full, **ANY_AGE) == []
    assert queried(catalog_uri) == [1, 2]


@pytest.mark.parametrize("kind", ["ours", "ours by a link", "unpublished", "plain"])
def test_full_vacuum_leaves_a_table_below_the_location(
    catalog_uri: str, tmp_path: Path, kind: str
) -> None:
    uri = f"{uri_of(catalog_uri)}&location={tmp_path}/outer"
    dk.write_deltalake(uri, pa.table({"x": [1]}))
    (tmp_path / "way").symlink_to(tmp_path / "outer")
    inner = tmp_path / ("way" if kind == "ours by a link" else "outer") / "inner"
    other = f"{uri_of(catalog_uri)}_inner&location={inner}"
    write = deltalake.write_deltalake if kind == "plain" else dk.write_deltalake
    write(str(inner) if kind == "plain" else other, pa.table({"x": [2]}))
    if kind == "unpublished":
        shutil.rmtree(inner / "_delta_log")
    (file,) = inner.glob("*.parquet")
    aged(file)
    aged(Path(shutil.copy(file, tmp_path / "outer" / "stray.parquet")))

    deleted = dk.DeltaTable(uri).vacuum(**ALL)

    assert deleted == ["stray.parquet"]
    assert len(list(inner.glob("*.parquet"))) == 1


def test_manifests_behind_a_link_are_not_deleted(
    catalog_uri: str, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "note").write_text("theirs")
    uri = f"{uri_of(catalog_uri)}&location={tmp_path}/outer"
    dk.write_deltalake(uri, pa.table({"x": [1]}))
    manifests = tmp_path / "outer" / "_symlink_format_manifest"
    manifests.mkdir()
    (manifests / "link").symlink_to(others)
    (manifests / "stale").touch()

    dk.DeltaTable(uri).generate()

    assert (others / "note").read_text() == "theirs"
    assert [file.name for file in manifests.iterdir()] == ["manifest"]


def test_repair_and_verify_follow_links_of_live_files_only(
    linked: Path, table: HostileTable, catalog_uri: str
) -> None:
    aged_link(table.folder / "round", table.folder)
    real = table.data(2, name="real/a.parquet")
    aged_link(table.folder / "part", table.folder / "real")
    lost = table.data(3, name="lost.parquet")
    table.commit(table.add("part/a.parquet", real), table.add("lost.parquet", lost))
    lost.unlink()
    dk.import_table(str(table.folder), uri_of(catalog_uri))
    ours = dk.DeltaTable(uri_of(catalog_uri))

    found = dk.verify(uri_of(catalog_uri), deep=True)
    assert isinstance(found, Report)
    assert "lost.parquet" in str(found.differences)
    assert "part/a.parquet" not in str(found.differences)
    assert ours.repair()["files_removed"] == ["lost.parquet"]
    assert queried(catalog_uri) == [1, 2]
    found = dk.verify(uri_of(catalog_uri), deep=True)
    assert isinstance(found, Report)
    assert found.ok


def test_conversion_refuses_a_linked_folder(
    catalog_uri: str, table: HostileTable, tmp_path: Path
) -> None:
    table.data(1, name="a.parquet")
    (table.folder / "b").symlink_to(tmp_path)

    with pytest.raises(DeltaError, match="b is a link to a folder"):
        convert_folder(str(table.folder), uri_of(catalog_uri))


def test_drop_with_data_empties_a_location_that_is_a_link(
    table: HostileTable, catalog: dk.Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    table.begin()
    table.commit(table.add("a.parquet", table.data(1, name="a.parquet")))
    (tmp_path / "link").symlink_to(table.folder, target_is_directory=True)
    dk.import_table(str(tmp_path / "link"), uri_of(catalog_uri))
    dk.DeltaTable(uri_of(catalog_uri)).delete("x = 1")

    catalog.drop_table("t", with_data=True)

    assert list(table.folder.iterdir()) == []


@pytest.mark.parametrize("by_link", [False, True])
def test_drop_with_data_unlinks_links_and_leaves_what_is_behind_them(
    linked: Path,
    table: HostileTable,
    catalog: dk.Catalog,
    catalog_uri: str,
    tmp_path: Path,
    by_link: bool,
) -> None:
    before = tree(linked)
    location = table.folder
    if by_link:
        location = tmp_path / "way" / "t"
        (tmp_path / "way").symlink_to(table.folder.parent, target_is_directory=True)
    dk.import_table(str(location), uri_of(catalog_uri))

    Cli(catalog_uri)("drop", "t", "--with-data", "--yes")

    assert tree(linked) == before
    assert not table.folder.exists()
    assert catalog.tables() == []


def test_table_is_not_made_of_files_outside_its_location(
    catalog: dk.Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    uri = f"{uri_of(catalog_uri)}&location={tmp_path}/lake/t"
    victim = tmp_path / "victim.parquet"
    victim.write_bytes(b"x")
    for path in ("../../victim.parquet", "../../../../victim.parquet", f"{victim}"):
        given = deltalake.transaction.AddAction(path, 1, {}, 1, True, "{}")
        fields = deltalake.Schema.from_json(schema(x="long"))
        with pytest.raises(ProtocolError, match="isn't a file below"):
            dk.create_table_with_add_actions(uri, fields, [given])
    assert victim.exists()
    assert catalog.tables() == []


@sqlite
def test_each_spelling_on_s3_is_read_rewritten_and_never_vacuumed(
    catalog_uri: str, s3: Place, tmp_path: Path
) -> None:
    local = HostileTable(tmp_path / "made")
    store, options = open_store(s3.location, s3.storage_options), s3.storage_options
    local.begin()
    bucket, _, prefix = s3.location.removeprefix("s3://").partition("/")
    beginnings = ("", "./", "s/../", f"{s3.location}/", f"s3a://{bucket}/{prefix}/")
    paths = [local.data(n) for n in range(len(beginnings))]
    pairs = zip(beginnings, paths, strict=True)
    local.commit(*(local.add(f"{start}{path.name}", path) for start, path in pairs))
    for path in local.folder.rglob("*.*"):
        store.put_file(path.relative_to(local.folder).as_posix(), path)
    store.put("s/orphan.parquet", b"x")
    uri = uri_of(catalog_uri)
    assert dk.import_table(s3.location, uri, storage_options=options, deep=True).ok

    ours = dk.DeltaTable(uri, storage_options=options)
    assert ours.vacuum(**ALL) == ["s/orphan.parquet"]
    assert ours.delete("x = 3")["num_deleted_rows"] == 1
    found = ours.to_pyarrow_table(columns=["x"])["x"].to_pylist()
    assert sorted(found) == [0, 1, 2, 4]
    assert ours.vacuum(**ALL) == [paths[3].name]


@sqlite
def test_tombstones_that_no_object_can_have_do_not_keep_others_on_s3(
    catalog_uri: str, s3: Place, tmp_path: Path
) -> None:
    local = HostileTable(tmp_path / "made")
    store, options = open_store(s3.location, s3.storage_options), s3.storage_options
    local.begin()
    local.commit(local.add("kept.parquet", local.data(1, name="kept.parquet")))
    local.data(2, name="gone.parquet")
    local.commit(*map(tombstone, [*IMPOSSIBLE, "gone.parquet"]))
    for path in local.folder.rglob("*.*"):
        store.put_file(path.relative_to(local.folder).as_posix(), path)
    uri = uri_of(catalog_uri)
    dk.import_table(s3.location, uri, storage_options=options)

    ours = dk.DeltaTable(uri, storage_options=options)
    assert "gone.parquet" in ours.vacuum(dry_run=False, **ANY_AGE)
    assert not store.exists("gone.parquet")
    assert store.exists("kept.parquet")

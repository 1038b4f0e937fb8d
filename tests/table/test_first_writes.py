"""Two processes that both make the first write to a table."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import DeltaError, TableExistsError
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.write import committer
from tests.support.engines import shared

CHILDREN = multiprocessing.get_context("spawn")
Job = Callable[[str, int], None]
Race = Callable[[Job, str], list[DeltaError]]


def append_stream(uri: str, i: int) -> None:
    """Append two rows that can be read once only."""
    rows = pa.table({"id": [10 * i, 10 * i + 1], "who": [f"p{i}"] * 2})
    dk.write_deltalake(uri, rows.to_reader(1), mode="append", partition_by=["who"])


def write_error(uri: str, i: int) -> None:
    dk.write_deltalake(uri, pa.table({"id": [i]}), mode="error")


def write_ignore(uri: str, i: int) -> None:
    dk.write_deltalake(uri, pa.table({"id": [i]}), mode="ignore")


def write_overwrite(uri: str, i: int) -> None:
    dk.write_deltalake(uri, pa.table({"id": [i]}), mode="overwrite")


def write_wide(uri: str, i: int) -> None:
    """Append, each with a column that the other hasn't."""
    data = pa.table({"id": [i], f"c{i}": [i]})
    dk.write_deltalake(uri, data, mode="append", schema_mode="merge")


def write_unlike(uri: str, i: int) -> None:
    """Append, each with a schema that doesn't fit the other's."""
    dk.write_deltalake(uri, pa.table({f"c{i}": [i]}), mode="append")


def append_fenced(uri: str, i: int) -> None:
    """Append to a table that delta-rs itself couldn't open."""
    fence = {"delta.feature.catalogManaged": "supported"}
    data = pa.table({"id": [i]})
    dk.write_deltalake(uri, data, mode="append", configuration=fence)


def create_ignore(uri: str, i: int) -> None:
    schema = pa.schema([("id", pa.int64())])
    dk.DeltaTable.create(uri, schema, mode="ignore", description=f"p{i}")


def create_in_catalog(uri: str, i: int) -> None:
    schema = pa.schema([("id", pa.int64())])
    with dk.connect(uri) as catalog:
        catalog.create_table("t", schema, description=f"p{i}")


def expect(barrier: Barrier) -> None:
    """Have each new table wait until another one's files are written as well."""
    commit = committer.commit

    def both_written(catalog: Any, *staged: Any, **options: Any) -> Any:
        if any(new.location is not None for new in staged):
            barrier.wait(60)
        return commit(catalog, *staged, **options)

    committer.commit = both_written


def attempt(job: Job, uri: str, i: int) -> DeltaError | None:
    """What a job raised."""
    try:
        job(uri, i)
    except DeltaError as error:
        return error
    return None


@pytest.fixture(scope="module")
def race() -> Iterator[Race]:
    """What two processes raise that both find no table."""
    both = (CHILDREN.Barrier(2),)
    with ProcessPoolExecutor(2, CHILDREN, expect, both) as pair:

        def run(job: Job, uri: str) -> list[DeltaError]:
            answers = pair.map(attempt, [job] * 2, [uri] * 2, range(2))
            return [answer for answer in answers if answer is not None]

        yield run


@pytest.fixture
def uri(new_catalog_uri: str) -> str:
    """A table that isn't there yet, in a catalog that is."""
    dk.connect(new_catalog_uri).close()
    return format_uri(parse_uri(new_catalog_uri).with_table("t"))


def ids(uri: str) -> list[int]:
    """The rows, which must be the same in the log."""
    table = dk.DeltaTable(uri)
    mirrored = deltalake.DeltaTable(table.table_uri).to_pyarrow_table()
    rows = table.to_pyarrow_table()
    found = sorted(rows["id"].to_pylist())
    assert found == sorted(mirrored["id"].to_pylist())
    folder = Path(table.table_uri.removeprefix("file://"))
    files = {str(path) for path in folder.rglob("*.parquet")}
    named = {u for v in range(table.version() + 1) for u in _uris(uri, v)}
    assert files == named
    return found


def _uris(uri: str, version: int) -> list[str]:
    return dk.DeltaTable(uri, version).file_uris()


@shared
def test_appends_are_both_there(race: Race, uri: str) -> None:
    assert race(append_stream, uri) == []

    assert ids(uri) == [0, 1, 10, 11]
    table = dk.DeltaTable(uri)
    assert table.version() == 1
    assert table.metadata().partition_columns == ["who"]


@shared
def test_second_overwrite_takes_the_place_of_the_first(race: Race, uri: str) -> None:
    assert race(write_overwrite, uri) == []

    assert ids(uri) in ([0], [1])
    assert dk.DeltaTable(uri).version() == 1


@shared
def test_write_that_expects_no_table_fails_for_one(race: Race, uri: str) -> None:
    (error,) = race(write_error, uri)

    assert isinstance(error, TableExistsError)
    assert ids(uri) in ([0], [1])


@shared
def test_write_that_leaves_tables_alone_is_made_by_one(race: Race, uri: str) -> None:
    assert race(write_ignore, uri) == []

    assert ids(uri) in ([0], [1])
    assert dk.DeltaTable(uri).version() == 0


def test_schemas_are_merged(race: Race, tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"

    assert race(write_wide, uri) == []

    assert ids(uri) == [0, 1]
    names = [field.name for field in dk.DeltaTable(uri).schema().fields]
    assert sorted(names) == ["c0", "c1", "id"]


def test_appends_to_a_fenced_table_are_both_there(race: Race, tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"

    assert race(append_fenced, uri) == []

    table = dk.DeltaTable(uri)
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == [0, 1]
    assert "catalogManaged" in (table.protocol().writer_features or [])


def test_append_that_does_not_fit_is_refused_as_ever(
    race: Race, tmp_path: Path
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"

    (error,) = race(write_unlike, uri)

    assert not isinstance(error, TableExistsError)
    table = dk.DeltaTable(uri)
    assert (table.version(), table.count()) == (0, 1)
    folder = Path(table.table_uri.removeprefix("file://"))
    assert len(list(folder.glob("*.parquet"))) == 1


def test_creations_with_mode_ignore_both_succeed(race: Race, tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"

    assert race(create_ignore, uri) == []

    assert dk.DeltaTable(uri).version() == 0


def test_one_of_two_creations_in_the_catalog_fails(race: Race, tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"

    (error,) = race(create_in_catalog, uri)

    assert isinstance(error, TableExistsError)


def test_location_of_another_table_is_refused(tmp_path: Path) -> None:
    place = f"deltasql://sqlite/{tmp_path}/meta.db?location={tmp_path}/here"
    dk.write_deltalake(f"{place}&table=a", pa.table({"id": [1]}))

    with pytest.raises(TableExistsError, match="is already used by table a"):
        dk.write_deltalake(f"{place}&table=b", pa.table({"id": [2]}), mode="append")
    assert len(list((tmp_path / "here").glob("*.parquet"))) == 1

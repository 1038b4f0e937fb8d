"""A store that ignores `If-None-Match` loses commits of deltalake, and none of ours.

That is why a commit is decided in SQL, and `_delta_log` is only told.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

import delkalakedb as dk
from delkalakedb.mirror.publisher.publication import publish
from delkalakedb.model.actions import Add, Format, Metadata, Protocol
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.paths import commit_path
from delkalakedb.storage import open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from delkalakedb.write import committer as commits
from tests.support.engines import shared
from tests.support.servers.stores import Place

WRITERS = 8
ROUNDS = 6
EACH = 3
SCHEMA = (
    '{"type":"struct","fields":'
    '[{"name":"a","type":"long","nullable":true,"metadata":{}}]}'
)


def append(location: str, options: dict[str, str], number: int) -> int:
    """Append with plain deltalake; how many commits it says it made."""
    rows = pa.table({"a": [number]})
    try:
        write_deltalake(location, rows, mode="append", storage_options=options)
    except (DeltaError, OSError):
        return 0
    return 1


def lost(place: Place, number: int) -> bool:
    """Whether a table that is appended to at once lacks a commit that was made."""
    location, options = f"{place.location}/{number}", place.storage_options
    write_deltalake(location, pa.table({"a": [0]}), storage_options=options)
    with ThreadPoolExecutor(WRITERS) as pool:
        made = sum(pool.map(partial(append, location, options), range(WRITERS)))
    try:
        files = DeltaTable(location, storage_options=options).file_uris()
    except (DeltaError, OSError):
        # Two commits into one file, and nobody can read it.
        return True
    return len(files) < 1 + made


def test_plain_deltalake_loses_commits_that_it_reported(careless_s3):
    assert any(lost(careless_s3, number) for number in range(ROUNDS))


def test_plain_deltalake_loses_nothing_where_the_header_is_honoured(s3):
    assert not lost(s3, 0)


def create(catalog: dk.Catalog, location: str) -> None:
    metadata = Metadata(
        id="00000000-0000-0000-0000-000000000001",
        format=Format(provider="parquet", options={}),
        schema_string=SCHEMA,
        partition_columns=[],
        configuration={},
    )
    first = [Protocol(min_reader_version=1, min_writer_version=2), metadata]
    catalog.commit(Staged("t", first, location=location))


def commit(uri: str, options: dict[str, str] | None, writer: int) -> dict[int, str]:
    """Append files through a catalog; the path that each version brought.

    With storage options the writer publishes them, too.
    """
    made = {}
    with dk.connect(uri) as catalog:
        for number in range(EACH):
            path = f"{writer}-{number}.parquet"
            add = Add(
                path=path,
                partition_values={},
                size=1,
                modification_time=1,
                data_change=True,
            )
            staged = Staged("t", [add], Reads(0))
            if options is None:
                (committed,) = catalog.commit(staged)
            else:
                (committed,) = commits.commit(catalog, staged, storage_options=options)
            made[committed.version] = path
    return made


def commit_at_once(uri: str, options: dict[str, str] | None) -> dict[int, str]:
    """Have several writers append; the path that each version brought."""
    with ThreadPoolExecutor(WRITERS) as pool:
        made = [*pool.map(partial(commit, uri, options), range(WRITERS))]
    paths = {version: path for part in made for version, path in part.items()}
    assert sorted(paths) == [*range(1, WRITERS * EACH + 1)]
    return paths


def check_log(place: Place, paths: dict[int, str]) -> None:
    """The log has each version once, with the file that its writer was told of."""
    location, options = place.location, place.storage_options
    store = open_store(location, options)
    listed = [meta.path for meta in store.list("_delta_log")]
    commits = [path for path in listed if path.endswith(".json")]
    assert commits == [commit_path(version) for version in (0, *sorted(paths))]
    log = FileTxnLogReader(store)
    for version, path in paths.items():
        adds = [a.path for a in log.commit(version) if isinstance(a, Add)]
        assert adds == [path]
    table = DeltaTable(location, storage_options=options)
    assert table.version() == len(paths)
    read = {uri.rpartition("/")[2] for uri in table.file_uris()}
    assert read == set(paths.values())


@shared
def test_catalog_has_every_version_once_in_the_log(catalog, catalog_uri, careless_s3):
    create(catalog, careless_s3.location)
    paths = commit_at_once(catalog_uri, None)
    publish(catalog, "t", careless_s3.storage_options)

    check_log(careless_s3, paths)


def test_writers_that_publish_at_once_lose_and_double_nothing(
    catalog, catalog_uri, careless_s3
):
    create(catalog, careless_s3.location)
    paths = commit_at_once(catalog_uri, careless_s3.storage_options)
    # Who waited too long for the others has left it to them.
    publish(catalog, "t", careless_s3.storage_options)

    check_log(careless_s3, paths)

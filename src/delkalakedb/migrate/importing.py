"""Import: an existing Delta table becomes one of the catalog, where it is.

Nothing is written to the table's location. The log's history is staged in the catalog
while others may go on writing; what they write meanwhile is staged, too. Then the
table is shown, in one transaction, and what came in between is adopted.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from delkalakedb.catalog import Catalog, connect
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.names import check_name
from delkalakedb.catalog.staging import StagedTable, find_table_at
from delkalakedb.errors import CodecError, ProtocolError, TableExistsError
from delkalakedb.migrate.loading import Loader
from delkalakedb.migrate.source import choose_source
from delkalakedb.mirror.foreign import adopt
from delkalakedb.mirror.report import Report
from delkalakedb.mirror.verify import verify
from delkalakedb.model.protocol import supported_features
from delkalakedb.model.replay import Replay
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.reading import Reading
from delkalakedb.storage.segment import LOG, LogFiles, list_log, list_newer
from delkalakedb.uri import Uri, parse_uri, require_table

__all__ = ["ImportProgress", "Imported", "import_into", "import_table"]

_STAGED_COMMIT = re.compile(rf"{LOG}/_staged_commits/(\d{{20}})\.")
# Of a table with one of these, only its catalog knows the newest versions.
_MANAGED = frozenset({"catalogManaged", "catalogOwned-preview"})
# Differences that are looked at: foreign commits count among them, and are no mistake.
_LOOKED_AT = 1000
_SHOWN = 10
_HERE = Reading()


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """How far an import has come: the version and the files that are in SQL."""

    version: int
    latest_version: int
    num_files: int


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did.

    `versions` is how many it brought in, `adopted` of them after the table was there;
    none of either means that there was nothing to do. `newer` are versions that
    someone wrote since, which another import brings in.
    """

    table: str
    location: str
    first_version: int
    version: int
    num_files: int
    versions: int
    adopted: int
    newer: tuple[int, ...]
    report: Report

    @property
    def ok(self) -> bool:
        """Whether the catalog says what the log says."""
        return self.report.ok

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {**values, "report": self.report.to_dict(), "ok": self.ok}


Tell = Callable[[ImportProgress], None]


def import_table(
    location: str,
    uri: str | Uri,
    *,
    storage_options: Mapping[str, str] | None = None,
    history: bool = True,
    deep: bool = False,
    outside_files: bool = False,
    progress: Tell | None = None,
) -> Imported:
    """Bring a Delta table into a catalog, or bring in what was written to it since.

    Cut short at any point, the same call goes on where it stopped.

    Args:
        location: where the table is: a path or a URL.
        uri: the URI that it will have, with the table's name.
        storage_options: of the table's object store, as deltalake takes them.
        history: as far back as the log goes; without it from the newest checkpoint.
        deep: verify every version and the data files, not only the latest state.
        outside_files: take in a shallow clone, whose log names files of another
            location by absolute paths; they are read, and never deleted.
        progress: called after each part that is in the catalog.
    """
    parsed = parse_uri(uri) if isinstance(uri, str) else uri
    name = require_table(parsed)
    store = open_store(location, storage_options)
    with connect(parsed) as catalog:
        return import_into(
            catalog,
            name,
            store,
            history=history,
            deep=deep,
            outside_files=outside_files,
            progress=progress,
        )


def import_into(
    catalog: Catalog,
    name: str,
    store: Store,
    *,
    history: bool = True,
    deep: bool = False,
    outside_files: bool = False,
    progress: Tell | None = None,
    hold: str | None = None,
    reading: Reading = _HERE,
) -> Imported:
    """The same for an open catalog and the store at the table's location.

    `hold` is why nobody may commit to a table that comes in, `reading` who reads it.
    """
    found = find_table_at(catalog, store.url)
    if found != name:
        check_name(name)
    if found is not None and found != name:
        raise TableExistsError(f"{name}: its location belongs to table {found}")
    versions, replay = 0, None
    if found is None:
        tell = progress or _say_nothing
        given = (history, outside_files, tell, hold, reading)
        versions, replay = _stage(catalog, name, store, *given)
    adopted = len(adopt(catalog, name, store, outside_files=outside_files))
    report = verify(
        catalog,
        name,
        store,
        deep=deep,
        limit=_LOOKED_AT,
        replay=replay,
        reading=reading,
    )
    return _imported(catalog, report, versions, adopted)


def _stage(
    catalog: Catalog,
    name: str,
    store: Store,
    history: bool,
    outside_files: bool,
    progress: Tell,
    hold: str | None,
    reading: Reading,
) -> tuple[int, Replay | None]:
    """Stage the whole log and show it; how many versions, and what they came to."""
    log = list_log(store)
    source = choose_source(log, history=history)
    # What was staged with outside files isn't gone on with by an import without.
    key = f"{source.key}+outside" if outside_files else source.key
    staged = StagedTable(catalog, name, store.url, key)

    def tell(head: Head) -> None:
        progress(ImportProgress(head.version, log.latest, head.num_files))

    loader = Loader(catalog, staged, store, tell, reading, outside_files=outside_files)
    try:
        loader.load_base(source, log)
        while staged.head is None or staged.head.version < log.latest:
            loader.load_commits(log)
            log = list_newer(store, log)
        loader.check()
        _check_whole(store, staged.head, log)
    except (ProtocolError, CodecError) as error:
        staged.drop()
        error.args = (f"{name} can't be imported: {error}",)
        raise
    version = staged.head.version
    staged.show(max((v for v in log.checkpoints if v <= version), default=-1), hold)
    return version - source.first + 1, loader.replay


def _check_whole(store: Store, head: Head, log: LogFiles) -> None:
    """Refuse a log that another catalog hasn't finished."""
    if not supported_features(head.protocol) & _MANAGED:
        return
    for meta in store.list(f"{LOG}/_staged_commits"):
        match = _STAGED_COMMIT.match(meta.path)
        if match and int(match[1]) > log.latest:
            raise ProtocolError(
                f"it is managed by another catalog, and {meta.path} isn't published"
            )


def _imported(
    catalog: Catalog, report: Report, versions: int, adopted: int
) -> Imported:
    head = catalog.log(report.table).head(report.published_version)
    found = [d for d in report.differences if d.version <= head.version]
    newer = {d.version for d in report.differences} - {d.version for d in found}
    complete = report.complete and len(found) <= _SHOWN
    return Imported(
        table=report.table,
        location=head.location,
        first_version=head.first_version,
        version=head.version,
        num_files=head.num_files,
        versions=versions + adopted,
        adopted=adopted,
        newer=tuple(sorted(newer)),
        report=replace(report, differences=tuple(found[:_SHOWN]), complete=complete),
    )


def _say_nothing(progress: ImportProgress) -> None:
    """For who asked for no progress."""

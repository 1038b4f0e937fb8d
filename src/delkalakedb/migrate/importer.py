"""Import: an existing Delta table becomes a table of the catalog, at its location.

An import writes nothing to the table's location. It stages the log's history in the
catalog, together with versions that other writers add meanwhile. Then it shows the
table in one transaction, and adopts the versions written in between.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import msgspec

from delkalakedb.catalog import Catalog, CatalogOrUri, using_table
from delkalakedb.catalog.load import StagedTable, find_table_at
from delkalakedb.catalog.read import Head, check_name
from delkalakedb.errors import CodecError, ProtocolError, TableExistsError
from delkalakedb.migrate.loader import Loader, choose_range
from delkalakedb.mirror import adopt
from delkalakedb.mirror.verify import Report, verify_table
from delkalakedb.model.log import Replay
from delkalakedb.model.paths import STAGED, STAGED_COMMITS
from delkalakedb.model.rules.features import MANAGED
from delkalakedb.model.rules.protocol import supported_features
from delkalakedb.progress import Progress, ProgressOption, report, reporting
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.log import LogFiles, Reading, list_log, list_newer

# Differences looked for; foreign commits are among them, and aren't mistakes.
_LOOKED_AT = 1000
# Differences in a report.
_SHOWN = 10
_HERE = Reading()


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportProgress(Progress):
    """The version and the number of files that are in the catalog so far.

    The unit is `files` while a checkpoint is loaded, and then `versions`.

    Args:
        what: what is being done.
        done: how many units are done.
        total: how many units there are; None if the number isn't known.
        unit: what is counted.
        version: the newest version in the catalog.
        latest_version: the newest version in the log.
        num_files: the number of files in the catalog.

    Examples:
        >>> import deltalake
        >>> deltalake.write_deltalake("events", pa.table({"id": [1]}))
        >>> uri, parts = "deltasql://sqlite/meta.db?table=events", []
        >>> imported = dk.import_table("events", uri, progress=parts.append)
        >>> [part.num_files for part in parts if isinstance(part, dk.ImportProgress)]
        [1]
    """

    version: int
    latest_version: int
    num_files: int


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    If `versions` and `adopted` are 0, there was nothing to do.

    Args:
        table: the table's name.
        location: where the table's files are.
        first_version: the oldest version in the catalog.
        version: the newest version in the catalog.
        num_files: the number of live files.
        versions: how many versions this import brought in.
        adopted: how many of these versions were brought in after the table was shown.
        newer: versions that were written since, which another import brings in.
        report: the comparison of the catalog with the log.

    Examples:
        >>> import deltalake
        >>> deltalake.write_deltalake("events", pa.table({"id": [1]}))
        >>> uri = "deltasql://sqlite/meta.db?table=events"
        >>> imported = dk.import_table("events", uri)
        >>> imported.ok, imported.versions, imported.newer
        (True, 1, ())
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
        """Whether the catalog and the log agree."""
        return self.report.ok

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values.

        Returns:
            The values by field.

        Examples:
            >>> import deltalake
            >>> deltalake.write_deltalake("events", pa.table({"id": [1]}))
            >>> uri = "deltasql://sqlite/meta.db?table=events"
            >>> dk.import_table("events", uri).to_dict()["ok"]
            True
        """
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {**values, "report": self.report.to_dict(), "ok": self.ok}


def import_table(
    location: str | PathLike[str] | Store,
    uri: CatalogOrUri,
    *,
    table: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    history: bool = True,
    deep: bool = False,
    outside_files: bool = False,
    progress: ProgressOption = None,
    hold: str | None = None,
    reading: Reading = _HERE,
) -> Imported:
    """Import a Delta table into a catalog, or its commits since the last import.

    Repeat the call to continue an import that was interrupted.

    Args:
        location: the table's path or URL, or the store there.
        uri: the URI that the table will have, or a catalog.
        table: the name that the table will have, if the URI has none.
        storage_options: of the table's object store, as deltalake takes them.
        history: import all versions of the log; otherwise those from the newest
            checkpoint on.
        deep: verify every version and the data files, not only the latest state.
        outside_files: accept a shallow clone, whose log names files of another location
            by absolute paths; such files are read, never deleted.
        progress: called with an `ImportProgress` after each part that is in the
            catalog, and with a `Progress` while the table is verified; True draws a
            bar.
        hold: why a new table is read-only in the catalog; None if it isn't.
        reading: what reads the log.

    Returns:
        The versions brought in, and the comparison of the catalog with the log.

    Raises:
        TableNotFoundError: There is no Delta table at the location.
        TableExistsError: Another table has the name or the location.
        ProtocolError: The table needs a feature that this package doesn't know.
        CodecError: An entry of the log can't be parsed.

    Examples:
        >>> import deltalake
        >>> deltalake.write_deltalake("events", pa.table({"id": [1]}))
        >>> uri = "deltasql://sqlite/meta.db?table=events"
        >>> dk.import_table("events", uri).ok
        True
        >>> dk.DeltaTable(uri).count()
        1
    """
    store = store_at(location, storage_options)
    with using_table(uri, table) as (catalog, name), reporting(progress):
        found = find_table_at(catalog, store.url)
        if found != name:
            check_name(name)
        if found is not None and found != name:
            raise TableExistsError(
                f"{name}: location {store.url} is already used by table {found}"
            )
        versions, replay = 0, None
        if found is None:
            given = (history, outside_files, hold, reading)
            versions, replay = _stage(catalog, name, store, *given)
        taken = adopt(catalog, table=name, store=store, outside_files=outside_files)
        report = verify_table(
            catalog,
            name,
            store,
            deep=deep,
            limit=_LOOKED_AT,
            replay=replay,
            reading=reading,
        )
        return _imported(catalog, report, versions, len(taken))


def store_at(
    location: str | PathLike[str] | Store, storage_options: Mapping[str, str] | None
) -> Store:
    """Return the store at a location, which may be given as an open store."""
    if isinstance(location, Store):
        return location
    return open_store(os.fspath(location), storage_options)


def _stage(
    catalog: Catalog,
    name: str,
    store: Store,
    history: bool,
    outside_files: bool,
    hold: str | None,
    reading: Reading,
) -> tuple[int, Replay | None]:
    """Stage the whole log and make the table visible.

    Return the number of versions and the replay.
    """
    log = list_log(store)
    source = choose_range(log, history=history)
    # Another key, so that an import without outside files doesn't continue one with.
    key = f"{source.key}+outside" if outside_files else source.key
    staged = StagedTable(catalog, name, store.url, key)

    def tell(head: Head) -> None:
        report(_progress(head, source.first, log.latest))

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


def _progress(head: Head, first: int, latest: int) -> ImportProgress:
    # Until the first version's own commit, the files of its checkpoint are loaded.
    based = head.version < first
    return ImportProgress(
        what=f"import {head.name}",
        done=head.num_files if based else head.version - first + 1,
        total=None if based else latest - first + 1,
        unit="files" if based else "versions",
        version=head.version,
        latest_version=latest,
        num_files=head.num_files,
    )


def _check_whole(store: Store, head: Head, log: LogFiles) -> None:
    """Raise `ProtocolError` if another catalog hasn't published all of its versions."""
    if not supported_features(head.protocol) & MANAGED:
        return
    for meta in store.list(STAGED_COMMITS):
        match = STAGED.fullmatch(meta.path)
        if match and int(match[1]) > log.latest:
            raise ProtocolError(
                f"another catalog manages the table, and {meta.path} isn't published"
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

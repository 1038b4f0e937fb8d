"""Running an operation in a workspace.

A workspace is a folder with a log of one entry: the protocol and the metadata of the
version that was read, under its number, and the files that the operation may touch.
delta-rs commits there; what it committed is read back, its files are moved to where the
table keeps them, and the actions are handed on to be ratified. Until then the table
knows nothing of the files: a crash leaves some that no version names.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import deltalake
import msgspec

from delkalakedb.catalog import Snapshot
from delkalakedb.catalog.rows import add_from_row
from delkalakedb.errors import DeltaError
from delkalakedb.mirror.datafiles import vector_path
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    Metadata,
    Protocol,
    known,
)
from delkalakedb.model.codec import decode_commit, encode_commit
from delkalakedb.model.predicate import Predicate
from delkalakedb.storage.segment import commit_path
from delkalakedb.workspace.deltars import check_delta_rs
from delkalakedb.workspace.failures import explained
from delkalakedb.workspace.features import (
    restored_protocol,
    visible_protocol,
    with_asked,
)
from delkalakedb.workspace.files import table_files
from delkalakedb.workspace.folder import private_folder
from delkalakedb.workspace.operation import Captured, Operation

__all__ = ["run", "run_new"]

T = TypeVar("T")
_Options = Mapping[str, str] | None


def run(
    snapshot: Snapshot, operation: Operation[T], storage_options: _Options = None
) -> Captured[T]:
    """Run an operation on a table as a snapshot has it."""
    table = snapshot.table
    files = table_files(table.location, storage_options)
    what = f"{table.name}: {operation.name} on version {snapshot.version}"
    check_delta_rs(what)
    with (
        explained(what, files.work, table.location),
        private_folder(files.ensure_work()) as folder,
    ):
        protocol = visible_protocol(snapshot.protocol, snapshot.metadata)
        adds = _candidates(snapshot, operation.files)
        entry = folder / commit_path(snapshot.version)
        entry.parent.mkdir()
        entry.write_bytes(encode_commit([protocol, snapshot.metadata, *adds]))
        files.bring(_paths(filter(operation.reads, adds)), folder)
        result = operation.run(deltalake.DeltaTable(folder)._table)
        commits = _commits(folder, snapshot.version + 1)
        new_paths = _new_paths(commits, folder)
        files.take(new_paths, folder)
    adapted = _adapted(commits, operation, table.location, snapshot.protocol)
    return Captured(operation, result, adapted, files, new_paths)


def run_new(
    name: str,
    location: str,
    operation: Operation[T],
    storage_options: _Options = None,
) -> Captured[T]:
    """Run the operation that makes a table."""
    files = table_files(location, storage_options)
    what = f"{name}: {operation.name}"
    check_delta_rs(what)
    with (
        explained(what, files.work, location),
        private_folder(files.ensure_work()) as folder,
    ):
        result = operation.run(str(folder))
        commits = _commits(folder, 0)
        new_paths = _new_paths(commits, folder)
        files.take(new_paths, folder)
    adapted = _adapted(commits, operation, location)
    return Captured(operation, result, adapted, files, new_paths)


def _adapted(
    commits: Iterable[Iterable[Action]],
    operation: Operation[Any],
    location: str,
    before: Protocol | None = None,
) -> list[list[Action]]:
    """The commits as the table's own, not the workspace's."""

    def adapted(action: Action) -> Action:
        return _located(_completed(action, operation, before), location)

    return [
        with_asked(
            [adapted(action) for action in actions], operation.properties, before
        )
        for actions in commits
    ]


def _candidates(snapshot: Snapshot, files: Predicate | None) -> list[Add]:
    if files is None:
        return []
    found = snapshot.files(files).read_all()
    columns = (column.to_pylist() for column in found.columns)
    return [add_from_row(row) for row in zip(*columns, strict=True)]


def _paths(adds: Iterable[Add]) -> Iterator[str]:
    vectors = set()
    for add in adds:
        if urlsplit(add.path).scheme or add.path.startswith("/"):
            raise DeltaError(
                f"{add.path} lies outside of the table's location; "
                "delta-rs can't rewrite it"
            )
        yield unquote(add.path)
        if (vector := known(add.deletion_vector)) and vector.storage_type == "u":
            vectors.add(vector_path(vector.path_or_inline_dv))
    yield from filter(None, vectors)


def _commits(folder: Path, version: int) -> list[list[Action]]:
    """The commits from a version on; compaction may make several."""
    commits = []
    while (entry := folder / commit_path(version)).exists():
        commits.append(list(decode_commit(entry.read_bytes())))
        version += 1
    return commits


def _new_paths(commits: Iterable[Iterable[Action]], folder: Path) -> list[str]:
    """The files that were written here: others are links, or the table's already."""
    paths = (
        unquote(action.path)
        for actions in commits
        for action in actions
        if isinstance(action, Add | Cdc)
    )
    return [path for path in paths if _is_own(folder / path)]


def _is_own(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _completed(
    action: Action, operation: Operation[Any], before: Protocol | None = None
) -> Action:
    """The action with what was kept from delta-rs."""
    if isinstance(action, Metadata) and operation.properties:
        configuration = {**(known(action.configuration) or {}), **operation.properties}
        return msgspec.structs.replace(action, configuration=configuration)
    if isinstance(action, Protocol) and before:
        return restored_protocol(action, before)
    return action


def _located(action: Action, location: str) -> Action:
    """The commitInfo of a creation, with the table's location, not the workspace's."""
    if not isinstance(action, CommitInfo):
        return action
    parameters = action.fields.get("operationParameters")
    if not isinstance(parameters, dict) or "location" not in parameters:
        return action
    parameters = {**parameters, "location": location}
    return CommitInfo({**action.fields, "operationParameters": parameters})

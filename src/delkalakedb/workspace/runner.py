"""Running an operation in a workspace.

A workspace is a folder with a log of one entry: the protocol and the metadata of the
version that was read, under its number, and the files that the operation may touch.
delta-rs commits there; what it committed is read back, its files are moved to where the
table keeps them, and the actions are handed on to be ratified. Until then the table
knows nothing of the files: a crash leaves some that no version names.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import deltalake
import msgspec

from delkalakedb.catalog import Snapshot
from delkalakedb.catalog.rows import add_from_row
from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    Metadata,
    Protocol,
    Remove,
    known,
)
from delkalakedb.model.codec import decode_commit, encode_commit
from delkalakedb.model.paths import check_inside, key_inside, log_path
from delkalakedb.model.predicate import Predicate
from delkalakedb.model.vectors import renamed_vector, vector_path
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


class _Guest(NamedTuple):
    """A file of the table in a workspace.

    `seen` is its add as delta-rs finds it, `files` are its own path and its vector's:
    in the workspace, and in the table.
    """

    add: Add
    seen: Add
    files: Sequence[tuple[str, str]]


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
        guests = _guests(snapshot, operation)
        adds = [guest.seen for guest in guests]
        entry = folder / commit_path(snapshot.version)
        entry.parent.mkdir()
        entry.write_bytes(encode_commit([protocol, snapshot.metadata, *adds]))
        files.bring(dict(chain.from_iterable(g.files for g in guests)), folder)
        result = operation.run(deltalake.DeltaTable(folder)._table)
        commits = _commits(folder, snapshot.version + 1)
        _check_new(commits, table.location)
        new_paths = _new_paths(commits, folder)
        files.take(new_paths, folder)
    commits = _named_as_before(commits, guests)
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
        _check_new(commits, location)
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


def _guests(snapshot: Snapshot, operation: Operation[Any]) -> list[_Guest]:
    found = enumerate(_candidates(snapshot, operation.files))
    guests = (_guest(add, n, snapshot.table.location) for n, add in found)
    return [g if operation.reads(g.add) else g._replace(files=()) for g in guests]


def _guest(add: Add, number: int, location: str) -> _Guest:
    path = _inside(add.path, location)
    seen, files = add, [(path, path)]
    if add.path != log_path(path):
        # delta-rs doesn't find each file by a path that isn't encoded as its own are.
        # The name is new, because several paths may lead to one file.
        name = f"guest-{number}.parquet"
        seen, files = msgspec.structs.replace(add, path=name), [(name, path)]
    vector = known(add.deletion_vector)
    if vector is not None and (named := vector_path(vector)) is not None:
        path = name = _inside(named, location)
        if vector.storage_type != "u" or path != named:
            vector = renamed_vector(vector, uuid4())
            seen = msgspec.structs.replace(seen, deletion_vector=vector)
            name = str(vector_path(vector))
        files.append((name, path))
    return _Guest(add, seen, files)


def _inside(path: str, location: str) -> str:
    key = key_inside(path, location)
    if key is None:
        raise DeltaError(
            f"{path} lies outside of the table's location {location}; "
            "delta-rs can't rewrite it"
        )
    return key


def _named_as_before(
    commits: Iterable[Iterable[Action]], guests: Iterable[_Guest]
) -> list[list[Action]]:
    """The commits, in which files have the names that the table's log has for them."""
    odd = {
        guest.seen.path: guest.add for guest in guests if guest.seen is not guest.add
    }

    def named(action: Action) -> Action:
        if not isinstance(action, Add | Remove) or action.path not in odd:
            return action
        add = odd[action.path]
        changes: dict[str, Any] = {"path": add.path}
        if known(action.deletion_vector) is not None:
            changes["deletion_vector"] = add.deletion_vector
        return msgspec.structs.replace(action, **changes)

    return [[named(action) for action in actions] for actions in commits]


def _commits(folder: Path, version: int) -> list[list[Action]]:
    """The commits from a version on; compaction may make several."""
    commits = []
    while (entry := folder / commit_path(version)).exists():
        commits.append(list(decode_commit(entry.read_bytes())))
        version += 1
    return commits


def _check_new(commits: Iterable[Iterable[Action]], location: str) -> None:
    """Refuse files that a caller named, if they are outside the table's location."""
    for actions in commits:
        new = (action for action in actions if isinstance(action, Add | Cdc))
        check_inside(new, location, hint="copy the file to the location")


def _new_paths(commits: Iterable[Iterable[Action]], folder: Path) -> list[str]:
    """The files that were written here: others are links, or the table's already."""
    paths = (
        key_inside(action.path, str(folder))
        for actions in commits
        for action in actions
        if isinstance(action, Add | Cdc)
    )
    return [path for path in paths if path is not None and _is_own(folder / path)]


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

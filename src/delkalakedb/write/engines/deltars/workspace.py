"""Workspaces: private tables in which delta-rs runs one operation.

A workspace is a folder with a log of one entry: the protocol and the metadata of the
version that was read, under its number, and the files that the operation may touch.
delta-rs commits there. Then its commits are read back, its new files are moved to the
table's location, and its actions are handed on to be committed. Until they are, no
version of the table names the files, so a crash leaves files that vacuum removes.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

import deltalake
import msgspec

from delkalakedb.catalog import Snapshot
from delkalakedb.catalog.read import add_from_row
from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    Metadata,
    Protocol,
    Remove,
    decode_commit,
    encode_commit,
    known,
)
from delkalakedb.model.new_actions import merged_commit_info
from delkalakedb.model.paths import LOG, check_inside, commit_path, key_inside, log_path
from delkalakedb.model.predicate.predicate import Predicate
from delkalakedb.model.rules.features import (
    FEATURES,
    ROW_TRACKING,
    Use,
    features_for,
)
from delkalakedb.model.rules.protocol import (
    FENCE_PROPERTY,
    active_features,
    complete_upgrade,
    not_less,
    supported_features,
    supporting,
    switched_on,
    with_needed,
)
from delkalakedb.model.vectors import renamed_vector, vector_path
from delkalakedb.progress import Progress, is_reporting, report
from delkalakedb.storage import local_folder
from delkalakedb.write.engines.deltars.process import check_delta_rs, explained
from delkalakedb.write.files import private_folder
from delkalakedb.write.operation import Operation, Staging, Target

# seconds between two looks at the files that delta-rs has written
_WATCH_S = 0.5
T = TypeVar("T")

# Properties that delta-rs doesn't take, and the features that they turn on.
_ASKED = {
    feature.switch: feature.name
    for feature in FEATURES.values()
    if feature.switch and Use.RATIFY in feature.uses
}


def visible_protocol(protocol: Protocol, metadata: Metadata) -> Protocol:
    """Return the protocol to show delta-rs; refuse features that it can't honour."""
    kept = _kept_from_it(protocol)
    allowed = features_for(Use.DELTA_RS) | features_for(Use.RATIFY)
    if refused := sorted(active_features(protocol, metadata) - allowed):
        raise ProtocolError(
            f"delta-rs can't write to a table with {', '.join(refused)}; Spark can"
        )

    def others(listed: Any) -> Any:
        return listed and [name for name in listed if name not in kept]

    return msgspec.structs.replace(
        protocol,
        reader_features=others(protocol.reader_features),
        writer_features=others(protocol.writer_features),
    )


def restored_protocol(protocol: Protocol, before: Protocol) -> Protocol:
    """Return delta-rs's new protocol with the features that were hidden from it."""
    kept = _kept_from_it(before)

    def joined(listed: Any, more: Any) -> Any:
        there = known(listed) or []
        missing = [n for n in known(more) or () if n in kept and n not in there]
        return [*there, *missing] if missing else listed

    restored = msgspec.structs.replace(
        protocol,
        reader_features=joined(protocol.reader_features, before.reader_features),
        writer_features=joined(protocol.writer_features, before.writer_features),
    )
    return not_less(with_needed(complete_upgrade(before, restored)), before)


def split_properties(
    properties: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split table properties into those that delta-rs knows and all others."""
    given = dict(properties or {})
    others = {FENCE_PROPERTY, *_ASKED} | {k for k in given if not _is_delta(k)}
    ours = {k: given.pop(k) for k in others if k in given}
    return given, ours


def _is_delta(name: str) -> bool:
    return name.lower().startswith("delta.")


def with_asked(
    actions: Sequence[Action], properties: Mapping[str, Any], before: Protocol | None
) -> list[Action]:
    """Return a commit that sets properties, with the features that they enable."""
    asked = {_ASKED[k] for k, v in properties.items() if k in _ASKED and v == "true"}
    protocol = next((a for a in actions if isinstance(a, Protocol)), before)
    metadata = next((a for a in actions if isinstance(a, Metadata)), None)
    if protocol and metadata and protocol.min_writer_version == 7:
        # delta-rs leaves out columnMapping, without which Delta Spark reads no row.
        asked |= switched_on(metadata)
    if protocol is None or asked <= supported_features(protocol):
        return list(actions)
    if before is not None and ROW_TRACKING in asked - supported_features(before):
        raise ProtocolError(
            "row tracking can be turned on only when a table is created: "
            "the files that are there have no row ids"
        )
    others = (action for action in actions if not isinstance(action, Protocol))
    return [supporting(protocol, asked), *others]


def _kept_from_it(protocol: Protocol) -> Set[str]:
    return set(known(protocol.writer_features) or ()) - features_for(Use.DELTA_RS)


class Guest(NamedTuple):
    """A file of the table in a workspace.

    `seen` is the add that delta-rs reads. `files` are pairs of paths, in the workspace
    and in the table: of the data file, and of its deletion vector.
    """

    add: Add
    seen: Add
    files: Sequence[tuple[str, str]] = ()


class Ran(NamedTuple, Generic[T]):
    """A run of delta-rs in a workspace: its result, and its commits in `folder`."""

    folder: Path
    result: T
    commits: list[list[Action]]


@dataclass(frozen=True)
class DeltaRs(Generic[T]):
    """The engine that has delta-rs do the operation in a workspace.

    Args:
        run: calls delta-rs. It takes a real `RawDeltaTable`, or the path of an empty
            folder if the operation creates the table.
        reads: whether delta-rs opens a file that it sees; a file that it doesn't open
            needn't be there.
        properties: the table properties to set that delta-rs doesn't know.
    """

    run: Callable[[Any], T]
    reads: Callable[[Add], bool] = lambda add: True
    properties: Mapping[str, str | None] = field(default_factory=dict)

    def stage(self, target: Target, operation: Operation[T]) -> Staging[T]:
        """Run delta-rs in a new workspace and take its files and actions over."""

        def guests(folder: Path) -> list[Guest]:
            found = _guests(target.base, operation.files, self.reads)
            files = chain.from_iterable(guest.files for guest in found)
            target.files.bring(dict(files), folder)
            return found

        return self.stage_on(guests, target, operation)

    def stage_on(
        self,
        guests: Callable[[Path], list[Guest]],
        target: Target,
        operation: Operation[T],
    ) -> Staging[T]:
        """Stage an operation that sees the files which `guests` puts into a folder."""
        with self.ran(guests, target, operation) as (folder, result, commits):
            _check_new(commits, target.location)
            new_paths = _new_paths(commits, folder)
            target.files.take(new_paths, folder)
        before = target.snapshot.protocol if target.snapshot else None
        commits = [self._adapted(actions, target, before) for actions in commits]
        return Staging(target, operation, result, commits, new_paths)

    @contextmanager
    def ran(
        self,
        guests: Callable[[Path], list[Guest]],
        target: Target,
        operation: Operation[T],
        metadata: Metadata | None = None,
    ) -> Iterator[Ran[T]]:
        """Run delta-rs in a new workspace, which is deleted at the end.

        Args:
            guests: puts the files that delta-rs sees into a folder.
            target: the table.
            operation: the operation.
            metadata: the metadata that delta-rs sees; by default the table's.
        """
        snapshot, files = target.snapshot, target.files
        what = operation.title(target)
        check_delta_rs(what)
        with (
            explained(what, files.work, target.location),
            private_folder(files.ensure_work()) as folder,
        ):
            if snapshot is None:
                result = self.run(str(folder))
                yield Ran(folder, result, _commits(folder, 0))
                return
            there = guests(folder)
            result = self.run(_open(folder, snapshot, metadata, there))
            commits = _commits(folder, snapshot.version + 1)
            yield Ran(folder, result, _named_as_before(commits, there))

    def _adapted(
        self, actions: Iterable[Action], target: Target, before: Protocol | None
    ) -> list[Action]:
        """Return a commit of the workspace as a commit of the table."""
        adapted = [
            _located(_completed(action, self.properties, before), target.location)
            for action in actions
        ]
        return with_asked(adapted, self.properties, before)


def watched(what: str, run: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return `run`, which rewrites files, with reports of the bytes written so far.

    Nothing stops delta-rs: an error of the callback is raised when delta-rs has ended,
    and then nothing is committed.

    Args:
        what: what the reports call the operation.
        run: calls delta-rs with the `RawDeltaTable` of a workspace.
    """

    def report_while(raw: Any) -> T:
        if not is_reporting():
            return run(raw)
        folder = Path(local_folder(raw.table_uri()) or "")
        there = _data_files(folder)
        total = sum(there.values())

        def tell(written: int) -> None:
            done = min(written, total)
            report(Progress(what=what, done=done, total=total, unit="bytes"))

        with ThreadPoolExecutor(1) as pool:
            tell(0)
            running = pool.submit(run, raw)
            while not wait([running], _WATCH_S).done:
                new = _data_files(folder).items() - there.items()
                tell(sum(size for _, size in new))
        result = running.result()
        tell(total)
        return result

    return report_while


def _data_files(folder: Path) -> dict[Path, int]:
    """Return the sizes of the data files below a folder, some of which are links."""
    found = {}
    for path in folder.rglob("*.parquet"):
        # delta-rs may be renaming it.
        with suppress(FileNotFoundError):
            found[path] = path.stat().st_size
    return found


def _open(
    folder: Path,
    snapshot: Snapshot,
    metadata: Metadata | None,
    guests: Iterable[Guest],
) -> Any:
    """Return a `RawDeltaTable` of the workspace in `folder`, which sees `guests`."""
    protocol = visible_protocol(snapshot.protocol, snapshot.metadata)
    seen = [guest.seen for guest in guests]
    actions: list[Action] = [protocol, metadata or snapshot.metadata, *seen]
    return open_private(folder, {snapshot.version: actions})._table


def open_private(
    folder: Path, entries: Mapping[int, Sequence[Action]]
) -> deltalake.DeltaTable:
    """Write a private log, with the times of its commitInfo, and open the table."""
    (folder / LOG).mkdir()
    for version, actions in entries.items():
        entry = folder / commit_path(version)
        entry.write_bytes(encode_commit(actions))
        for info in actions:
            if isinstance(info, CommitInfo):
                seconds = info.fields.get("timestamp", 0) / 1000
                os.utime(entry, (seconds, seconds))
    return deltalake.DeltaTable(folder)


def candidates(snapshot: Snapshot, files: Predicate | None) -> list[Add]:
    """Return the files that may hold a row which matches `files`."""
    if files is None:
        return []
    found = snapshot.files(files).read_all()
    columns = (column.to_pylist() for column in found.columns)
    return [add_from_row(row) for row in zip(*columns, strict=True)]


def _guests(
    snapshot: Snapshot, files: Predicate | None, reads: Callable[[Add], bool]
) -> list[Guest]:
    found = enumerate(candidates(snapshot, files))
    guests = (_guest(add, n, snapshot.table.location) for n, add in found)
    return [g if reads(g.add) else g._replace(files=()) for g in guests]


def _guest(add: Add, number: int, location: str) -> Guest:
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
    return Guest(add, seen, files)


def _inside(path: str, location: str) -> str:
    key = key_inside(path, location)
    if key is None:
        raise DeltaError(
            f"{path} lies outside of the table's location {location}; "
            "delta-rs can't rewrite it"
        )
    return key


def _named_as_before(
    commits: Iterable[Iterable[Action]], guests: Iterable[Guest]
) -> list[list[Action]]:
    """Return the commits with the file names that the table's log has."""
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
    """Return the commits from a version on; compaction may make several."""
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
    """List the files that the workspace wrote; others are links or the table's."""
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
    action: Action, properties: Mapping[str, str | None], before: Protocol | None
) -> Action:
    """Return the action with the fields that were hidden from delta-rs."""
    if isinstance(action, Metadata) and properties:
        configuration = {**(known(action.configuration) or {}), **properties}
        return msgspec.structs.replace(action, configuration=configuration)
    if isinstance(action, Protocol) and before:
        return restored_protocol(action, before)
    return action


def _located(action: Action, location: str) -> Action:
    """Return a creation's commitInfo with the table's location."""
    if not isinstance(action, CommitInfo):
        return action
    parameters = action.fields.get("operationParameters")
    if not isinstance(parameters, dict) or "location" not in parameters:
        return action
    parameters = {**parameters, "location": location}
    return merged_commit_info([action], {"operationParameters": parameters})

"""Restore: the commit that makes a table what it was at an earlier version."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.read import Head, load_only_in
from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import Action, Add, Metadata, Protocol, Remove, known
from delkalakedb.model.new_actions import changed_state, removed
from delkalakedb.model.paths import files_inside
from delkalakedb.model.rules.protocol import fenced, is_fenced, supported_features
from delkalakedb.model.schema.identity import with_newest_marks
from delkalakedb.model.schema.properties import MAX_COLUMN_ID
from delkalakedb.storage import Store

# Files looked for at a time.
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Restoration:
    """The differences between two versions, as a commit on the newer one."""

    state: tuple[Protocol | Metadata, ...]
    adds: tuple[Add, ...]
    removes: tuple[Remove, ...]

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions of the commit."""
        return (*self.state, *self.adds, *self.removes)

    @property
    def metrics(self) -> dict[str, int]:
        """How many files are removed and restored, under deltalake's names."""
        return {
            "numRemovedFile": len(self.removes),
            "numRestoredFile": len(self.adds),
        }


def restored(
    catalog: Catalog,
    now: Head,
    then: Head,
    *,
    downgrade: bool,
    now_ms: int,
    may_stay: bool = False,
) -> Restoration:
    """Return what to commit on `now` so that the table is as `then`.

    Args:
        catalog: the table's catalog.
        now: the table's head.
        then: the head of the version to restore.
        downgrade: restore the protocol as well; otherwise it keeps its features.
        now_ms: the time of the removes, in milliseconds since 1970.
        may_stay: allow the table's newest version; otherwise it is an error, as in
            deltalake.
    """
    if then.version >= now.version and not may_stay:
        raise DeltaError(
            f"{now.name}: Version to restore {then.version} should be less then last "
            f"available version {now.version}."
        )
    come = load_only_in(catalog._backend, then, now.version)
    go = load_only_in(catalog._backend, now, then.version)
    return Restoration(
        _state(now, then, downgrade=downgrade),
        tuple(msgspec.structs.replace(add, data_change=True) for add in come),
        tuple(removed(add, now_ms) for add in go),
    )


def check_present(name: str, adds: Iterable[Add], store: Store) -> None:
    """Raise `DeltaError` if a data file or a deletion vector isn't in the store."""
    paths = [path for add in adds for path in files_inside(add, store.url)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for path, there in zip(paths, pool.map(store.exists, paths), strict=True):
            if not there:
                raise DeltaError(f"{name}: Find missing file {path} when restore.")


def _state(
    now: Head, then: Head, *, downgrade: bool
) -> tuple[Protocol | Metadata, ...]:
    protocol = then.protocol if downgrade else _widest(now.protocol, then.protocol)
    metadata = _with_last_column_id(then.metadata, now.metadata)
    metadata = with_newest_marks(metadata, now.metadata)
    if is_fenced(now.protocol):
        protocol, metadata = fenced(protocol, metadata)
    return changed_state((now.protocol, now.metadata), (protocol, metadata))


def _widest(now: Protocol, then: Protocol) -> Protocol:
    """Return the protocol that supports the features of both; protocols only grow."""
    missing = supported_features(then) - supported_features(now)
    return then if missing else now


def _with_last_column_id(metadata: Metadata, newest: Metadata) -> Metadata:
    """Return the metadata with the newest column id, so that no id is used twice."""
    configuration = known(metadata.configuration) or {}
    newest_id = (known(newest.configuration) or {}).get(MAX_COLUMN_ID)
    if newest_id is None or MAX_COLUMN_ID not in configuration:
        return metadata
    return msgspec.structs.replace(
        metadata, configuration={**configuration, MAX_COLUMN_ID: newest_id}
    )

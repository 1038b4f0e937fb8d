"""Reading a table from SQL: a snapshot at a version, and the log as a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from delkalakedb.catalog.engine import Backend, CommitRow
from delkalakedb.catalog.read.head import Head, Identity, find_head
from delkalakedb.errors import VersionNotFoundError
from delkalakedb.model.actions import (
    Action,
    Add,
    DomainMetadata,
    Remove,
    Txn,
    decode_struct,
)
from delkalakedb.waits import running

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.catalog.read.action_rows import LoggedCommit
    from delkalakedb.model.log import State
    from delkalakedb.model.records import Commit

_NO_LIMIT = 2**62
# files; a call of an event loop loads so few without a thread
_FEW_FILES = 500
# the most commits that are loaded together; the first one is loaded alone
_TOGETHER = 200


class SqlTxnLogReader:
    """A table's log as the catalog has it; a `TxnLogReader`.

    Versions are immutable, so every answer stays right whatever is ratified since.
    With an identity, a method raises an error if another table has the name now.
    """

    def __init__(
        self, backend: Backend, name: str, identity: Identity | None = None
    ) -> None:
        self._backend = backend
        self._name = name
        self._identity = identity

    def head(self, version: int | None = None) -> Head:
        """Load the table at a version, the latest by default, in one round trip."""
        return find_head(self._backend, self._name, version, self._identity)

    def latest_version(self) -> int:
        """Return the newest version."""
        return self.head().version

    def version_at(self, timestamp_ms: int) -> int:
        """Return the newest version that isn't newer than a time."""
        from delkalakedb.model.schema.properties import parse_properties

        head = self.head()
        properties = parse_properties(head.metadata)
        stamped = properties.in_commit_timestamp_enablement_version or 0
        # Before in-commit timestamps the times are those of files, which may be later.
        for first, end in ((stamped, _NO_LIMIT), (0, stamped)):
            key = {"table_id": head.table_id, "first": first, "end": end}
            found = self._values("load_version_at", timestamp_ms=timestamp_ms, **key)
            if found:
                return int(found[0])
            if not stamped:
                break
        raise VersionNotFoundError(
            f"{self._name}: no version is as old as timestamp {timestamp_ms} ms; "
            f"the oldest is version {head.first_version}"
        )

    def state(self, version: int | None = None) -> State:
        """Return the protocol and metadata at a version, by default the latest."""
        from delkalakedb.model.log import State

        head = self.head(version)
        return State(head.version, head.timestamp_ms, head.protocol, head.metadata)

    def adds(self, version: int | None = None) -> Iterator[Add]:
        """Yield the live files at a version."""
        from delkalakedb.catalog.read.action_rows import FILES_SCHEMA, add_from_row

        for batch in load_files(self._backend, self.head(version), FILES_SCHEMA):
            columns = batch.to_pydict().values()
            yield from map(add_from_row, zip(*columns, strict=True))

    def removes(self, version: int | None = None) -> Iterator[Remove]:
        """Yield the tombstones at a version."""
        from delkalakedb.catalog.read.action_rows import remove_from_row

        for batch in load_tombstones(self._backend, self.head(version)):
            columns = batch.to_pydict().values()
            yield from map(remove_from_row, zip(*columns, strict=True))

    def txns(self, version: int | None = None) -> dict[str, Txn]:
        """Return the newest `txn` of each application at a version."""
        head = self.head(version)
        key = {"table_id": head.table_id, "version": head.version}
        txns = (decode_struct(text, Txn) for text in self._values("load_txns", **key))
        return {txn.app_id: txn for txn in txns}

    def txn_version(self, head: Head, app_id: str) -> int | None:
        """Return an application's own version at a head's version."""
        found = self._values(
            "load_txn", table_id=head.table_id, version=head.version, app_id=app_id
        )
        return decode_struct(found[0], Txn).version if found else None

    def domains(self, version: int | None = None) -> dict[str, DomainMetadata]:
        """Return the live domains at a version."""
        return self.domains_at(self.head(version))

    def domains_at(self, head: Head) -> dict[str, DomainMetadata]:
        """Return the live domains at a head's version."""
        key = {"table_id": head.table_id, "version": head.version}
        texts = self._values("load_domains", **key)
        domains = (decode_struct(text, DomainMetadata) for text in texts)
        return {d.domain: d for d in domains if not d.removed}

    def history(
        self,
        head: Head,
        *,
        limit: int | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        operation: str | None = None,
        actor: str | None = None,
        before: int | None = None,
    ) -> list[Commit]:
        """Return the commits up to a head's version, newest first."""
        params = {
            "table_id": head.table_id,
            "version": head.version if before is None else before - 1,
            "max_rows": _NO_LIMIT if limit is None else min(limit, _NO_LIMIT),
            "since_ms": since_ms,
            "until_ms": until_ms,
            "operation": operation,
            "actor": actor,
        }
        with self._backend.reading() as session:
            rows = session.rows(CommitRow, "load_history", params)
        return [commit_from_row(row) for row in rows]

    def commit(self, version: int) -> tuple[Action, ...]:
        """Return the actions of one commit, in the order of the published entry."""
        from delkalakedb.catalog.read.action_rows import load_commits

        (commit,) = load_commits(self._backend, self._name, version - 1, version)
        return commit.actions

    def commits(self, first: int, last: int) -> Iterator[LoggedCommit]:
        """Yield the commits from one version to another, as far as they exist.

        Raise `VersionNotFoundError` if a commit isn't kept any more.
        """
        from delkalakedb.catalog.read.action_rows import load_commits

        start, together = first, 1
        while start <= last:
            head = self.head()
            end, kept = (
                min(start + together - 1, last, head.version),
                head.first_version,
            )
            # The first version is kept as a whole, without what its commit changed.
            if 0 < kept >= start:
                raise VersionNotFoundError(
                    f"{self._name}: changes are known since version {kept + 1}, not "
                    f"since {start}"
                )
            if end < start:
                return
            yield from load_commits(self._backend, self._name, start - 1, end)
            start, together = end + 1, min(2 * together, _TOGETHER)

    def _values(self, name: str, **params: Any) -> list[Any]:
        with self._backend.reading() as session:
            return session.values(name, params)


def load_files(
    backend: Backend, head: Head, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Load the live files at a head's version as a stream of Arrow batches.

    `schema` names columns of `FILES_SCHEMA`.
    """
    from delkalakedb.catalog.read.action_rows import FILES_SCHEMA

    params = {"table_id": head.table_id, "version": head.version}
    if head.num_files > _FEW_FILES or running() is None:
        return backend.batches(backend.naming("files", schema), params, schema)
    import pyarrow as pa

    # Not in bulk, which would block a thread. Rows are sorted by their first column.
    names = dict.fromkeys(["file_id", *schema.names])
    wider = pa.schema([FILES_SCHEMA.field(name) for name in names])
    with backend.reading() as session:
        files = session.batch_sql(backend.naming("files", wider), params, wider)
    return iter([files.select(schema.names)])


def load_tombstones(
    backend: Backend, head: Head, since_ms: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Load the tombstones at a head's version, or those younger than a time."""
    from delkalakedb.catalog.read.action_rows import TOMBSTONES_SCHEMA

    statement = backend.statements["load_tombstones"]
    params = {
        "table_id": head.table_id,
        "version": head.version,
        "since_ms": since_ms,
    }
    return backend.batches(statement, params, TOMBSTONES_SCHEMA)


def commit_from_row(row: CommitRow) -> Commit:
    """Return the public view of a row of `load_history` or `load_audit`."""
    from delkalakedb.model.records import Commit

    blind = row.is_blind_append
    return Commit(
        version=row.version,
        timestamp_ms=row.timestamp_ms,
        transaction_id=row.transaction_id,
        operation=row.operation,
        operation_parameters=_decode(row.operation_parameters),
        operation_metrics=_decode(row.operation_metrics),
        user_metadata=row.user_metadata,
        engine_info=row.engine_info,
        read_version=row.read_version,
        isolation_level=row.isolation_level,
        is_blind_append=None if blind is None else bool(blind),
        db_user=row.db_user,
        os_user=row.os_user,
        host=row.host,
        client=row.client,
        num_added_files=row.num_added_files,
        num_removed_files=row.num_removed_files,
        added_bytes=row.added_bytes,
        removed_bytes=row.removed_bytes,
        commit_info=_decode(row.commit_info),
    )


def _decode(text: str | None) -> dict[str, Any]:
    value = msgspec.json.decode(text) if text else {}
    return value if isinstance(value, dict) else {"value": value}

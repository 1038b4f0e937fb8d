"""Reading a table from SQL: a snapshot at a version, and the log as a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from delkalakedb.catalog.engine import Backend, Row
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
from delkalakedb.model.records import Commit

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.model.log import State

_NO_LIMIT = 2**62


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
            rows = self._query("load_version_at", timestamp_ms=timestamp_ms, **key)
            if rows:
                return int(rows[0][0])
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
        rows = self._query("load_txns", table_id=head.table_id, version=head.version)
        txns = (decode_struct(row[0], Txn) for row in rows)
        return {txn.app_id: txn for txn in txns}

    def txn_version(self, head: Head, app_id: str) -> int | None:
        """Return an application's own version at a head's version."""
        rows = self._query(
            "load_txn", table_id=head.table_id, version=head.version, app_id=app_id
        )
        return decode_struct(rows[0][0], Txn).version if rows else None

    def domains(self, version: int | None = None) -> dict[str, DomainMetadata]:
        """Return the live domains at a version."""
        return self.domains_at(self.head(version))

    def domains_at(self, head: Head) -> dict[str, DomainMetadata]:
        """Return the live domains at a head's version."""
        rows = self._query("load_domains", table_id=head.table_id, version=head.version)
        domains = (decode_struct(row[0], DomainMetadata) for row in rows)
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
    ) -> list[Commit]:
        """Return the commits up to a head's version, newest first."""
        rows = self._query(
            "load_history",
            table_id=head.table_id,
            version=head.version,
            max_rows=_NO_LIMIT if limit is None else min(limit, _NO_LIMIT),
            since_ms=since_ms,
            until_ms=until_ms,
            operation=operation,
            actor=actor,
        )
        return [commit_from_row(row) for row in rows]

    def commit(self, version: int) -> tuple[Action, ...]:
        """Return the actions of one commit, in the order of the published entry."""
        from delkalakedb.catalog.read.action_rows import load_commits

        (commit,) = load_commits(self._backend, self._name, version - 1, version)
        return commit.actions

    def _query(self, name: str, **params: Any) -> list[Row]:
        with self._backend.reading() as session:
            return session.query(name, params)


def load_files(
    backend: Backend, head: Head, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Load the live files at a head's version as a stream of Arrow batches.

    `schema` names columns of `FILES_SCHEMA`.
    """
    params = {"table_id": head.table_id, "version": head.version}
    return backend.batches(backend.naming("files", schema), params, schema)


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


def commit_from_row(row: Row) -> Commit:
    """Return the public view of a row of `load_commit` or `load_history`."""
    (
        version,
        timestamp_ms,
        transaction_id,
        operation,
        parameters,
        metrics,
        user_metadata,
        engine_info,
        read_version,
        isolation_level,
        is_blind_append,
        db_user,
        os_user,
        host,
        client,
        num_added,
        num_removed,
        added_bytes,
        removed_bytes,
        commit_info,
        _others,
    ) = row
    return Commit(
        version=version,
        timestamp_ms=timestamp_ms,
        transaction_id=transaction_id,
        operation=operation,
        operation_parameters=_decode(parameters),
        operation_metrics=_decode(metrics),
        user_metadata=user_metadata,
        engine_info=engine_info,
        read_version=read_version,
        isolation_level=isolation_level,
        is_blind_append=None if is_blind_append is None else bool(is_blind_append),
        db_user=db_user,
        os_user=os_user,
        host=host,
        client=client,
        num_added_files=num_added,
        num_removed_files=num_removed,
        added_bytes=added_bytes,
        removed_bytes=removed_bytes,
        commit_info=_decode(commit_info),
    )


def _decode(text: str | None) -> dict[str, Any]:
    value = msgspec.json.decode(text) if text else {}
    return value if isinstance(value, dict) else {"value": value}

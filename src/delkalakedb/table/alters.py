"""What the stand-in for deltalake's `RawDeltaTable` changes of a table's definition."""

from typing import Any, TypeVar

from deltalake import PostCommitHookProperties

from delkalakedb.catalog import Snapshot
from delkalakedb.model.predicate import Anything, Predicate
from delkalakedb.table.commit_info import check_custom_metadata
from delkalakedb.table.perform import perform
from delkalakedb.table.reads import SqlRawReads
from delkalakedb.workspace import Operation, Stage, run, split_properties

__all__ = ["EVERY_FILE", "IN_PRIVATE", "SqlRawAlters"]

T = TypeVar("T")

EVERY_FILE = Anything()
# Checkpoints are of the mirror; in a workspace nobody would read them.
IN_PRIVATE = PostCommitHookProperties(
    create_checkpoint=False, cleanup_expired_logs=False
)


class SqlRawAlters(SqlRawReads):
    """The altering part of the stand-in; each call moves the handle."""

    def _current(self) -> Snapshot:
        """What an operation starts from."""
        return self._snapshot

    def add_columns(
        self,
        fields: list[Any],
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        """Add columns, null in the rows there are."""
        self._alter("add_columns", (fields,), commit_properties)

    def add_feature(
        self,
        feature: list[Any],
        allow_protocol_versions_increase: bool,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        """Let the table use features."""
        arguments = (feature, allow_protocol_versions_increase)
        self._alter("add_feature", arguments, commit_properties)

    def add_constraints(
        self,
        constraints: dict[str, str],
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        """Add constraints that all rows meet, which is checked."""
        self._alter("add_constraints", (constraints,), commit_properties, EVERY_FILE)

    def drop_constraints(
        self,
        name: str,
        raise_if_not_exists: bool,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        """Drop a constraint."""
        arguments = (name, raise_if_not_exists)
        self._alter("drop_constraints", arguments, commit_properties)

    def drop_column_not_null(
        self,
        column_name: str,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        """Let a column be null."""
        self._alter("drop_column_not_null", (column_name,), commit_properties)

    def set_table_properties(
        self,
        properties: dict[str, str],
        raise_if_not_exists: bool,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        """Set table properties."""
        known, unknown = split_properties(properties)
        operation = Operation[None](
            "set_table_properties",
            lambda raw: raw.set_table_properties(
                known, raise_if_not_exists, commit_properties, IN_PRIVATE
            ),
            properties=unknown,
        )
        self._perform(operation, commit_properties)

    def set_table_name(
        self,
        name: str,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        """Set the name in the table's metadata; the catalog's stays."""
        self._alter("set_table_name", (name,), commit_properties)

    def set_table_description(
        self,
        description: str,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        """Set the description."""
        self._alter("set_table_description", (description,), commit_properties)

    def set_column_metadata(
        self,
        column: str,
        metadata: dict[str, str],
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> None:
        """Set some of a column's metadata."""
        self._alter("set_column_metadata", (column, metadata), commit_properties)

    def _alter(
        self,
        name: str,
        arguments: tuple[Any, ...],
        commit_properties: Any,
        files: Predicate | None = None,
    ) -> None:
        operation = Operation[None](
            name,
            lambda raw: getattr(raw, name)(*arguments, commit_properties, IN_PRIVATE),
            files,
        )
        self._perform(operation, commit_properties)

    def _perform(
        self, operation: Operation[T], commit_properties: Any, stage: Stage = run
    ) -> T:
        """Make an operation true and move to the version it made."""
        check_custom_metadata(commit_properties)
        result, version = perform(
            self._catalog,
            self._current(),
            operation,
            retries=getattr(commit_properties, "max_commit_retries", None),
            storage_options=self._storage_options,
            stage=stage,
        )
        if version is not None:
            self._moved_to = version
        return result

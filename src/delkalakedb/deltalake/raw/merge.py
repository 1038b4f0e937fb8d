"""A merge as it is described, until it is run."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.model.actions import Metadata
from delkalakedb.model.predicate.predicate import And, Anything, Or, Predicate
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.write import Spool
from delkalakedb.write.engines import Search
from delkalakedb.write.engines.deltars import arrow_schema

if TYPE_CHECKING:
    from delkalakedb.model.predicate.merge_condition import MergeCondition

# distinct values of a key; the search for more takes longer than it saves
_MOST_KEYS = 100_000
_BY_SOURCE = "when_not_matched_by_source_"
_INSERT = "when_not_matched_insert"
# Source columns that every engine compares alike with a column of the table's type.
_COMPARABLE: dict[str, Callable[[pa.DataType], bool]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), pa.types.is_integer),
    "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    "date": pa.types.is_date32,
    "timestamp": lambda kind: _is_moment(kind) and kind.tz is not None,
    "timestamp_ntz": lambda kind: _is_moment(kind) and kind.tz is None,
}


class MergeRequest:
    """A stand-in for deltalake's `PyMergeBuilder`, which is bound to one workspace.

    The merge that a request describes can be run in any number of workspaces.
    """

    def __init__(self, source: Any, options: dict[str, Any]) -> None:
        self.source = source
        self._options = options
        self.commit_properties = options["commit_properties"]
        self._clauses: list[tuple[str, tuple[Any, ...]]] = []

    @property
    def source_alias(self) -> str | None:
        """The source's alias in expressions."""
        alias: str | None = self._options["source_alias"]
        return alias

    @property
    def target_alias(self) -> str | None:
        """The table's alias in expressions."""
        alias: str | None = self._options["target_alias"]
        return alias

    @property
    def merge_schema(self) -> bool:
        """Whether new columns of the source become the table's."""
        return bool(self._options["merge_schema"])

    @property
    def arrow_schema(self) -> Any:
        """The source's schema."""
        return self._options["batch_schema"]

    @property
    def inserts(self) -> bool:
        """Whether the merge inserts rows of the source that nothing matches."""
        return any(name == _INSERT for name, _ in self._clauses)

    def when_matched_update(
        self, updates: dict[str, str], predicate: str | None
    ) -> None:
        """Update rows that match."""
        self._add("when_matched_update", updates, predicate)

    def when_matched_delete(self, predicate: str | None) -> None:
        """Delete rows that match."""
        self._add("when_matched_delete", predicate)

    def when_not_matched_insert(
        self, updates: dict[str, str], predicate: str | None
    ) -> None:
        """Insert source rows without a match in the table."""
        self._add("when_not_matched_insert", updates, predicate)

    def when_not_matched_by_source_update(
        self, updates: dict[str, str], predicate: str | None
    ) -> None:
        """Update rows that no source row matches."""
        self._add("when_not_matched_by_source_update", updates, predicate)

    def when_not_matched_by_source_delete(self, predicate: str | None) -> None:
        """Delete rows that no source row matches."""
        self._add("when_not_matched_by_source_delete", predicate)

    def matching(
        self, metadata: Metadata, source: Spool, *, with_keys: bool = False
    ) -> Search:
        """Return which rows of the table the merge may change.

        Read the source if the range of its keys selects fewer files than the condition.

        Args:
            metadata: the table's metadata.
            source: the rows to merge.
            with_keys: tell the values of the source's keys, if they are few.
        """
        others = self._left(metadata, source)
        if isinstance(others, Anything) or (others is not None and not with_keys):
            return Search(Anything())
        condition = self._parsed(self._options["predicate"], metadata, source)
        # delta-rs sees the source in types of its own choice.
        schemas = source.schema, pa.schema(self.arrow_schema)
        kinds = {
            name: [seen.field(name).type for seen in schemas]
            for _, name in condition.keys
        }
        names = {
            name
            for column, name in condition.keys
            if all(_comparable(column.type, kind) for kind in kinds[name])
        }
        where: Predicate = Anything()
        if names or condition.parts:
            where = condition.matching(_bounds(source.reader(), names) if names else {})
        if not with_keys:
            return Search(where, others=others)
        schema = arrow_schema(metadata.schema_string)
        keys = {
            path: _either_zero(values)
            for (path, *_), name in ((c.path, name) for c, name in condition.keys)
            if (name in names or {*kinds[name]} == {schema.field(path).type})
            and (values := _values(source.reader(), name)) is not None
        }
        return Search(where, keys, others)

    def _left(self, metadata: Metadata, source: Spool) -> Predicate | None:
        """Return a predicate of the rows to change that no source row matches."""
        clauses = [
            arguments
            for name, arguments in self._clauses
            if name.startswith(_BY_SOURCE)
        ]
        if not clauses:
            return None
        parts = [
            self._parsed(clause[-1], metadata, source).parts if clause[-1] else ()
            for clause in clauses
        ]
        return Or(tuple(map(And, parts))) if all(parts) else Anything()

    def _parsed(
        self, condition: str, metadata: Metadata, source: Spool
    ) -> "MergeCondition":
        """Return the parts of a condition that restrict which rows it selects."""
        # sqlglot takes long to import: only where it is needed.
        from delkalakedb.model.predicate.merge_condition import (
            MergeCondition,
            parse_merge,
        )
        from delkalakedb.model.predicate.sql import reads_alike

        if not reads_alike(condition):
            return MergeCondition()
        return parse_merge(
            condition,
            parse_schema(metadata.schema_string),
            source.schema.names,
            target_alias=self.target_alias,
            source_alias=self.source_alias,
        )

    def run(self, raw: Any, source: Any) -> str:
        """Merge the source into a table of delta-rs; return metrics as JSON."""
        builder = raw.create_merge_builder(source=source, **self._options)
        for name, arguments in self._clauses:
            getattr(builder, name)(*arguments)
        metrics: str = raw.merge_execute(builder)
        return metrics

    def _add(self, name: str, *arguments: Any) -> None:
        self._clauses.append((name, arguments))


def _comparable(type_name: str, kind: pa.DataType) -> bool:
    return type_name in _COMPARABLE and bool(_COMPARABLE[type_name](kind))


def _is_moment(kind: pa.DataType) -> bool:
    # Nanoseconds don't fit into Python's times.
    return bool(pa.types.is_timestamp(kind)) and kind.unit != "ns"


def _values(batches: Iterable[pa.RecordBatch], name: str) -> pa.Array | None:
    """Return the distinct values of a column, or None if they are many."""
    found: pa.Array | None = None
    for batch in batches:
        column = pc.unique(batch[name])
        both = column if found is None else pa.concat_arrays([found, column])
        found = pc.unique(both)
        if len(found) > _MOST_KEYS:
            return None
    return found


def _either_zero(values: pa.Array) -> pa.Array:
    """Return the values with both zeros if there is one, because engines may differ."""
    if not pa.types.is_floating(values.type):
        return values
    zeros = pa.array([0.0, -0.0], values.type)
    found = pc.any(pc.equal(values, zeros[0])).as_py()
    return pa.concat_arrays([values, zeros]) if found else values


def _bounds(
    batches: Iterable[pa.RecordBatch], names: Iterable[str]
) -> dict[str, tuple[Any, Any]]:
    """Return the least and greatest value of each column, None without a value."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    for batch in batches:
        for name in list(found):
            try:
                ends = pc.min_max(batch[name]).as_py().values()
            except (OverflowError, ValueError):
                # A time that Python doesn't have.
                del found[name]
            else:
                found[name] += [end for end in ends if end is not None]
    return {
        name: (min(values, default=None), max(values, default=None))
        for name, values in found.items()
    }

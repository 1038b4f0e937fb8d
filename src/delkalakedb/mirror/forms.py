"""The forms in which actions are compared: what a place can't keep is left out."""

from collections.abc import Callable, Sequence
from typing import Any

from delkalakedb.model.codec import KINDS
from delkalakedb.model.schema import Column, Schema
from delkalakedb.model.stats import Stats, column_bounds, parse_stats
from delkalakedb.model.values import TIMES, kind_of

__all__ = [
    "Body",
    "Form",
    "as_checkpointed",
    "as_parsed",
    "as_unmeasured",
    "as_written",
    "plain",
]

Body = dict[str, Any]
Form = Callable[[str, Body], Body]

# A checkpoint may say `dataChange: false` of everything.
_UNKEPT = {"add": {"dataChange"}, "remove": {"dataChange", "stats", "tags"}}
_MAPS = frozenset({"partitionValues", "tags", "configuration", "options"})


def as_written(kind: str, body: Body) -> Body:
    """All that a commit says."""
    return body


def as_checkpointed(kind: str, body: Body) -> Body:
    """What a checkpoint keeps: Parquet has neither absent fields nor unknown ones."""
    kept = set(KINDS[kind].__struct_encode_fields__) - _UNKEPT.get(kind, set())
    return plain({name: value for name, value in body.items() if name in kept})


def as_parsed(schema: Schema) -> Form:
    """What a checkpoint keeps that has typed statistics instead of their text."""
    columns = schema.leaves()

    def form(kind: str, body: Body) -> Body:
        kept = as_checkpointed(kind, body)
        stats = parse_stats(kept.pop("stats", None))
        return kept if stats is None else kept | {"stats": _typed(stats, columns)}

    return form


def as_unmeasured(kind: str, body: Body) -> Body:
    """What a checkpoint keeps that has no statistics at all."""
    return as_checkpointed(kind, {n: v for n, v in body.items() if n != "stats"})


def plain(body: Body) -> Body:
    """The body without what is null or empty, but for the values of maps."""
    return {
        name: plain(value) if isinstance(value, dict) and name not in _MAPS else value
        for name, value in body.items()
        if value is not None and value != {} and value != []
    }


def _typed(stats: Stats, columns: Sequence[Column]) -> Body:
    bounds = {".".join(column.physical): _bounds(column, stats) for column in columns}
    loose = stats.tight_bounds is False
    return {"numRecords": stats.num_records, "loose": loose, "bounds": bounds}


def _bounds(column: Column, stats: Stats) -> list[Any]:
    bounds = column_bounds(column, kind_of(column.type), stats)
    lo, hi = bounds.lo, bounds.hi
    if column.type in TIMES and isinstance(lo, int):
        # Typed statistics are read back in milliseconds.
        lo //= 1000
    return [lo, hi, bounds.has_null, bounds.has_value]

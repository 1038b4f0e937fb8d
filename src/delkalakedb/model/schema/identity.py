"""Identity columns: what a schema says of them, and the values they get next."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.model.actions import Metadata
from delkalakedb.model.schema.schema import GENERATION_EXPRESSION, Field, parse_schema

MARK = "delta.identity.highWaterMark"
_START = "delta.identity.start"
_STEP = "delta.identity.step"
_EXPLICIT = "delta.identity.allowExplicitInsert"
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class IdentityColumn:
    """A column whose values are `start + k * step`.

    Args:
        name: the column's name.
        physical_name: the column's name in data files, which a rename doesn't change.
        start: the first value.
        step: the distance of two values; it isn't 0.
        mark: the last value that was given; None if none was.
        by_default: rows may have values of their own.
    """

    name: str
    physical_name: str
    start: int
    step: int
    mark: int | None
    by_default: bool

    @property
    def first(self) -> int:
        """The first value that a commit may give."""
        if self.mark is None:
            return self.start
        # floored, because a foreign mark may lie between two values
        passed = (self.mark - self.start) // self.step + 1
        return self.start + max(passed, 0) * self.step

    def last(self, count: int) -> int:
        """Return the last of `count` values.

        Raises:
            DeltaError: The values don't fit into a BIGINT.
        """
        value = self.first + (count - 1) * self.step
        if not _LOWEST <= value <= _HIGHEST:
            raise DeltaError(
                f"identity column {self.name} has no values left for {count} rows: "
                f"they would go up to {value}, beyond the range of BIGINT"
            )
        return value


def identity_properties(
    start: int, step: int, *, by_default: bool
) -> dict[str, int | bool]:
    """Return the metadata that makes a column an identity column."""
    return {_START: start, _STEP: step, _EXPLICIT: by_default}


def identity_columns(metadata: Metadata) -> list[IdentityColumn]:
    """Return the identity columns of a table.

    Raises:
        ProtocolError: The schema contradicts itself.
    """
    if _START not in metadata.schema_string:
        return []
    schema = parse_schema(metadata.schema_string)
    found = (field for field in schema.fields if _START in field.metadata)
    return [_parsed(field, metadata.partition_columns) for field in found]


def with_marks(metadata: Metadata, marks: Mapping[str, int]) -> Metadata:
    """Return the metadata with the last given values `marks`, by column."""
    if not marks:
        return metadata
    schema = msgspec.json.decode(metadata.schema_string)
    for field in schema["fields"]:
        if field["name"] in marks:
            field["metadata"] = {**field["metadata"], MARK: marks[field["name"]]}
    text = msgspec.json.encode(schema).decode()
    return msgspec.structs.replace(metadata, schema_string=text)


def with_newest_marks(metadata: Metadata, newest: Metadata) -> Metadata:
    """Return older metadata with the newest marks, so that no value is given twice."""
    then = {column.physical_name: column for column in identity_columns(metadata)}
    marks: dict[str, int] = {}
    for now in identity_columns(newest):
        old = then.get(now.physical_name)
        if old and now.mark is not None and old.step * now.step > 0:
            further = (now.first - old.first) * old.step > 0
            marks |= {old.name: now.mark} if further else {}
    return with_marks(metadata, marks)


def same_but_marks(one: Metadata, other: Metadata) -> bool:
    """Return whether two metadata differ at most in the values given last."""
    return one == other or _unmarked(one) == _unmarked(other)


def check_not_updated(metadata: Metadata, names: Iterable[str]) -> None:
    """Raise `DeltaError` if one of the columns `names` is an identity column."""
    given = set(names)
    for column in identity_columns(metadata):
        if column.name in given:
            raise DeltaError(f"UPDATE on IDENTITY column {column.name} isn't supported")


def check_not_inserted(column: IdentityColumn) -> None:
    """Raise `DeltaError` if rows mayn't have values of their own for `column`."""
    if not column.by_default:
        raise DeltaError(
            f"providing values for GENERATED ALWAYS AS IDENTITY column {column.name} "
            "isn't supported; leave the column out"
        )


def _parsed(field: Field, partition_columns: Iterable[str]) -> IdentityColumn:
    given: Mapping[str, Any] = field.metadata
    start, step, mark = (given.get(key) for key in (_START, _STEP, MARK))
    by_default = given.get(_EXPLICIT)
    problem = None
    if field.type != "long":
        problem = f"is of type {field.type}, not BIGINT"
    elif not (_is_whole(start) and _is_whole(step) and isinstance(by_default, bool)):
        problem = "lacks its start, its step, or whether it takes values"
    elif step == 0:
        problem = "has a step of 0"
    elif mark is not None and not _is_whole(mark):
        problem = f"has the high-water mark {mark!r}"
    elif GENERATION_EXPRESSION in given:
        problem = "has a generation expression, too"
    elif field.name in partition_columns:
        problem = "partitions the table"
    if problem:
        raise ProtocolError(f"identity column {field.name} {problem}")
    assert isinstance(start, int)
    assert isinstance(step, int)
    return IdentityColumn(
        field.name, field.physical_name, start, step, mark, bool(by_default)
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _unmarked(metadata: Metadata) -> tuple[Metadata, Any]:
    schema = msgspec.json.decode(metadata.schema_string)
    for field in schema["fields"]:
        (field.get("metadata") or {}).pop(MARK, None)
    return msgspec.structs.replace(metadata, schema_string=""), schema

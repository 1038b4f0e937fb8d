"""How the columns of data differ from the columns of the table it is written to."""

from collections.abc import Sequence

from delkalakedb.errors import did_you_mean
from delkalakedb.model.display import listed
from delkalakedb.model.schema.ddl import format_type
from delkalakedb.model.schema.schema import Field, Schema

_Fields = Sequence[Field]


def explain_misfit(data: Schema, table: Schema) -> str | None:
    """Return which columns of data don't fit a table, and how to write the data.

    Return None if all columns have the names and the types of the table.
    """
    ours = {field.name: field for field in table.fields}
    theirs = {field.name: field for field in data.fields}
    new = [field for name, field in theirs.items() if name not in ours]
    missing = [field for name, field in ours.items() if name not in theirs]
    other = [
        f"{name} is {format_type(field)} in the data and {format_type(ours[name])} in "
        "the table"
        for name, field in theirs.items()
        if name in ours and _shape(field) != _shape(ours[name])
    ]
    parts = [
        *([f"the table has no {_columns(new, missing)}"] if new else []),
        *([f"the data has no {_columns(missing, ())}"] if missing else []),
        *other,
    ]
    if not parts:
        return None
    return "; ".join([*parts, _advice(new, missing, other)])


def _columns(fields: _Fields, near: _Fields) -> str:
    """Return the names of columns, each with the names in `near` that it may mean."""
    known = [field.name for field in near]
    hints = (did_you_mean(field.name, known).removeprefix("; ") for field in fields)
    names = [
        f"{field.name} ({hint})" if hint else field.name
        for field, hint in zip(fields, hints, strict=True)
    ]
    return f"column{'s' * (len(fields) > 1)} {listed(names)}"


def _advice(new: _Fields, missing: _Fields, other: Sequence[str]) -> str:
    if other:
        return (
            "cast the data, or replace the table's rows and columns with "
            'mode="overwrite" and schema_mode="overwrite"'
        )
    does = [
        *(["adds the new columns"] if new else []),
        *(["fills the missing ones with null"] if missing else []),
    ]
    return f'schema_mode="merge" {listed(does)}'


def _shape(field: Field) -> tuple[object, ...]:
    """Return the type of a field, whatever may be null and whatever it is called."""
    named = field.type == "struct"
    children = ((named and child.name, _shape(child)) for child in field.children)
    return field.type, *children

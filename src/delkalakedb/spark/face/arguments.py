"""Checks of arguments, with the types and messages of delta-spark's errors."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from pyspark.sql import Column

from delkalakedb.spark.reader import Condition


def check_condition(given: object, name: str = "condition") -> None:
    """Raise `TypeError` unless `given` is a Column or a text; None is allowed."""
    if not isinstance(given, Column | str | None):
        raise TypeError(
            f"{name} must be a Spark SQL Column or a string (expression in SQL syntax),"
            f" found to be of type {type(given)}"
        )


def assignments(
    given: object, name: str, condition: object = None
) -> Mapping[str, Condition]:
    """Return `given`, the expressions of an update or insert by column.

    Raises:
        TypeError: `given` isn't a dict of Columns and texts, or `condition` isn't a
            Column or a text.
        ValueError: `given` is None or assigns no column.
    """
    if given is None:
        raise ValueError(f"{name} cannot be None")
    if not isinstance(given, dict):
        raise TypeError(f"{name} must be a dict, found to be {type(given)}")
    for key, value in given.items():
        if not isinstance(key, str):
            raise TypeError(
                f"Keys of dict in {name} must contain only strings with column names, "
                f"found '{key}' of type '{type(key)}'"
            )
        if not isinstance(value, Column | str):
            raise TypeError(
                f"Values of dict in {name} must contain only Spark SQL Columns or "
                f"strings (expressions in SQL syntax) as values, found '{value}' of "
                f"type '{type(value)}'"
            )
    check_condition(condition)
    if not given:
        raise ValueError(f"{name} needs at least one column")
    return given


def check_type(given: object, kind: type | tuple[type, ...], what: str) -> None:
    """Raise `TypeError` unless `given` is a `kind`; `what` says what is needed."""
    if not isinstance(given, kind):
        _refuse(what, given)


def need(given: object, kind: type, name: str) -> None:
    """Raise `ValueError` unless the argument `name` is a `kind`."""
    if not isinstance(given, kind) or (kind is int and isinstance(given, bool)):
        words = {str: "a string", int: "an int", bool: "a boolean", dict: "a dict"}
        raise ValueError(f"{name} needs to be {words[kind]} but got '{type(given)}'.")


def need_version(given: object, name: str) -> None:
    """Raise `ValueError` unless the argument `name` is an integer."""
    if not isinstance(given, int):
        raise ValueError(f"The {name} needs to be an integer but got '{type(given)}'.")


def need_clone(
    target: object, shallow: object, replace: object, properties: object
) -> None:
    """Raise `ValueError` unless the arguments of a clone have delta-spark's types."""
    need(target, str, "target")
    need(shallow, bool, "isShallow")
    need(replace, bool, "replace")
    if properties is None:
        return
    need(properties, dict, "properties")
    assert isinstance(properties, dict)
    for key, value in properties.items():
        need(key, str, f"All property keys including {key}")
        need(value, str, f"All property values including {value}")


def column_names(cols: Sequence[Any], what: str) -> list[str]:
    """Return names that are given one by one, or as one list.

    Raises:
        TypeError: A name isn't a text; `what` begins the message.
    """

    def names() -> Iterator[str]:
        for given in cols:
            for name in given if isinstance(given, list | tuple) else [given]:
                check_type(name, str, what)
                yield name

    return list(names())


def _refuse(what: str, given: object) -> NoReturn:
    raise TypeError(f"{what} Found {given} with type {type(given)}")

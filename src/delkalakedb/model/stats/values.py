"""Column values that sort, and bounds that never exclude a value of the file.

An *exact* value is an int, float, Decimal or str: booleans are 0 and 1, dates count
days and timestamps microseconds since the epoch (UTC). A *bound* is what the catalog
stores: a double, or at most 65 code points of text. A lower bound is rounded down and
an upper bound up, also to allow for statistics that their writer cut or rounded.
"""

import math
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Any

from delkalakedb.model.times import DAY_MICROS, parse_moment, to_days, to_micros

Value = int | float | Decimal | str
Bound = float | str

TEXT_LENGTH = 64  # code points of a bound, without a last `TOP`
TOP = "\U0010ffff"  # the greatest code point
FLOATING = frozenset({"float", "double"})
INTEGRAL = frozenset({"byte", "short", "integer", "long"})
TIMES = frozenset({"timestamp", "timestamp_ntz"})

_EXACT_INTEGER = 1 << 53  # up to this a double holds every integer
# microseconds; from 1973 on the offset of every time zone is in whole minutes
_STANDARD_TIME = 1096 * DAY_MICROS
_SINGLE_MAX = 3.4028234663852886e38  # the greatest 32-bit float
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DECIMAL = re.compile(r"decimal\([0-9]+,\s*(-?[0-9]+)\)")
# digits; more than any literal that `coerce` accepts has
_WIDE = Context(prec=1000)


class Kind(StrEnum):
    """The domain of a column's bounds."""

    NUMBER = "number"
    TEXT = "text"


@lru_cache(maxsize=1024)
def kind_of(type_name: str) -> Kind | None:
    """Return the domain of a type's values; None if they don't sort."""
    if type_name == "string" or type_name.startswith(("char(", "varchar(")):
        return Kind.TEXT
    if type_name in _READERS or type_name.startswith("decimal"):
        return Kind.NUMBER
    return None


def lower(value: Any, type_name: str) -> Value | None:
    """Return a lower bound of a file's values, given the minimum in its statistics."""
    try:
        return None if value is None else _reader(type_name)[0](value)
    except (TypeError, ValueError, OverflowError):
        return None


def upper(value: Any, type_name: str) -> Value | None:
    """Return an upper bound of a file's values, given the maximum in its statistics."""
    try:
        return None if value is None else _reader(type_name)[1](value)
    except (TypeError, ValueError, OverflowError):
        return None


def round_down(value: Value) -> Bound | None:
    """Return the greatest bound that isn't above the value."""
    if type(value) is float:
        return value + 0.0
    if isinstance(value, str):
        return _text_below(value)
    number = _nearest(value)
    return number if number <= value else math.nextafter(number, -math.inf)


def round_up(value: Value) -> Bound | None:
    """Return the least bound that isn't below the value."""
    if type(value) is float:
        return value + 0.0
    if isinstance(value, str):
        return _text_above(value)
    number = _nearest(value)
    return number if number >= value else math.nextafter(number, math.inf)


def exact(value: Any) -> Value | None:
    """Return the exact value of a Python value; None if it is NaN or doesn't sort."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, datetime):
        return to_micros(value)
    if isinstance(value, date):
        return to_days(value)
    if isinstance(value, int | float | Decimal | str) and value == value:
        return value
    return None


def coerce(literal: Any, type_name: str) -> Value | None:
    """Return a literal as exact value of a column's type; None if that is unclear."""
    if kind_of(type_name) is Kind.TEXT:
        return literal if isinstance(literal, str) else None
    if type_name == "date" or type_name in TIMES:
        return _coerce_time(literal, type_name)
    if type_name == "boolean":
        return _coerce_boolean(literal)
    if isinstance(literal, str):
        return _parse_number(literal)
    if isinstance(literal, int | float | Decimal) and not isinstance(literal, bool):
        return exact(literal)
    return None


def span(value: Value, type_name: str) -> tuple[Value, Value]:
    """Return the range of values to which engines may convert a literal."""
    if isinstance(value, str) or (
        type_name not in FLOATING and _is_plain(value, type_name)
    ):
        return value, value
    number = _nearest(value)
    if type_name == "float":
        return _single_span(number)
    low, high = math.nextafter(number, -math.inf), math.nextafter(number, math.inf)
    if type_name == "double" or math.isinf(number):
        return min(low, value), max(high, value)
    if scaled := _DECIMAL.fullmatch(type_name):
        unit, given = Decimal(1).scaleb(-int(scaled[1])), Decimal(value)
        below = given.quantize(unit, ROUND_FLOOR, _WIDE)
        above = given.quantize(unit, ROUND_CEILING, _WIDE)
        return (low if low < below else below), (high if high > above else above)
    return min(low, math.floor(value)), max(high, math.ceil(value))


def after_prefix(prefix: str) -> str | None:
    """Return the least text above all texts with the prefix; None if there is none."""
    head = prefix.rstrip(TOP)
    if not head:
        return None
    following = ord(head[-1]) + 1
    return head[:-1] + chr(0xE000 if following == 0xD800 else following)


def _is_plain(value: Value, type_name: str) -> bool:
    return isinstance(value, int) and (
        not type_name.startswith("decimal") or abs(value) <= _EXACT_INTEGER
    )


def _single_span(number: float) -> tuple[float, float]:
    if math.isinf(number):
        return (_SINGLE_MAX, number) if number > 0 else (number, -_SINGLE_MAX)
    low, high = number - _single_ulp(number), number + _single_ulp(number)
    return (
        low if low >= -_SINGLE_MAX else -math.inf,
        high if high <= _SINGLE_MAX else math.inf,
    )


def _nearest(value: int | float | Decimal) -> float:
    try:
        return float(value) + 0.0
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _text_below(text: str) -> str | None:
    if text.isascii() and len(text) <= TEXT_LENGTH and "\0" not in text:
        return text
    head = text[:TEXT_LENGTH].split("\0", 1)[0]
    # Cut after U+10FFFF, so that no bound is above `TOP`, which means no maximum.
    start, top, _ = head.partition(TOP)
    return _storable(start + top)


def _text_above(text: str) -> str | None:
    if text.isascii() and len(text) <= TEXT_LENGTH and "\0" not in text:
        return text
    head, nul, _ = text[:TEXT_LENGTH].partition("\0")
    if nul:
        head += "\1"
    elif len(text) > TEXT_LENGTH:
        if text[TEXT_LENGTH] == TOP:
            return None
        head += TOP
    return None if TOP in head[:-1] else _storable(head)


def _storable(text: str) -> str | None:
    """Return the text, or None if it has a lone surrogate, which UTF-8 can't encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text


def _coerce_boolean(literal: Any) -> int | None:
    if isinstance(literal, str):
        return {"true": 1, "false": 0}.get(literal.lower())
    return int(literal) if isinstance(literal, bool) else None


def _parse_number(text: str) -> Value | None:
    text = text.strip()
    if text.lower().lstrip("+-") in ("inf", "infinity"):
        return float(text)
    if not _NUMBER.fullmatch(text):
        return None
    number = Decimal(text)
    if number and abs(number.adjusted()) > 400:
        return None
    return int(number) if number == number.to_integral_value() else number


def _coerce_time(literal: Any, type_name: str) -> Value | None:
    if isinstance(literal, str):
        literal = parse_moment(literal.strip())
    if isinstance(literal, datetime):
        if literal.tzinfo is not None and type_name != "timestamp":
            return None
        micros = to_micros(literal)
        if type_name != "date":
            return micros
        days, rest = divmod(micros, DAY_MICROS)
        return Decimal(micros) / DAY_MICROS if rest else days
    if isinstance(literal, date):
        days = to_days(literal)
        return days if type_name == "date" else days * DAY_MICROS
    return None


def _floating(value: Any) -> float:
    number = float(value) if type(value) in (float, str) else float(_number(value))
    if number != number:
        raise ValueError("NaN bounds nothing")
    return number + 0.0


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(value)
    return value


def _boolean(value: Any) -> int:
    if type(value) is not bool:
        raise TypeError(value)
    return int(value)


def _single_ulp(number: float) -> float:
    """Return at least the distance to the next 32-bit float."""
    return abs(number) * 2**-23 + 2**-149


# Writers write a 32-bit float as its shortest text, or as the equal double.
def _single_lower(value: Any) -> float:
    number = _floating(value)
    return number if math.isinf(number) else number - _single_ulp(number)


def _single_upper(value: Any) -> float:
    number = _floating(value)
    return number if math.isinf(number) else number + _single_ulp(number)


# delta-rs computes decimals in doubles, some ulps off, and caps integers at 64 bits.
def _decimal_lower(value: Any) -> float | None:
    number = float(_number(value))
    return None if number == -(2**63) else number - abs(number) * 1e-14 + 0.0


def _decimal_upper(value: Any) -> float | None:
    number = float(_number(value))
    return None if number == 2**63 else number + abs(number) * 1e-14 + 0.0


def _day(value: str) -> int:
    return to_days(date.fromisoformat(value))


def _time_lower(value: str) -> int:
    moment = datetime.fromisoformat(value)
    micros = to_micros(moment)
    return micros - _slack(moment) if micros < _STANDARD_TIME else micros


# Spark and delta-rs round timestamps down to milliseconds.
def _time_upper(value: str) -> int:
    moment = datetime.fromisoformat(value)
    micros = to_micros(moment) // 1000 * 1000 + 999
    return micros + _slack(moment) if micros < _STANDARD_TIME else micros


def _slack(moment: datetime) -> int:
    """Return the error of a text in microseconds; Spark drops an offset's seconds."""
    return 60_000_000 if moment.utcoffset() else 0


_Reader = tuple[Callable[[Any], Value | None], Callable[[Any], Value | None]]
_READERS: dict[str, _Reader] = {
    "string": (_text, _text),
    **dict.fromkeys(INTEGRAL, (_integer, _integer)),
    "boolean": (_boolean, _boolean),
    "float": (_single_lower, _single_upper),
    "double": (_floating, _floating),
    "date": (_day, _day),
    **dict.fromkeys(TIMES, (_time_lower, _time_upper)),
}


def _reader(type_name: str) -> _Reader:
    if (reader := _READERS.get(type_name)) is not None:
        return reader
    if kind_of(type_name) is Kind.TEXT:
        return _text, _text
    if type_name.startswith("decimal"):
        return _decimal_lower, _decimal_upper
    raise TypeError(f"values of type {type_name} don't sort")

"""Partition values: text in the log, typed values in memory.

An empty text is null for every type. A timestamp without a zone is in UTC, as delta-rs
writes it, because the log doesn't have the writer's zone. A binary value is the text's
UTF-8, as for every reader.
"""

import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

from delkalakedb.errors import CodecError
from delkalakedb.model.times import to_micros

PartitionValue = int | float | Decimal | str | bool | date | datetime | bytes

INTEGER_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SPECIAL = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")
_TIME = re.compile(
    _DATE.pattern + r"(?:[ T]([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?)?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_DECIMAL = re.compile(r"decimal\(([0-9]+),\s*(-?[0-9]+)\)")
_decimals = Context(prec=38, traps=[Inexact, InvalidOperation])


def parse_partition_value(text: str | None, type: str) -> PartitionValue | None:  # noqa: A002
    """Parse the text of a partition value; None and an empty text are null."""
    if text is None or text == "":
        return None
    try:
        return _parser(type)(text)
    except (ValueError, OverflowError, DecimalException) as error:
        raise CodecError(f"partition value {text!r} is not a {type}") from error


def format_partition_value(value: PartitionValue | None, type: str) -> str | None:  # noqa: A002
    """Return the text of a partition value; None for null."""
    if value is None:
        return None
    try:
        return _formatter(type)(value)
    except (TypeError, ValueError, OverflowError, DecimalException) as error:
        raise CodecError(f"{value!r} can't be a partition value of {type}") from error


def _parser(kind: str) -> Callable[[str], PartitionValue]:
    if kind.startswith("decimal("):
        return lambda text: Decimal(_matched(_NUMBER, text)[0])
    if kind in INTEGER_BITS:
        return lambda text: _fits(int(_matched(_INTEGER, text)[0]), INTEGER_BITS[kind])
    return _PARSERS.get(kind, _unsupported)


def _formatter(kind: str) -> Callable[[Any], str]:
    if match := _DECIMAL.fullmatch(kind):
        return lambda value: _format_decimal(value, int(match[1]), int(match[2]))
    if kind in INTEGER_BITS:
        return lambda value: str(_fits(_is(value, int), INTEGER_BITS[kind]))
    return _FORMATTERS.get(kind, _unsupported)


def _unsupported(value: Any) -> Any:
    raise ValueError("not a type that can partition a table")


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match


def _is(value: Any, kind: type[Any]) -> Any:
    # Not isinstance, because bool is an int, and datetime a date.
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}")
    return value


def _fits(number: int, bits: int) -> int:
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"{number} needs more than {bits} bits")
    return number


def _parse_double(text: str) -> float:
    if (special := _SPECIAL.get(text.lstrip("+-").lower())) is not None:
        return -special if text.startswith("-") else special
    return float(_matched(_NUMBER, text)[0])


def _single(number: float) -> float:
    """Return the nearest 32-bit float, which may be infinite."""
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _format_double(value: Any) -> str:
    number = float(_is(value, float))
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return repr(number)


def _format_float(value: Any) -> str:
    number = _single(_is(value, float))
    for digits in range(6, 9):
        if _single(shorter := float(f"{number:.{digits}g}")) == number:
            return _format_double(shorter)
    return _format_double(number)


def _format_decimal(value: Any, precision: int, scale: int) -> str:
    number = _is(value, Decimal).quantize(Decimal(1).scaleb(-scale), context=_decimals)
    if not number.is_finite() or len(number.as_tuple().digits) > precision:
        raise ValueError(f"not a number of at most {precision} digits")
    return f"{number:f}"


def _parse_boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _parse_date(text: str) -> date:
    year, month, day = _matched(_DATE, text).groups()
    return date(int(year), int(month), int(day))


def _parse_time(text: str) -> tuple[datetime, str | None]:
    *parts, fraction, zone = _matched(_TIME, text).groups()
    year, month, day, hour, minute, second = (int(part or 0) for part in parts)
    micros = int((fraction or "").ljust(6, "0")[:6])
    return datetime(year, month, day, hour, minute, second, micros), zone


def _parse_timestamp(text: str) -> datetime:
    local, zone = _parse_time(text)
    if zone in (None, "Z"):
        return local.replace(tzinfo=UTC)
    digits = zone[1:].replace(":", "")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    east = timezone(offset if zone[0] == "+" else -offset)
    return local.replace(tzinfo=east).astimezone(UTC)


def _parse_ntz(text: str) -> datetime:
    local, zone = _parse_time(text)
    if zone is not None:
        raise ValueError("a time zone")
    return local


def _parse_nanos(text: str) -> int:
    """Return the nanoseconds since the epoch, which `datetime` can't hold."""
    fraction = _matched(_TIME, text)[7] or ""
    nanos = int(fraction.ljust(9, "0")[6:])
    return to_micros(_parse_timestamp(text)) * 1000 + nanos


def _format_timestamp(value: Any) -> str:
    if _is(value, datetime).tzinfo is None:
        raise ValueError("a time zone is missing")
    utc = value.astimezone(UTC).replace(tzinfo=None)
    return f"{utc.isoformat(timespec='microseconds')}Z"


def _format_ntz(value: Any) -> str:
    if _is(value, datetime).tzinfo is not None:
        raise ValueError("a time zone")
    return str(value.isoformat(sep=" ", timespec="microseconds"))


_PARSERS: dict[str, Callable[[str], PartitionValue]] = {
    "string": str,
    "boolean": _parse_boolean,
    "float": lambda text: _single(_parse_double(text)),
    "double": _parse_double,
    "date": _parse_date,
    "timestamp": _parse_timestamp,
    "timestamp_ntz": _parse_ntz,
    "timestamp_nanos": _parse_nanos,
    "timestamp_nanos_ntz": _parse_nanos,
    "binary": lambda text: text.encode(),
}
_FORMATTERS: dict[str, Callable[[Any], str]] = {
    "string": lambda value: str(_is(value, str)),
    "boolean": lambda value: str(_is(value, bool)).lower(),
    "float": _format_float,
    "double": _format_double,
    "date": lambda value: str(_is(value, date).isoformat()),
    "timestamp": _format_timestamp,
    "timestamp_ntz": _format_ntz,
    "binary": lambda value: str(_is(value, bytes).decode()),
}

"""Conversions between times as text, as `datetime` and as numbers since the epoch.

A time without a zone is in UTC, as in delta-rs.
"""

import re
from datetime import UTC, date, datetime, timedelta

DAY_S = 86_400
DAY_MS = DAY_S * 1_000
DAY_MICROS = DAY_MS * 1_000
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=UTC)
_EPOCH_DAY = _EPOCH.toordinal()
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def to_micros(moment: datetime) -> int:
    """Return a time in microseconds since the epoch."""
    since = moment - (_EPOCH if moment.tzinfo is None else _EPOCH_UTC)
    return since.days * DAY_MICROS + since.seconds * 1_000_000 + since.microseconds


def to_ms(moment: datetime) -> int:
    """Return a time in milliseconds since the epoch, rounded down."""
    return to_micros(moment) // 1000


def to_days(day: date) -> int:
    """Return a date in days since the epoch."""
    return day.toordinal() - _EPOCH_DAY


def from_micros(micros: int, *, utc: bool = True) -> datetime:
    """Return the time that is `micros` microseconds after the epoch.

    The result has no zone if `utc` is false.

    Raises:
        OverflowError: `datetime` can't hold the time.
    """
    return (_EPOCH_UTC if utc else _EPOCH) + timedelta(microseconds=micros)


def from_ms(time_ms: int) -> datetime:
    """Return the time that is `time_ms` milliseconds after the epoch, in UTC."""
    return from_micros(1000 * time_ms)


def from_days(days: int) -> date:
    """Return the date that is `days` days after the epoch.

    Raises:
        OverflowError: `date` can't hold the day.
    """
    return _EPOCH.date() + timedelta(days=days)


def duration_ms(duration: timedelta) -> int:
    """Return a duration in milliseconds, rounded down."""
    return duration // timedelta(milliseconds=1)


def format_ms(time_ms: int) -> str:
    """Return a time in milliseconds since the epoch as readable text, in UTC."""
    text = from_ms(time_ms).replace(tzinfo=None).isoformat(" ", "milliseconds")
    return f"{text}Z"


def parse_utc(text: str) -> datetime:
    """Parse a time in any form of ISO 8601.

    Raises:
        ValueError: The text isn't a time in ISO 8601.
    """
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


Moment = datetime | date | str
"""A time as callers give it; without a zone it is in UTC, and a text is ISO 8601."""


def moment_ms(when: Moment) -> int:
    """Return a time that a caller gave, in milliseconds since the epoch.

    Raises:
        DeltaError: The value isn't a time.
    """
    # Here, because errors import deltalake, which commands that show help don't need.
    from delkalakedb.errors import DeltaError

    if isinstance(when, str):
        try:
            when = parse_utc(when)
        except ValueError as error:
            raise DeltaError(
                f"{when!r} isn't a time; give a datetime, or a text such as "
                "2026-01-31, 2026-01-31T12:30 or 2026-01-31T12:30:00+02:00"
            ) from error
    if isinstance(when, datetime):
        return to_ms(when)
    if isinstance(when, date):
        return to_days(when) * DAY_MS
    raise DeltaError(f"{when!r} isn't a time; give a datetime, or a text in ISO 8601")


def parse_moment(text: str) -> datetime | None:
    """Parse a time in ISO 8601; return None if engines differ on its form."""
    try:
        return datetime.fromisoformat(text) if _MOMENT.fullmatch(text) else None
    except ValueError:
        return None


def parse_rfc_3339(text: str) -> datetime:
    """Parse a time in RFC 3339, which is the form that deltalake takes.

    Raises:
        ValueError: The text isn't a time in RFC 3339.
    """
    if not _RFC_3339.fullmatch(text):
        raise ValueError(
            f"Failed to parse datetime string: {text!r} is not like "
            "2026-01-31T12:30:00Z or 2026-01-31T12:30:00+02:00 (RFC 3339)"
        )
    try:
        return datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise ValueError(f"Failed to parse datetime string: {error}") from error

"""Times: each form can be converted to each other form and back."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given, strategies as st

from delkalakedb.model.times import (
    duration_ms,
    format_ms,
    from_days,
    from_micros,
    from_ms,
    parse_moment,
    parse_rfc_3339,
    parse_utc,
    to_days,
    to_micros,
    to_ms,
)

ZONES = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))
MOMENTS = st.datetimes(datetime(2, 1, 1), datetime(9999, 12, 30))


@given(MOMENTS)
def test_microseconds_lose_nothing(moment: datetime) -> None:
    aware = moment.replace(tzinfo=UTC)

    assert from_micros(to_micros(moment), utc=False) == moment
    assert from_micros(to_micros(aware)) == aware
    assert to_micros(moment) == to_micros(aware)


@given(MOMENTS, ZONES)
def test_milliseconds_are_rounded_down_whatever_the_zone(
    moment: datetime, zone: timezone
) -> None:
    aware = moment.replace(tzinfo=zone)

    assert timedelta() <= aware - from_ms(to_ms(aware)) < timedelta(milliseconds=1)


@given(st.dates())
def test_days_lose_nothing(day: date) -> None:
    assert from_days(to_days(day)) == day


@pytest.mark.parametrize("number", [1 << 62, -(1 << 62)])
def test_times_that_python_does_not_know_overflow(number: int) -> None:
    with pytest.raises(OverflowError):
        from_micros(number)
    with pytest.raises(OverflowError):
        from_days(number)


@given(st.integers(-(10**12), 10**14))
def test_formatted_time_is_parsed_to_itself(time_ms: int) -> None:
    assert to_ms(parse_utc(format_ms(time_ms))) == time_ms


def test_formatted_time_is_for_people() -> None:
    assert format_ms(0) == "1970-01-01 00:00:00.000Z"
    assert format_ms(-1) == "1969-12-31 23:59:59.999Z"


def test_time_without_a_zone_is_in_utc() -> None:
    assert parse_utc("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)
    assert to_ms(parse_utc("2026-01-31T12:00:00+02:00")) == to_ms(
        datetime(2026, 1, 31, 10, tzinfo=UTC)
    )


@pytest.mark.parametrize("text", ["", "now", "2026-13-01", "12:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_utc(text)
    with pytest.raises(ValueError, match="Failed to parse datetime string"):
        parse_rfc_3339(text)
    assert parse_moment(text) is None


def test_rfc_3339_needs_a_zone_and_takes_small_letters() -> None:
    expected = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)

    assert parse_rfc_3339("2026-01-31t12:30:00z") == expected
    for text in ("2026-01-31T12:30:00", "2026-01-31", "2026-02-30T12:30:00Z"):
        with pytest.raises(ValueError, match="Failed to parse"):
            parse_rfc_3339(text)


def test_durations_are_rounded_down() -> None:
    assert duration_ms(timedelta(seconds=1, microseconds=999)) == 1000

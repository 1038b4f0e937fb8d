"""The clock, and pauses between attempts."""

import time
from itertools import islice

import pytest

from delkalakedb.clock import now_ms, pause_s, pauses


def test_clock_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1.2349)

    assert now_ms() == 1234


def test_pauses_double_up_to_a_maximum() -> None:
    assert [*islice(pauses(0.1, 0.5), 5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert [*islice(pauses(2, 1), 2)] == [1, 1]


def test_pause_after_any_number_of_attempts_is_finite() -> None:
    assert pause_s(10_000, 1.0, 300.0) == 300.0


@pytest.mark.parametrize(("jitter", "least"), [(0.5, 0.5), (1.0, 0.0)])
def test_jitter_shortens_a_pause_by_chance(jitter: float, least: float) -> None:
    found = {pause_s(1, 0.5, 9.0, jitter=jitter) for _ in range(100)}

    assert len(found) > 1
    assert all(least <= pause <= 1.0 for pause in found)

"""Sizes, times and long texts as people read them."""

import pytest
from hypothesis import given, strategies as st

from delkalakedb.model.display import (
    count_of,
    cut_end,
    cut_middle,
    format_change,
    format_minute,
    format_size,
    format_span,
    listed,
    text_width,
    wrapped,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (3_174, "3.1 KB"),
        (1_048_575, "1.0 MB"),
        (-2_097_152, "-2.0 MB"),
        (5 * 1024**6, "5.0 EB"),
    ],
)
def test_size_is_short(size: int, text: str) -> None:
    assert format_size(size) == text


def test_time_is_to_the_minute_in_utc() -> None:
    assert format_minute(1_763_433_419_000) == "2025-11-18 02:36"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.34, "0.3 s"), (12.4, "12 s"), (300, "5 min"), (9_000, "2.5 h")],
)
def test_duration_is_short(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


def test_change_of_files_names_only_what_changed() -> None:
    minus = "\N{MINUS SIGN}"

    assert format_change(1, 1) == f"+1 {minus}1 files"
    assert format_change(1, 0) == "+1 file"
    assert format_change(0, 3) == f"{minus}3 files"
    assert format_change(0, 0) == "-"


def test_nouns_and_lists_have_their_forms() -> None:
    assert [count_of(n, "file") for n in (0, 1, 1200)] == [
        "0 files",
        "1 file",
        "1,200 files",
    ]
    assert count_of(2, "log entry") == "2 log entries"
    assert [listed(["a"]), listed(["a", "b", "c"])] == ["a", "a, b and c"]


TEXTS = st.text(st.sampled_from("ab/ é表e\N{COMBINING ACUTE ACCENT}"), max_size=40)


@given(TEXTS, st.integers(3, 30))
def test_cut_text_fits_and_keeps_its_ends(text: str, width: int) -> None:
    end, middle = cut_end(text, width), cut_middle(text, width)

    assert text_width(end) <= width
    assert text_width(middle) <= width
    if text_width(text) <= width:
        assert end == middle == text
    else:
        assert text.startswith(end.removesuffix("…"))
        start, _, rest = middle.partition("…")
        assert text.startswith(start)
        assert text.endswith(rest)


@given(st.lists(st.text("abc", min_size=1, max_size=12), min_size=1))
def test_wrapped_text_keeps_words_that_fit(words: list[str]) -> None:
    lines = wrapped(" ".join(words), 12)

    assert " ".join(lines).split() == words
    assert max(map(len, lines)) <= 12

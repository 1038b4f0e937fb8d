"""Which columns of a table a terminal shows, and how wide they are."""

from hypothesis import given, strategies as st

from delkalakedb.cli.columns import GAP, ShownColumn, fields_of, fit

KINDS = st.sampled_from(["text", "size", "time", "path", "prose", "state", "data"])
COLUMNS = st.lists(
    st.tuples(KINDS, st.none() | st.integers(0, 5), st.integers(1, 90)),
    min_size=1,
    max_size=9,
)


@given(COLUMNS, st.integers(60, 200))
def test_table_fits_its_room(
    given: list[tuple[str, int | None, int]], room: int
) -> None:
    columns = [
        ShownColumn(str(i), kind=k, priority=p) for i, (k, p, _) in enumerate(given)
    ]
    needed = [width for *_, width in given]

    layout = fit(columns, needed, room)

    widths = layout.widths
    assert widths
    assert sum(widths.values()) + GAP * (len(widths) - 1) <= room
    assert list(widths) == sorted(widths)
    assert layout.left_out == len(columns) - len(widths)
    assert all(width <= needed[i] for i, width in widths.items())
    cut = [i for i, width in widths.items() if width < needed[i]]
    assert all(
        columns[i].form in ("text", "path", "prose", "data") or needed[i] > room
        for i in cut
    )


def test_least_important_column_is_left_out() -> None:
    columns = [
        ShownColumn("name"),
        ShownColumn("a_ms", priority=9),
        ShownColumn("size_bytes"),
    ]

    assert list(fit(columns, [16, 30, 10], 60).widths) == [0, 1, 2]
    assert list(fit(columns, [20, 30, 10], 60).widths) == [0, 2]
    assert list(fit(columns, [40, 30, 10], None).widths) == [0, 1, 2]


def test_column_of_several_fields_is_several_columns_in_csv() -> None:
    change = ShownColumn("change", fields=("added", "removed"), show=str)

    assert fields_of(["version", change]) == ["version", "added", "removed"]

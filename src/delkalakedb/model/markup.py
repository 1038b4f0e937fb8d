"""HTML for notebooks: small tables without scripts, in which every text is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import TypeVar

from delkalakedb.model.display import cut_end
from delkalakedb.settings import redact

_T = TypeVar("_T")

# rows of a table, and characters of a text
_MOST_ROWS = 50
_MOST_CHARS = 500
_CELL = "text-align: left; padding: 2px 12px 2px 0; vertical-align: top"
_STATES = {
    "ok": "#1a7f37",
    "published": "#1a7f37",
    "pending": "#9a6700",
    "held": "#9a6700",
    "differs": "#cf222e",
    "diverged": "#cf222e",
    "failed": "#cf222e",
}


class StateWord(str):
    """A state in one word, which is shown in its colour."""

    __slots__ = ()


def card(title: str, fields: Mapping[str, object], below: str = "") -> str:
    """Return a title above the names and values of `fields`, and other HTML below."""
    rows = "".join(
        f'<tr><th style="{_CELL}; font-weight: normal; opacity: 0.7">{_text(name)}</th>'
        f'<td style="{_CELL}">{_text(value)}</td></tr>'
        for name, value in fields.items()
    )
    table = f"<table>{rows}</table>" if rows else ""
    return f"<div><div><b>{_text(title)}</b></div>{table}{below}</div>"


def grid(
    titles: Sequence[str], rows: Iterable[Sequence[object]], more: int | None = None
) -> str:
    """Return a table, of which at most 50 rows are shown.

    Args:
        titles: the titles of the columns.
        rows: the texts of the cells.
        more: how many rows there are beyond `rows`; None if `rows` is all of them.
    """
    left = iter(rows)
    shown = list(islice(left, _MOST_ROWS))
    unseen = sum(1 for _ in left) + (more or 0)
    head = "".join(f'<th style="{_CELL}">{_text(title)}</th>' for title in titles)
    body = "".join(
        "<tr>"
        + "".join(f'<td style="{_CELL}">{_text(cell)}</td>' for cell in row)
        + "</tr>"
        for row in shown
    )
    end = f'<div style="opacity: 0.7">… and {unseen:,} more</div>' if unseen else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{end}"


def _text(value: object) -> str:
    text = "" if value is None else redact(str(value))
    shown = escape("".join(c for c in cut_end(text, _MOST_CHARS) if c.isprintable()))
    colour = _STATES.get(text.split(",")[0]) if isinstance(value, StateWord) else None
    # In an element of its own, a text can't change the direction of its neighbours.
    style = f' style="color: {colour}"' if colour else ""
    return f"<bdi{style}>{shown}</bdi>"


class Listing(list[_T]):
    """A list that a notebook shows as a table."""

    @staticmethod
    def _row(item: _T) -> Mapping[str, object]:
        """Return the cells of an item, by the titles of their columns."""
        return {"": item}

    def _repr_html_(self) -> str:
        rows = [self._row(item) for item in self[: _MOST_ROWS + 1]]
        titles = dict.fromkeys(title for row in rows for title in row)
        # What stays beyond these rows is only counted.
        more = max(0, len(self) - len(rows))
        return grid([*titles], ([row.get(t) for t in titles] for row in rows), more)

"""Relations: queries of a catalog's tables, which run when their rows are read."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from delkalakedb.catalog import CatalogOrUri, using_catalog
from delkalakedb.model.display import count_of, cut_end, text_width
from delkalakedb.query.duck import Selected
from delkalakedb.query.selection import Params, select

if TYPE_CHECKING:
    import polars as pl

# rows in a batch; a tenth of them costs a tenth more time
_BATCH_ROWS = 100_000
# rows that `show` and a notebook print
_SHOWN_ROWS = 20
# characters of a printed value
_SHOWN_WIDTH = 40


class Relation:
    """The rows of a query, read anew by each method that returns them.

    The tables are read as they are together at that moment, unless the query names
    versions or times.

    Args:
        catalog: an open catalog, or the URI of one.
        text: a SELECT, WITH, FROM, VALUES, DESCRIBE or SUMMARIZE, in DuckDB's SQL.
        params: values for the placeholders `?` and `$1`, or by name for `$name`.
        storage_options: of the tables' object stores.

    Examples:
        >>> catalog = dk.connect("deltasql://sqlite/meta.db")
        >>> query = "SELECT city FROM sales WHERE id = $id"
        >>> rows = dk.Relation(catalog, query, {"id": 3})
        >>> rows.columns, rows.fetchall()
        (['city'], [('Kyiv',)])
    """

    def __init__(
        self,
        catalog: CatalogOrUri,
        text: str,
        params: Params | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._catalog = catalog
        self._text = text
        self._params = params
        self._storage_options = storage_options

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        with self._selected(limit=0) as rows:
            return list(rows.schema.names)

    def arrow(self) -> pa.Table:
        """Return the rows as an Arrow table.

        Returns:
            The rows.

        Raises:
            QueryError: The query can't be parsed, or fails while it reads rows.
            TableNotFoundError: The catalog has no such table.

        Examples:
            >>> query = "SELECT max(id) AS id FROM sales"
            >>> rows = dk.sql(query, "deltasql://sqlite/meta.db")
            >>> rows.arrow().to_pylist()
            [{'id': 3}]
        """
        with self._selected() as rows:
            return pa.Table.from_batches(rows.batches, rows.schema)

    @contextmanager
    def reader(self) -> Iterator[pa.RecordBatchReader]:
        """Yield the rows as a stream of Arrow batches.

        Yields:
            The stream, whose rows are computed while they are read.

        Raises:
            QueryError: The query can't be parsed, or fails while it reads rows.
            TableNotFoundError: The catalog has no such table.

        Examples:
            >>> rows = dk.sql("SELECT id FROM sales", "deltasql://sqlite/meta.db")
            >>> with rows.reader() as batches:
            ...     sum(batch.num_rows for batch in batches)
            3
        """
        with self._selected() as rows:
            yield pa.RecordBatchReader.from_batches(rows.schema, rows.batches)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows as tuples.

        Returns:
            The rows.

        Raises:
            QueryError: The query can't be parsed, or fails while it reads rows.
            TableNotFoundError: The catalog has no such table.

        Examples:
            >>> query = "SELECT sum(amount) FROM sales VERSION AS OF 0"
            >>> rows = dk.sql(query, "deltasql://sqlite/meta.db")
            >>> rows.fetchall()
            [(30.0,)]
        """
        with self._selected() as rows:
            return [row for batch in rows.batches for row in _tuples(batch)]

    def df(self) -> Any:
        """Return the rows as a pandas DataFrame.

        Returns:
            The rows.

        Raises:
            QueryError: The query can't be parsed, or fails while it reads rows.
            TableNotFoundError: The catalog has no such table.

        Examples:
            >>> rows = dk.sql("SELECT id FROM sales", "deltasql://sqlite/meta.db")
            >>> rows.df().shape
            (3, 1)
        """
        return self.arrow().to_pandas()

    def pl(self) -> "pl.DataFrame":
        """Return the rows as a polars DataFrame.

        Returns:
            The rows.

        Raises:
            QueryError: The query can't be parsed, or fails while it reads rows.
            TableNotFoundError: The catalog has no such table.

        Examples:
            >>> rows = dk.sql("SELECT id FROM sales", "deltasql://sqlite/meta.db")
            >>> rows.pl().shape
            (3, 1)
        """
        import polars

        found = polars.from_arrow(self.arrow())
        assert isinstance(found, polars.DataFrame)
        return found

    def show(self, limit: int = _SHOWN_ROWS) -> None:
        """Print the first rows as a table.

        Args:
            limit: at most so many rows.

        Raises:
            QueryError: The query can't be parsed, or fails while it reads rows.
            TableNotFoundError: The catalog has no such table.

        Examples:
            >>> rows = dk.sql("SELECT id, city FROM sales", "deltasql://sqlite/meta.db")
            >>> rows.show(limit=1)
            id  city
            ...
            … more than 1 row
        """
        print(self._shown(limit))

    def __repr__(self) -> str:
        return self._shown(_SHOWN_ROWS)

    def _shown(self, limit: int) -> str:
        with self._selected(limit=limit + 1) as rows:
            names = list(rows.schema.names)
            found = [row for batch in rows.batches for row in _tuples(batch)]
        cells = [[_cell(value) for value in row] for row in found[:limit]]
        lines = [*_aligned([names, *cells])]
        if len(found) > limit:
            lines.append(f"… more than {count_of(limit, 'row')}")
        return "\n".join(lines)

    @contextmanager
    def _selected(self, limit: int | None = None) -> Iterator[Selected]:
        with (
            using_catalog(self._catalog) as catalog,
            select(
                catalog,
                self._text,
                params=self._params,
                limit=limit,
                batch_rows=_BATCH_ROWS,
                storage_options=self._storage_options,
            ) as rows,
        ):
            yield rows


def sql(
    text: str,
    catalog: CatalogOrUri,
    *,
    params: Params | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Relation:
    """Return the rows of a query over the tables of a catalog.

    Args:
        text: a SELECT, WITH, FROM, VALUES, DESCRIBE or SUMMARIZE, in DuckDB's SQL.
            `sales@3`, `sales VERSION AS OF 3` and `sales TIMESTAMP AS OF '2026-01-31'`
            read the table at a version or a time.
        catalog: an open catalog, or the URI of one.
        params: values for the placeholders `?` and `$1`, or by name for `$name`.
        storage_options: of the tables' object stores.

    Returns:
        The query, which runs when its rows are read.

    Raises:
        QueryError: When the rows are read, if the query can't be parsed or fails.
        TableNotFoundError: When the rows are read, if the catalog has no such table.

    Examples:
        >>> query = "SELECT city, amount FROM sales WHERE id > ? ORDER BY id"
        >>> dk.sql(query, "deltasql://sqlite/meta.db", params=[1]).fetchall()
        [('Rome', 20.0), ('Kyiv', 30.0)]
    """
    return Relation(catalog, text, params, storage_options)


def _tuples(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _cell(value: Any) -> str:
    text = "NULL" if value is None else str(value)
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return cut_end(shown, _SHOWN_WIDTH)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(text_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        padded = (text + " " * (width - text_width(text)) for text, width in cells)
        yield "  ".join(padded).rstrip()

"""Checks of the tables: Spark reads the catalog, DuckDB reads `_delta_log`."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import deltalake
import duckdb
from pyspark.sql import DataFrame, SparkSession

import delkalakedb as dk
from delkalakedb import spark as dks

from .feed import Feed
from .layers import TABLES, Lake

__all__ = ["CHECKS", "Check", "Judge"]

CHECKS = 8

# Valid in Spark SQL and in DuckDB.
_SUMS = {
    "bronze": "count(*), sum(order_id), sum(customer_id), count(channel)",
    "silver": "count(*), sum(order_id), sum(customer_id), sum(amount)",
    "gold": "count(*), sum(orders), sum(web_orders), sum(customers), sum(revenue)",
}
_READABLE = "order_id IS NOT NULL AND try_cast(amount AS DECIMAL(12,2)) IS NOT NULL"
_GOLD = """
    SELECT day, shop, count(*), count(*) FILTER (channel = 'web'),
           count(DISTINCT customer_id), sum(amount)
    FROM silver GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True)
class Check:
    """A statement about the tables, and whether it is true."""

    name: str
    passed: bool
    found: str

    def __str__(self) -> str:
        return f"{self.name}: {self.found}"


@dataclass
class Judge:
    """The checks of a lake, which read it with Spark and with DuckDB."""

    spark: SparkSession
    lake: Lake
    feed: Feed

    def checks(self) -> Iterator[Check]:
        """Yield the results of the checks, `CHECKS` in all."""
        yield self._complete()
        yield self._reconciled()
        yield self._added_up()
        yield self._atomic()
        for name in TABLES:
            yield self._mirrored(name)
        yield self._recomputed()

    def rows(self, name: str) -> int:
        """Return the number of rows that Spark reads from the table `name`."""
        return int(self._sums[name][0])

    def effect_of_late(self) -> str:
        """Return a sentence on how the late events changed the totals in gold."""
        before = self._sum(self._read("gold", version=0), "gold")
        after = self._sums["gold"]
        return (
            f"late events: {after[1] - before[1]:+,} orders, "
            f"{after[4] - before[4]:+,} revenue"
        )

    def _complete(self) -> Check:
        found = self.rows("bronze")
        return Check("bronze has every event", found == self.feed.rows, f"{found:,}")

    def _reconciled(self) -> Check:
        query = (
            f"SELECT count(DISTINCT order_id) FILTER ({_READABLE}), "
            f"count(*) FILTER (NOT ({_READABLE})) FROM bronze"
        )
        ((orders, unreadable),) = self._duckdb.sql(query).fetchall()
        repeated = self.rows("bronze") - self.rows("silver") - unreadable
        return Check(
            "silver has every order once",
            orders == self.rows("silver") and repeated >= 0,
            f"{orders:,} orders + {unreadable:,} unreadable + {repeated:,} repeats and "
            "corrections",
        )

    def _added_up(self) -> Check:
        silver, gold = self._sums["silver"], self._sums["gold"]
        same = (silver[0], silver[3]) == (gold[1], gold[4])
        return Check("gold adds up to silver", same, f"revenue {gold[4]:,}")

    def _atomic(self) -> Check:
        with dk.connect(self.lake.catalog) as catalog:
            last = [catalog.snapshot(n).history(1)[0] for n in ("silver", "gold")]
        ids = {commit.transaction_id for commit in last}
        found = " and ".join(f"version {commit.version}" for commit in last)
        return Check("silver and gold changed together", len(ids) == 1, found)

    def _mirrored(self, name: str) -> Check:
        """Plain deltalake reads the table's log to the same rows, at its version."""
        query = f"SELECT {_SUMS[name]} FROM {name}"
        (found,) = self._duckdb.sql(query).fetchall()
        report = dk.verify(self.lake.uri(name))
        assert not isinstance(report, list)
        same = found == self._sums[name] and report.ok
        current = report.published_version == report.ratified_version
        version = f"version {report.published_version}"
        return Check(f"deltalake reads the same {name}", same and current, version)

    def _recomputed(self) -> Check:
        gold = self._read("gold").orderBy("day", "shop").collect()
        same = [tuple(row) for row in gold] == self._duckdb.sql(_GOLD).fetchall()
        return Check("DuckDB adds up the same gold", same, f"{len(gold):,} rows")

    def _read(self, name: str, **options: Any) -> DataFrame:
        return dks.read(self.spark, self.lake.uri(name), **options)

    def _sum(self, rows: DataFrame, name: str) -> tuple[Any, ...]:
        rows.createOrReplaceTempView("summed")
        (found,) = self.spark.sql(f"SELECT {_SUMS[name]} FROM summed").collect()
        return tuple(found)

    @cached_property
    def _sums(self) -> dict[str, tuple[Any, ...]]:
        return {name: self._sum(self._read(name), name) for name in TABLES}

    @cached_property
    def _duckdb(self) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect()
        for name in TABLES:
            location = dk.DeltaTable(self.lake.uri(name)).table_uri
            mirrored = deltalake.DeltaTable(location).to_pyarrow_dataset()
            connection.register(name, mirrored)
        return connection

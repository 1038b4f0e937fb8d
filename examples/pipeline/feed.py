"""Generated events about the orders of shops, with the defects of real data.

Each event is computed from its number alone. Some events are duplicates, some can't be
parsed, and those of the last day are late: corrections of orders, and orders of earlier
days.
"""

from dataclasses import dataclass
from datetime import date, timedelta

from pyspark.sql import Column, DataFrame, SparkSession, functions as sf

__all__ = ["SMALLEST", "Feed"]

SMALLEST = 1000

_FIRST_DAY = date(2026, 1, 1)
_DAY_SECONDS = 24 * 60 * 60
_SHOPS = ("bonn", "kyiv", "lima", "lviv", "oslo", "pune", "rome", "turku")


@dataclass(frozen=True)
class Feed:
    """A number of events: most arrive on their day, and one in twenty arrives late.

    Attributes:
        rows: the number of events.
        days: the number of days on which events arrive in time.
        files: the number of files of each day.
    """

    rows: int
    days: int = 8
    files: int = 8

    @property
    def late_rows(self) -> int:
        """The number of late events."""
        return self.rows // 20

    @property
    def history_rows(self) -> int:
        """The number of events that arrive on their day."""
        return self.rows - self.late_rows

    @property
    def late_day(self) -> date:
        """The day on which the late events arrive."""
        return _FIRST_DAY + timedelta(days=self.days)

    def day_rows(self, day: int) -> range:
        """Return the numbers of the events of `day`."""
        first = day * self._per_day
        return range(first, min(first + self._per_day, self.history_rows))

    def day(self, spark: SparkSession, day: int) -> DataFrame:
        """Return the events that arrive on `day`."""
        n = sf.col("id")
        # Every fiftieth event is a duplicate of the previous one.
        order = sf.when(n % 50 == 7, n - 1).otherwise(n)
        placed = _moment(_div(order, self._per_day), order)
        rows = self._events(spark, self.day_rows(day), order, placed, placed)
        rows = rows.withColumn("arrived", sf.lit(_FIRST_DAY + timedelta(days=day)))
        # From the middle of the days on, the source sends the column `channel`.
        return rows if day >= self.days // 2 else rows.drop("channel")

    def late(self, spark: SparkSession) -> DataFrame:
        """Return the late events, which are about orders of the last days."""
        n = sf.col("id")
        back = _hashed(n, self._per_day * 3 // 2)
        is_new = n % 2 == 1
        order = sf.when(is_new, n).otherwise(self.history_rows - 1 - back)
        day = sf.when(is_new, self.days - 1 - _div(n, 2) % 2)
        placed = _moment(day.otherwise(_div(order, self._per_day)), order)
        numbers = range(self.history_rows, self.rows)
        changed = _seconds(self.days) + n - self.history_rows
        rows = self._events(
            spark, numbers, order, placed, sf.timestamp_seconds(changed)
        )
        return rows.withColumn("arrived", sf.lit(self.late_day))

    @property
    def _per_day(self) -> int:
        return -(-self.history_rows // self.days)

    def _events(
        self,
        spark: SparkSession,
        numbers: range,
        order: Column,
        placed: Column,
        changed: Column,
    ) -> DataFrame:
        n = sf.col("id")
        shops = sf.array(*map(sf.lit, _SHOPS))
        shop = sf.get(shops, _hashed(order, len(_SHOPS)).cast("int"))
        price = ((_hashed(n - n % 50, 9_000) + _hashed(order, 900)) / 100).cast(
            "decimal(12,2)"
        )
        events = spark.range(numbers.start, numbers.stop, numPartitions=self.files)
        return events.select(
            sf.when(n % 1000 != 19, order).alias("order_id"),
            _hashed(order, 100_000).alias("customer_id"),
            sf.when(n % 3 == 0, sf.concat(sf.lit(" "), sf.upper(shop)))
            .otherwise(shop)
            .alias("shop"),
            sf.when(n % 100 == 13, "n/a")
            .otherwise(price.cast("string"))
            .alias("amount"),
            placed.alias("ordered_at"),
            changed.alias("changed_at"),
            sf.when(_hashed(order, 3) == 0, "shop").otherwise("web").alias("channel"),
        )


def _hashed(value: Column, below: int) -> Column:
    return sf.pmod(sf.xxhash64(value), sf.lit(below))


def _div(value: Column, by: int) -> Column:
    return sf.floor(value / by)


def _moment(day: Column, order: Column) -> Column:
    """Return the time of an order: a second of `day`, chosen by a hash."""
    return sf.timestamp_seconds(_seconds(day) + _hashed(order, _DAY_SECONDS))


def _seconds(day: Column | int) -> Column:
    start = (_FIRST_DAY - date(1970, 1, 1)).days
    return (sf.lit(start) + day) * _DAY_SECONDS

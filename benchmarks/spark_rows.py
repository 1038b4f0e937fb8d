"""The rows that the Spark benchmarks write and read: about 50 bytes each in Parquet."""

from bars import MILLION
from pyspark.sql import DataFrame, SparkSession

_ROWS_PER_FILE = MILLION
# Eight columns; `id` ascends, and the 16 days are scattered.
_COLUMNS = (
    "id",
    "date_add(DATE '2026-01-01', CAST(pmod(noise, 16) AS INT)) AS day",
    "CAST(pmod(noise, 1000000) AS INT) AS customer",
    "CAST(pmod(noise, 100) AS INT) AS count",
    "pmod(noise, 10000000) / 100 AS amount",
    "concat('city-', pmod(noise, 5000)) AS city",
    "timestamp_micros(1767225600000000 + id * 997) AS ts",
    "concat(hex(noise), hex(xxhash64(noise))) AS note",
)


def rows(session: SparkSession, count: int) -> DataFrame:
    """Return `count` rows, a million for each file."""
    return made(session.range(0, count, 1, max(2, count // _ROWS_PER_FILE)))


def made(ids: DataFrame, salt: int = 0) -> DataFrame:
    """Return the columns that belong to the given ids."""
    return ids.selectExpr("id", f"xxhash64(id, {salt}) AS noise").selectExpr(*_COLUMNS)

"""Statements and clauses that aren't supported, and what to call instead."""

from collections.abc import Mapping

from delkalakedb.errors import QueryError
from delkalakedb.spark.sparksql.statement import Cursor

_ONE_SCHEMA = "a catalog has one schema, default"
_TYPE = "a column's type can't be changed; add a column instead"
STATEMENTS = {
    "ANALYZE": "statistics are collected with every write",
    "COMMENT ON COLUMN": "use ALTER TABLE ... ALTER COLUMN ... COMMENT",
    "COMMENT ON SCHEMA": _ONE_SCHEMA,
    "CREATE DATABASE": _ONE_SCHEMA,
    "CREATE SCHEMA": _ONE_SCHEMA,
    "CREATE VIEW": "use CREATE TEMP VIEW",
    "CREATE OR REPLACE VIEW": "use CREATE OR REPLACE TEMP VIEW",
    "DROP DATABASE": _ONE_SCHEMA,
    "DROP SCHEMA": _ONE_SCHEMA,
    "DROP VIEW": "use spark.sql for views",
    "FSCK": "use delkalakedb.verify, or deltasql verify",
    "MSCK": "partitions are known from the log; use deltasql verify to check files",
    "REFRESH": "every statement reads the newest version",
    "SHOW CREATE TABLE": "use DESCRIBE TABLE EXTENDED and SHOW TBLPROPERTIES",
    "SHOW DATABASES": _ONE_SCHEMA,
    "SHOW PARTITIONS": "use SELECT DISTINCT of the partition columns",
    "SHOW SCHEMAS": _ONE_SCHEMA,
    "TRUNCATE": "use DELETE FROM without a condition",
    "USE": f"{_ONE_SCHEMA}; delkalakedb.spark.use chooses the catalog",
}
CHANGES = {
    "ADD PARTITION": "write rows with the partition's values",
    "DROP PARTITION": "use DELETE FROM with a condition on the partition columns",
    "RECOVER PARTITIONS": "partitions are known from the log",
    "REPLACE COLUMNS": "use ADD COLUMNS, DROP COLUMNS and RENAME COLUMN",
    "SET LOCATION": "a name in the catalog stays with its table; use RENAME TO",
    "SET SERDE": "Delta tables have no SerDe",
    "SYNC IDENTITY": "the generator takes no note of values that rows bring themselves",
}
COLUMN_CHANGES = {
    "SET DATA TYPE": _TYPE,
    "SET NOT NULL": "use ALTER TABLE ... ADD CONSTRAINT x CHECK (column IS NOT NULL)",
    "SYNC IDENTITY": CHANGES["SYNC IDENTITY"],
    "TYPE": _TYPE,
}


def check_supported(cursor: Cursor, refusals: Mapping[str, str]) -> None:
    """Raise `QueryError` if the next keywords are in a table of refusals."""
    for words, instead in refusals.items():
        if cursor.sees(words):
            raise QueryError(f"{words} isn't supported here: {instead}")

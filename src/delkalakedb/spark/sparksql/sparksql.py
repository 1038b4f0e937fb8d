"""One SQL statement, run on a session whose tables are a catalog's."""

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession

from delkalakedb.errors import QueryError
from delkalakedb.spark.exceptions import delta_spark_errors
from delkalakedb.spark.session import check_spark
from delkalakedb.spark.sparksql.alter_statements import run_alter
from delkalakedb.spark.sparksql.maintenance import (
    run_convert,
    run_describe,
    run_generate,
    run_optimize,
    run_reorg,
    run_restore,
    run_show,
    run_vacuum,
)
from delkalakedb.spark.sparksql.refusals import STATEMENTS, check_supported
from delkalakedb.spark.sparksql.relations import Session, run_query
from delkalakedb.spark.sparksql.row_statements import (
    run_delete,
    run_insert,
    run_merge,
    run_update,
)
from delkalakedb.spark.sparksql.statement import Args, Cursor, Part, Statement
from delkalakedb.spark.sparksql.table_statements import (
    run_comment,
    run_create,
    run_drop,
)

_QUERIES = ("SELECT", "VALUES", "FROM", "TABLE", "(")
_STATEMENTS: Mapping[str, Callable[[Session, Cursor], DataFrame]] = {
    "ALTER TABLE": run_alter,
    "COMMENT": run_comment,
    "CONVERT": run_convert,
    "CREATE": run_create,
    "DELETE": run_delete,
    "DESC": run_describe,
    "DESCRIBE": run_describe,
    "DROP TABLE": run_drop,
    "GENERATE": run_generate,
    "INSERT": run_insert,
    "MERGE": run_merge,
    "OPTIMIZE": run_optimize,
    "REORG": run_reorg,
    "REPLACE": run_create,
    "RESTORE": run_restore,
    "SHOW": run_show,
    "UPDATE": run_update,
    "VACUUM": run_vacuum,
}


def sql(
    spark: SparkSession,
    text: str,
    args: Args | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Run a SQL statement on the tables of the session's catalog.

    Args:
        spark: the Spark session.
        text: a query, or a statement that changes, describes or maintains a table, in
            the SQL of Spark and Delta Spark.
        args: the values of parameters: a dict for `:name`, a list for `?`.
        storage_options: the options of the tables' object stores.

    Returns:
        The rows of a query, which stay at the versions that the tables have now, or the
        result that Delta Spark has for the statement.

    Raises:
        QueryError: The statement can't be parsed or isn't supported.

    Examples:
        >>> dks.use(spark, "deltasql://sqlite/meta.db")
        >>> dks.sql(spark, "SELECT city FROM sales WHERE id = :id", {"id": 3}).collect()
        [Row(city='Kyiv')]
    """
    check_spark(spark)
    with delta_spark_errors():
        session = Session(spark, storage_options)
        return _run(session, Statement(text, args).whole)


def _run(session: Session, statement: Part) -> DataFrame:
    cursor = Cursor(statement)
    if cursor.done:
        raise QueryError("the statement is empty")
    if cursor.sees("WITH"):
        cursor.until("INSERT", *_QUERIES[:3])
        if cursor.take("INSERT"):
            first, at = statement.first, cursor.at - 1
            expressions = Part(statement.statement, first, at)
            return run_insert(session, cursor, expressions)
        return run_query(session, statement)
    if any(map(cursor.sees, _QUERIES)):
        return run_query(session, statement)
    check_supported(cursor, STATEMENTS)
    words = cursor.take(*_STATEMENTS)
    if words is None:
        begins = " ".join(token.text for token in statement.tokens[:2])
        known = ", ".join(sorted({*_STATEMENTS} | {"SELECT", "WITH"}))
        raise QueryError(
            f"{begins}: this statement isn't supported on tables of a catalog; for "
            f"tables and views of Spark itself, use spark.sql. Supported: {known}"
        )
    return _STATEMENTS[words](session, cursor)

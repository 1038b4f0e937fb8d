"""SQL statements on the tables of a catalog, run by Spark and the table API."""

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, ParseException

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import (
    CommitFailedError,
    DeltaError,
    QueryError,
    SchemaMismatchError,
    TableNotFoundError,
)
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.spark.sparksql.relations import Session
from delkalakedb.spark.sparksql.row_statements import run_insert
from delkalakedb.spark.sparksql.statement import Cursor, Statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[Any, ...]]


class Sql:
    """A session with a catalog, and short ways to run statements."""

    def __init__(self, session: "SparkSession", catalog_uri: str) -> None:
        self.session = session
        self.catalog_uri = catalog_uri

    def __call__(self, text: str, args: Any = None) -> Rows:
        return [tuple(row) for row in dks.sql(self.session, text, args).collect()]

    def uri(self, name: str) -> str:
        return format_uri(parse_uri(self.catalog_uri).with_table(name))

    def table(self, name: str) -> dk.DeltaTable:
        return dk.DeltaTable(self.uri(name))


@pytest.fixture
def sql(spark: "SparkSession", catalog_uri: str) -> Sql:
    """A session of its own whose catalog is `catalog_uri`."""
    own = spark.newSession()
    dks.use(own, catalog_uri)
    return Sql(own, catalog_uri)


@pytest.fixture
def sales(sql: Sql) -> Sql:
    """A catalog with the table sales at version 2."""
    days = pa.table({"id": [1, 2, 3], "day": ["mon", "tue", "tue"], "n": [9, 12, 7]})
    dk.write_deltalake(sql.uri("sales"), days, partition_by="day")
    more = pa.table({"id": [4, 5], "day": ["wed", None], "n": [1, None]})
    dk.write_deltalake(sql.uri("sales"), more, mode="append")
    dk.write_deltalake(sql.uri("sales"), more, mode="append", partition_by="day")
    return sql


def test_queries_read_tables_at_their_versions_and_views(sales: Sql) -> None:
    session = sales.session
    session.range(2).selectExpr("id + 1 AS id").createOrReplaceTempView("wanted")
    session.range(9).createOrReplaceTempView("hidden")
    dk.write_deltalake(sales.uri("hidden"), pa.table({"x": [1]}))
    location = sales.table("sales").table_uri
    last = "SELECT count(*), max(id) FROM"
    queries: list[tuple[str, Any, Rows]] = [
        (f"{last} sales", None, [(7, 5)]),
        (f"{last} Sales s WHERE s.day = 'tue'", None, [(2, 3)]),
        (f"{last} default.sales WHERE sales.id > 4;", None, [(2, 5)]),
        (f"{last} delta.`{location}`", None, [(7, 5)]),
        (f"{last} deltasql.`{sales.uri('sales')}` VERSION AS OF 1", None, [(5, 5)]),
        (f"{last} sales VERSION AS OF 0 AS s WHERE s.n < 12", None, [(2, 3)]),
        (f"{last} sales VERSION AS OF :v WHERE id < :i", {"v": "1", "i": 4}, [(3, 3)]),
        (f"{last} sales FOR VERSION AS OF ? WHERE id < ?", [1, 2], [(1, 1)]),
        (f"{last} sales TIMESTAMP AS OF current_timestamp()", None, [(7, 5)]),
        (f"{last} sales TIMESTAMP AS OF '2999-01-01' x", None, [(7, 5)]),
        ("SELECT n FROM sales JOIN wanted USING (id) ORDER BY n", None, [(9,), (12,)]),
        ("SELECT count(*) FROM hidden", None, [(9,)]),
        ("WITH sales AS (SELECT 5 AS n) SELECT * FROM sales", None, [(5,)]),
        (
            "WITH t AS (SELECT * FROM sales), sales AS (SELECT max(id) FROM t) "
            "SELECT * FROM sales",
            None,
            [(5,)],
        ),
        (
            "SELECT o.id, (SELECT max(n) FROM sales i WHERE i.day = o.day) AS m FROM "
            "sales o WHERE EXISTS (SELECT 1 FROM wanted w WHERE w.id = o.id) "
            "ORDER BY id",
            None,
            [(1, 9), (2, 12)],
        ),
        (
            "SELECT a.id FROM sales a, sales VERSION AS OF 0 b WHERE a.id = b.id "
            "AND a.n > 8 UNION SELECT id + 10 FROM sales WHERE id = 4 ORDER BY id",
            None,
            [(1,), (2,), (14,)],
        ),
        (
            "SELECT day, sum(n) AS s FROM sales TABLESAMPLE (100 PERCENT) "
            "WHERE sales.day IN ('mon', 'tue') GROUP BY day HAVING s > 9 ORDER BY s",
            None,
            [("tue", 19)],
        ),
        (
            "SELECT /*+ BROADCAST(s) */ '{id} FROM sales -- ', \"a'b\", :t, -- FROM x\n"
            "r'\\' FROM sales s WHERE id = 1",
            {"t": "it's \\ {0} 😀"},
            [("{id} FROM sales -- ", "a'b", "it's \\ {0} 😀", "\\")],
        ),
        ("TABLE sales VERSION AS OF 0 ORDER BY id LIMIT 1", None, [(1, "mon", 9)]),
        ("VALUES (1), (2)", None, [(1,), (2,)]),
        ("FROM sales SELECT id WHERE n = 7", None, [(3,)]),
    ]

    assert [sales(query, args) for query, args, _ in queries] == [
        rows for _, _, rows in queries
    ]


def test_query_skips_files_by_its_condition_and_stays_at_its_version(
    sales: Sql,
) -> None:
    few = dks.sql(sales.session, "SELECT s.* FROM sales s WHERE s.id >= :i", {"i": 4})
    all_ = dks.sql(sales.session, "SELECT * FROM sales WHERE id > 0 OR true")

    sales("DELETE FROM sales")

    assert len(few.inputFiles()) < len(all_.inputFiles())
    assert (few.count(), all_.count()) == (4, 7)
    assert sales("SELECT count(*) FROM sales") == [(0,)]


def test_rows_are_changed_by_statements(sales: Sql) -> None:
    sales("INSERT OVERWRITE sales VALUES (1, 'mon', 1), (2, 'tue', 2), (3, 'tue', 3)")

    updated = sales(
        "UPDATE sales AS s SET n = CASE WHEN s.n > 2 THEN 30 ELSE 20 END /* c */, "
        "`day` = :d WHERE s.day = 'tue' -- end",
        {"d": "it's \\ ${x}"},
    )
    deleted = sales("DELETE FROM sales WHERE sales.id = ? OR id = ?", [2, -1])
    merged = sales(
        """
        MERGE INTO sales t
        USING (SELECT explode(array(1, 3, 7)) AS id, 'new' AS day) AS s
        ON t.id = s.id
        WHEN MATCHED AND s.id = CASE WHEN true THEN 1 END THEN DELETE
        WHEN MATCHED THEN UPDATE SET t.day = concat(s.day, ' -- WHEN'), n = t.n + 1
        WHEN NOT MATCHED BY TARGET THEN INSERT (id, day, n) VALUES (s.id, s.day, 0)
        """
    )

    assert (updated, deleted, merged) == ([(2,)], [(1,)], [(3, 1, 1, 1)])
    rows = [(3, "new -- WHEN", 31), (7, "new", 0)]
    assert sales("SELECT * FROM sales ORDER BY id") == rows
    merged = sales(
        "MERGE INTO sales USING sales VERSION AS OF 3 AS old ON sales.id = old.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT * "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )
    assert merged == [(4, 1, 1, 2)]
    assert sales("SELECT * FROM sales ORDER BY id") == [
        *[(1, "mon", 1), (2, "tue", 2), (3, "tue", 3)]
    ]
    history = dks.sql(sales.session, "DESCRIBE HISTORY sales LIMIT 3").collect()
    assert [row.operation for row in history] == ["MERGE", "MERGE", "DELETE"]
    assert dk.verify(sales.uri("sales")).ok


def test_rows_are_inserted_by_position_by_name_and_by_partition(sales: Sql) -> None:
    for statement in (
        "INSERT OVERWRITE TABLE sales SELECT 1, 'mon', 1",
        "INSERT INTO sales (day, id) VALUES ('tue', '2'), (null, '3')",
        "INSERT INTO sales BY NAME SELECT 4 AS n, 4 AS ID, 'wed' AS day",
        "INSERT INTO sales PARTITION (day = 'tue') VALUES (5, 5), (6, 6)",
        "INSERT INTO sales PARTITION (day) SELECT 7, 'sun', 7",
        "WITH s AS (SELECT 8 AS id) INSERT INTO sales (id) SELECT id FROM s",
        "INSERT OVERWRITE sales PARTITION (day = 'tue') SELECT 9, 9",
        "INSERT INTO sales REPLACE WHERE id < 2 SELECT id - 9, day, n FROM sales "
        "WHERE id = 9",
    ):
        assert sales(statement) == []
    rows = [
        *[(0, "tue", 9), (3, None, None), (4, "wed", 4), (7, "sun", 7)],
        *[(8, None, None), (9, "tue", 9)],
    ]
    assert sales("SELECT * FROM sales ORDER BY id") == rows

    sales.session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    sales("INSERT OVERWRITE sales VALUES (10, 'tue', 10), (11, 'new', 11)")
    sales("INSERT OVERWRITE sales PARTITION (day = 'wed') VALUES (12, 12)")
    sales("INSERT OVERWRITE sales PARTITION (day) SELECT 13, 'sun', 13")

    assert sales("SELECT id, day FROM sales WHERE id > 3 ORDER BY id") == [
        *[(8, None), (10, "tue"), (11, "new"), (12, "wed"), (13, "sun")]
    ]
    sales.session.conf.set("spark.sql.ansi.enabled", "false")
    with pytest.raises(Exception, match="a value doesn't fit id"):
        sales("INSERT INTO sales VALUES ('x', 'y', 0)")


def test_fields_of_structs_are_inserted_by_name(sales: Sql) -> None:
    sales(
        "CREATE TABLE n (id INT, s STRUCT<a: INT, b: STRING>, l ARRAY<STRUCT<x: INT>>)"
    )
    insert = "INSERT INTO n BY NAME SELECT"

    sales(f"{insert} named_struct('b', '5', 'a', '6') AS s, 1 AS id")
    with pytest.raises(SchemaMismatchError, match="the same fields"):
        sales(f"{insert} 2 AS id, named_struct('a', 1, 'c', 'x') AS s")
    with pytest.raises(SchemaMismatchError, match="the same fields"):
        sales(f"{insert} 2 AS id, array(named_struct('y', 1)) AS l")
    sales(
        "INSERT WITH SCHEMA EVOLUTION INTO n BY NAME "
        "SELECT 3 AS id, named_struct('c', 1, 'b', 'x') AS s"
    )

    assert sales("SELECT id, s.a, s.b, s.c FROM n ORDER BY id") == [
        (1, 6, "5", None),
        (3, None, "x", 1),
    ]


def test_insert_from_the_table_itself_loses_against_other_commits(sales: Sql) -> None:
    statements = (
        "OVERWRITE sales SELECT id + 1, day, n FROM sales WHERE n > 0",
        "INTO sales (id) SELECT max(id) + 1 FROM sales s",
    )
    sessions = [Session(sales.session) for _ in statements]
    assert [session.versions["sales"] for session in sessions] == [2, 2]
    sales("INSERT INTO sales VALUES (70, 'sun', 1)")

    for session, statement in zip(sessions, statements, strict=True):
        with pytest.raises(CommitFailedError):
            run_insert(session, Cursor(Statement(statement).whole))
        sales(f"INSERT {statement}")

    assert sales("SELECT max(id) FROM sales") == [(72,)]


def test_tables_are_created_changed_and_dropped(sql: Sql) -> None:
    create = """
        CREATE TABLE IF NOT EXISTS `odd: name` (
            id BIGINT NOT NULL COMMENT 'it''s, the key',
            `a-b` STRUCT<x: INT, y: ARRAY<DECIMAL(5, 2)>>,
            year INT GENERATED ALWAYS AS (YEAR(day)),
            day DATE
        ) USING delta PARTITIONED BY (year) COMMENT "a 'b'"
        TBLPROPERTIES ('foo' = 'x, (y', delta.appendOnly = false)
    """
    sql(create.replace("`odd: name`", "t"))
    sql("INSERT INTO t (id, day, `a-b`) VALUES (1, '2026-02-03', struct(1, array(2)))")
    sql("CREATE TABLE IF NOT EXISTS t (other INT)")
    with pytest.raises(DeltaError, match="already exists"):
        sql("CREATE TABLE t (other INT)")

    (detail,) = dks.sql(sql.session, "DESCRIBE DETAIL t").collect()
    assert detail.properties == {"foo": "x, (y", "delta.appendOnly": "false"}
    assert (detail.description, detail.partitionColumns) == ("a 'b'", ["year"])
    assert sql("SELECT year, id, `a-b`.y[0] FROM t") == [(2026, 1, Decimal(2))]
    assert sql("DESCRIBE TABLE t") == [
        ("id", "bigint", "it's, the key"),
        ("a-b", "struct<x:int,y:array<decimal(5,2)>>", None),
        ("year", "int", None),
        ("day", "date", None),
        ("# Partition Information", "", ""),
        ("# col_name", "data_type", "comment"),
        ("year", "int", None),
    ]

    for statement in (
        "ALTER TABLE t ADD COLUMNS (more MAP<STRING, INT> COMMENT 'c', `x` INT)",
        "ALTER TABLE t ADD COLUMN `a-b`.z STRING",
        "ALTER TABLE t CHANGE COLUMN x x INT AFTER id",
        "ALTER TABLE t ALTER COLUMN id DROP NOT NULL",
        "ALTER TABLE t ALTER COLUMN x COMMENT 'new' FIRST",
        "ALTER TABLE t ADD CONSTRAINT small CHECK (id < 9 OR id IS NULL)",
        "ALTER TABLE t SET TBLPROPERTIES (a.b = 'c', 'foo' = 'z')",
        "ALTER TABLE t UNSET TBLPROPERTIES IF EXISTS ('delta.appendOnly', nothing)",
    ):
        assert sql(statement) == []
    with pytest.raises(DeltaError, match="CHECK constraint small"):
        sql("INSERT INTO t (id, day) VALUES (10, DATE'2026-01-01')")
    with pytest.raises(DeltaError, match="1 rows in t violate"):
        sql("ALTER TABLE t ADD CONSTRAINT odd CHECK (id > :least)", {"least": 1})
    sql("ALTER TABLE t DROP CONSTRAINT small")
    assert [row[:2] for row in sql("DESCRIBE t")][:6] == [
        *[("x", "int"), ("id", "bigint")],
        ("a-b", "struct<x:int,y:array<decimal(5,2)>,z:string>"),
        *[("year", "int"), ("day", "date"), ("more", "map<string,int>")],
    ]
    properties = dict(sql("SHOW TBLPROPERTIES t"))
    assert (properties["a.b"], properties["foo"]) == ("c", "z")
    assert sql("SHOW TBLPROPERTIES t ('foo')") == [("foo", "z")]
    assert dk.verify(sql.uri("t"), deep=True).ok

    sql("CREATE TABLE copy PARTITIONED BY (year) AS SELECT year, id FROM t")
    sql("CREATE OR REPLACE TABLE copy AS SELECT id AS n, 'x' AS p FROM copy")
    sql("CREATE TEMP VIEW seen AS SELECT * FROM copy")
    sql("ALTER TABLE copy RENAME TO `copy-2`")
    assert sql("SELECT * FROM `copy-2`") == sql("SELECT * FROM seen") == [(1, "x")]
    assert sql("SHOW TABLES LIKE 'c*|seen'") == [
        *[("", "seen", True), ("default", "copy-2", False)]
    ]
    sql("DROP TABLE `copy-2`")
    sql("DROP TABLE IF EXISTS `copy-2`")
    assert ("default", "copy-2", False) not in sql("SHOW TABLES")
    sql("CREATE TABLE `copy-2` (n INT)")
    assert sql("SELECT * FROM `copy-2`") == []


def test_columns_are_generated_defaulted_and_clustered_by_statements(sql: Sql) -> None:
    sql("""
        CREATE TABLE t (
            id BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY 5),
            other BIGINT NOT NULL GENERATED BY DEFAULT AS IDENTITY,
            page STRING DEFAULT concat('ho', 'me') COMMENT 'c, d',
            n INT
        ) CLUSTER BY (n)
    """)
    sql("INSERT INTO t (n) VALUES (1), (2)")
    sql("INSERT INTO t (n, other, page) VALUES (3, 7, NULL)")
    rows = [(10, 1, "home", 1), (15, 2, "home", 2), (20, 7, None, 3)]
    assert sql("SELECT * FROM t ORDER BY n") == rows
    with pytest.raises(DeltaError, match="id"):
        sql("INSERT INTO t (n, id) VALUES (1, 1)")

    sql("ALTER TABLE t ALTER COLUMN page SET DEFAULT 'x,y'")
    sql("ALTER TABLE t ALTER COLUMN n SET DEFAULT -5")
    sql("INSERT INTO t (other) VALUES (8)")
    sql("ALTER TABLE t ALTER COLUMN page DROP DEFAULT")
    sql("INSERT INTO t (other) VALUES (9)")
    assert sql("SELECT other, page, n FROM t WHERE other > 7 ORDER BY 1") == [
        *[(8, "x,y", -5), (9, None, -5)]
    ]
    with pytest.raises(DeltaError, match="constant expression"):
        sql("ALTER TABLE t ALTER COLUMN n SET DEFAULT id")

    def clusters(name: str) -> list[str]:
        return dks.sql(sql.session, f"DESCRIBE DETAIL {name}").first()[8]

    assert clusters("t") == ["n"]
    sql("ALTER TABLE t CLUSTER BY (other, page)")
    assert clusters("t") == ["other", "page"]
    sql("CREATE TABLE c CLUSTER BY (k) AS SELECT n AS k, page FROM t")
    assert clusters("c") == ["k"]
    sql("CREATE OR REPLACE TABLE c CLUSTER BY (page) AS SELECT * FROM c")
    assert clusters("c") == ["page"]
    sql("CREATE OR REPLACE TABLE c AS SELECT n FROM t")
    assert clusters("c") == []
    sql("ALTER TABLE t CLUSTER BY NONE")
    assert clusters("t") == []
    assert dk.verify(sql.uri("t"), deep=True).ok
    assert dk.verify(sql.uri("c"), deep=True).ok


def test_tables_are_cloned_and_commented_by_statements(
    sales: Sql, tmp_path: Path
) -> None:
    files = len(sales.table("sales").file_uris())
    (row,) = dks.sql(sales.session, "CREATE TABLE deep CLONE sales").collect()
    assert (row.source_num_of_files, row.num_copied_files) == (files, files)
    (row,) = dks.sql(
        sales.session,
        "CREATE TABLE first SHALLOW CLONE sales VERSION AS OF 0 "
        "TBLPROPERTIES ('foo' = 'bar')",
    ).collect()
    assert row.num_copied_files == 0
    assert sales("SHOW TBLPROPERTIES first ('foo')") == [("foo", "bar")]
    assert sales("SELECT count(*) FROM first") == [(3,)]
    assert sales("CREATE TABLE IF NOT EXISTS first CLONE sales") == []
    with pytest.raises(DeltaError, match="already exists"):
        sales("CREATE TABLE first CLONE sales")
    with pytest.raises(TableNotFoundError, match="none"):
        sales("REPLACE TABLE none CLONE sales")
    sales("CREATE OR REPLACE TABLE first DEEP CLONE sales TIMESTAMP AS OF now()")
    assert sales("SELECT count(*) FROM first") == sales("SELECT count(*) FROM deep")
    sales(f"CREATE TABLE delta.`{tmp_path}/placed` CLONE first")
    assert sales("SELECT count(*) FROM placed") == sales("SELECT count(*) FROM sales")

    sales("COMMENT ON TABLE deep IS 'all the sales'")
    assert sales.table("deep").metadata().description == "all the sales"
    with pytest.raises(DeltaError, match="COMMENT ON TABLE"):
        sales("CREATE OR REPLACE TABLE deep COMMENT 'x' AS SELECT * FROM sales")
    sales("COMMENT ON TABLE deep IS NULL")
    assert sales.table("deep").metadata().description is None
    sales("ALTER TABLE deep SET TBLPROPERTIES (delta.checkpointPolicy = 'classic')")
    for name in ("deep", "first", "placed"):
        assert dk.verify(sales.uri(name), deep=True).ok


def test_features_are_dropped_by_statements(sql: Sql) -> None:
    sql("CREATE TABLE t (id INT)")
    dks.DeltaTable.forName(sql.session, "t").addFeatureSupport("domainMetadata")

    sql("ALTER TABLE t DROP FEATURE domainMetadata")

    (detail,) = dks.sql(sql.session, "DESCRIBE DETAIL t").collect()
    assert "domainMetadata" not in detail.tableFeatures


@pytest.mark.since_pyspark("4.0")
def test_changes_of_a_table_are_queried(sql: Sql) -> None:
    feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    sql(f"CREATE TABLE t (id INT, n INT) {feed}")
    sql("INSERT INTO t VALUES (1, 1), (2, 2)")
    (first,) = dks.sql(sql.session, "DESCRIBE HISTORY t LIMIT 1").collect()
    sql("UPDATE t SET n = 5 WHERE id = 1")
    sql("DELETE FROM t WHERE id = 2")

    found = sql(
        "SELECT id, n, _change_type FROM table_changes('t', 2, 3) ORDER BY 3, 1"
    )
    assert found == [
        *[(2, 2, "delete"), (1, 5, "update_postimage"), (1, 1, "update_preimage")]
    ]
    query = """
        SELECT c._commit_version, count(*) FROM table_changes('default.t', :since) AS c
        JOIN t ON t.id = c.id GROUP BY 1 ORDER BY 1
    """
    assert sql(query, {"since": 1}) == [(1, 1), (2, 2)]
    at = first.timestamp.astimezone().isoformat(" ")
    by_time = f"SELECT count(*) FROM table_changes('t', '{at}') WHERE id = 1"
    assert sql(by_time) == [(3,)]


def test_columns_of_a_mapped_table_are_renamed_and_dropped(sql: Sql) -> None:
    sql(
        "CREATE TABLE t (id INT, `old name` STRING, gone INT, p INT) PARTITIONED BY (p)"
        " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    sql("INSERT INTO t VALUES (1, 'x', 2, 3), (2, 'y', 3, 4)")

    sql("ALTER TABLE t RENAME COLUMN `old name` TO name")
    sql("ALTER TABLE t RENAME COLUMN p TO part")
    sql("ALTER TABLE t DROP COLUMNS (gone)")
    sql("INSERT INTO t VALUES (5, 'z', 3)")

    rows = [(1, "x", 3), (5, "z", 3)]
    assert sql("SELECT * FROM t WHERE part = 3 ORDER BY id") == rows
    assert dk.verify(sql.uri("t"), deep=True).ok
    with pytest.raises(DeltaError, match="partition column part can't be dropped"):
        sql("ALTER TABLE t DROP COLUMN part")
    sql("CREATE TABLE plain (a INT, b INT)")
    with pytest.raises(DeltaError, match="needs column mapping"):
        sql("ALTER TABLE plain RENAME COLUMN a TO c")


def test_new_tables_take_deletion_vectors_if_a_setting_says_so(
    spark: "SparkSession", catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__NEW_TABLES", "true")
    own = spark.newSession()
    dks.use(own, catalog_uri)
    sql = Sql(own, catalog_uri)
    sql("CREATE TABLE a (id INT)")
    sql("CREATE TABLE b AS SELECT 1 AS id")
    dks.write(own.range(3), sql.uri("c"))
    sql("CREATE TABLE d (id INT) TBLPROPERTIES (delta.enableDeletionVectors = false)")
    on = {
        name: sql.table(name).metadata().configuration["delta.enableDeletionVectors"]
        for name in "abcd"
    }
    assert on == {"a": "true", "b": "true", "c": "true", "d": "false"}
    assert sql("SELECT id FROM b") == [(1,)]


def test_reorg_purges_deleted_rows(sql: Sql) -> None:
    rows = pa.table({"id": range(60), "day": ["mon", "tue"] * 30})
    on = {"delta.enableDeletionVectors": "true"}
    dk.write_deltalake(sql.uri("t"), rows, partition_by="day", configuration=on)
    table = sql.table("t")
    table.delete("id IN (4, 5)")
    location = table.table_uri.rstrip("/")

    ((path, metrics),) = sql("REORG TABLE t WHERE day = 'mon' APPLY (PURGE)")
    assert (path, metrics.numFilesRemoved, metrics.numFilesAdded) == (location, 1, 1)
    assert metrics.deletionVectorStats.numDeletionVectorRowsRemoved == 1
    assert metrics.filesAdded.totalFiles == 1
    ((_, metrics),) = sql("REORG TABLE t APPLY (PURGE)")
    assert metrics.numFilesRemoved == 1
    assert len(pa.table(sql.table("t").deletion_vectors())) == 0
    assert sql("SELECT count(*), sum(id) FROM t") == [(58, 1761)]
    assert sql.table("t").history(1)[0]["operation"] == "REORG"
    with pytest.raises(DeltaError, match="non-partition column 'id'"):
        sql("REORG TABLE t WHERE id = 4 APPLY (PURGE)")
    with pytest.raises(ParseException, match="PURGE"):
        sql("REORG TABLE t APPLY (UPGRADE UNIFORM)")


def test_tables_are_maintained_by_statements(sales: Sql, tmp_path: Path) -> None:
    session = sales.session
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    location = sales.table("sales").table_uri.rstrip("/")
    files = len(sales.table("sales").file_uris())

    ((path, metrics),) = sales("OPTIMIZE sales WHERE day = 'wed' ZORDER BY (id, n)")
    assert (path, metrics.numFilesRemoved, metrics.numFilesAdded) == (location, 2, 1)
    dry = sales(f"VACUUM delta.`{location}` RETAIN 0 HOURS DRY RUN")
    assert [p.startswith(location) for (p,) in dry] == [True, True]
    assert sales(f"VACUUM '{location}' LITE RETAIN 0.0 HOURS") == [(location,)]
    assert not any(Path(p.removeprefix("file:")).exists() for (p,) in dry)

    folder = str(tmp_path / "a 'folder'")
    session.sql("SELECT 1 AS id, 'x' AS day").write.parquet(folder, partitionBy="day")
    sales(
        f"CONVERT TO DELTA parquet.`{folder}` NO STATISTICS PARTITIONED BY (day STRING)"
    )
    assert sales("SELECT id, day FROM `a 'folder'`") == [(1, "x")]

    sales("DELETE FROM sales WHERE id > 1")
    restored = dks.sql(session, "RESTORE TABLE sales TO VERSION AS OF 3").first()
    assert restored is not None
    assert restored.num_of_files_after_restore == files - 1
    sales("RESTORE sales VERSION AS OF 3")
    sales("GENERATE symlink_format_manifest FOR TABLE sales")
    history = dks.sql(session, "DESCRIBE HISTORY sales LIMIT 2").collect()
    assert [row.operation for row in history] == ["RESTORE", "RESTORE"]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("", "empty"),
        ("SELECT 1; SELECT 2", "give one statement"),
        ("CACHE TABLE sales", "use spark.sql"),
        ("SELEC * FROM sales", "isn't supported"),
        ("SELECT * FRO sales WHERE FROM", "can't find the tables"),
        ("SELECT * FROM sales TIMESTAMP AS OF now() - INTERVAL 1 DAY", "parentheses"),
        ("DELETE FROM sales WHERE id IN (SELECT 1)", "use MERGE INTO"),
        ("UPDATE sales SET n = DEFAULT", "write the value"),
        ("UPDATE sales SET n = 1, n = 2", "twice"),
        ("UPDATE sales n = 1", "SET is expected at: = 1"),
        ("DELETE FROM sales WHERE", "condition of a DELETE is missing"),
        ("DELETE FROM sales WHERE id = :x", ":x has no value"),
        ("MERGE INTO sales USING s", "ON is missing at the end"),
        ("INSERT INTO sales (id, ID) VALUES (1, 2)", "named twice"),
        ("INSERT INTO sales VALUES (1, DEFAULT, 2)", "leave the column out"),
        ("CREATE TABLE t (a INT) USING parquet", "USING delta"),
        ("CREATE TABLE t (a INT) PARTITIONED BY (days(a))", "partition by a column"),
        ("CREATE TABLE t", "needs columns"),
        ("ALTER TABLE sales SET LOCATION 'x'", "use RENAME TO"),
        ("ALTER TABLE sales MERGE", "is expected at: MERGE"),
        ("ALTER TABLE sales ALTER COLUMN n SET NOT NULL", "ADD CONSTRAINT"),
        ("ALTER TABLE sales ADD COLUMNS (x INT DEFAULT 1)", "SET DEFAULT"),
        ("ALTER TABLE sales ALTER COLUMN n SET DEFAULT (SELECT 1)", "subquery"),
        ("CREATE TABLE t LIKE sales", "WHERE false"),
        ("CREATE TABLE t CLONE sales LOCATION '/x'", "clone to delta"),
        ("CREATE TABLE t (a BIGINT GENERATED BY DEFAULT AS (1))", "IDENTITY is exp"),
        ("SHOW CREATE TABLE sales", "use DESCRIBE TABLE EXTENDED"),
        ("COMMENT ON COLUMN sales.n IS 'x'", "ALTER COLUMN"),
        ("TRUNCATE TABLE sales", "use DELETE FROM"),
        ("SELECT * FROM table_changes('sales')", "the first and the last"),
        ("ALTER TABLE sales ALTER COLUMN n TYPE STRING", "type can't be changed"),
        ("OPTIMIZE sales FULL", "leave FULL out"),
        ("OPTIMIZE sales ORDER BY n", "the end of the statement is expected"),
    ],
)
def test_unsupported_statement_says_what_to_do(
    statements: Sql, statement: str, problem: str
) -> None:
    with pytest.raises(QueryError, match=problem) as refused:
        statements(statement)
    assert isinstance(refused.value, ParseException)


@pytest.fixture(scope="module")
def statements(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Sql:
    """A catalog with an empty table that no test changes."""
    uri = f"deltasql://sqlite/{tmp_path_factory.mktemp('sql')}/meta.db"
    own = spark.newSession()
    dks.use(own, uri)
    found = Sql(own, uri)
    found("CREATE TABLE sales (id BIGINT, day STRING, n BIGINT) PARTITIONED BY (day)")
    return found


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM none_such",
        "SELECT * FROM delta.`/none/such`",
        "DELETE FROM none_such",
        "DROP TABLE none_such",
        "INSERT INTO none_such VALUES (1)",
        "REPLACE TABLE none_such (a INT)",
        "DESCRIBE HISTORY none_such",
    ],
)
def test_absent_table_is_an_analysis_exception(statements: Sql, statement: str) -> None:
    with pytest.raises(AnalysisException, match="cannot be found"):
        statements(statement)


def test_hostile_names_and_values_stay_what_they_are(sql: Sql) -> None:
    column = "x` = 1; DROP TABLE t --"
    quoted = f"`{column.replace('`', '``')}`"
    sql(
        f"CREATE TABLE `t'); -- {{x}}` ({quoted} STRING, `SELECT` INT) "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    hostile = "' OR 1 = 1 -- ${spark.app.name} {t0} \\"
    sql("INSERT INTO `t'); -- {x}` VALUES (:a, 1), ('b', 2)", {"a": hostile})

    deleted = sql(f"DELETE FROM `t'); -- {{x}}` WHERE {quoted} = ?", ["' OR 1 = 1 -- "])
    updated = sql(
        f"UPDATE `t'); -- {{x}}` SET {quoted} = ? WHERE {quoted} = ?", ["}", hostile]
    )

    assert (deleted, updated) == ([(0,)], [(1,)])
    rows = [("b", 2), ("}", 1)]
    assert sql("SELECT * FROM `t'); -- {x}` ORDER BY `SELECT` DESC") == rows


def test_session_without_a_catalog_runs_statements_by_uri(
    spark: "SparkSession", sql: Sql
) -> None:
    sql("CREATE TABLE t AS SELECT 1 AS x")
    other = Sql(spark.newSession(), "")

    assert other(f"SELECT x FROM deltasql.`{sql.uri('t')}`") == [(1,)]
    with pytest.raises(DeltaError, match="the session has no catalog"):
        other("DELETE FROM t")
    with pytest.raises(TableNotFoundError):
        other(f"SELECT x FROM deltasql.`{sql.uri('u')}`")

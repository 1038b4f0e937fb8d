"""SQL statements give what they give in Delta Spark's own SQL."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support import delta_spark
from tests.support.processes import program

# A driver of its own, in which both run some ninety statements.
pytestmark = pytest.mark.soak

STATEMENTS = [
    (
        "CREATE TABLE t (id BIGINT NOT NULL COMMENT 'key', day STRING, n INT, s "
        "STRUCT<a: INT, b: STRING>) USING delta PARTITIONED BY (day) COMMENT 'c' "
        "TBLPROPERTIES ('foo' = 'bar', delta.enableChangeDataFeed = true)"
    ),
    "CREATE TABLE t (id INT) USING delta",
    "CREATE TABLE IF NOT EXISTS t (id INT) USING delta",
    (
        "INSERT INTO t VALUES (1, 'mon', 9, struct(1, 'x')), (2, 'tue', 12, null), "
        "(3, 'tue', 7, null)"
    ),
    "INSERT INTO t VALUES ('4', 'wed', 1.6, named_struct('b', 2, 'a', '3'))",
    "INSERT INTO t VALUES ('x', 'wed', 1, null)",
    "INSERT INTO t VALUES (5, 'wed', 3000000000, null)",
    "INSERT INTO t VALUES (5, 'wed')",
    "INSERT INTO t VALUES (5, 'wed', 1, null, 5)",
    "INSERT INTO t (day, id) SELECT 'thu', 5",
    "INSERT INTO t (id, id) SELECT 5, 6",
    "INSERT INTO t (id, nope) SELECT 5, 6",
    "INSERT INTO t BY NAME SELECT 6 AS n, 6 AS ID, 'thu' AS day",
    "INSERT INTO t BY NAME SELECT 6 AS nope, 6 AS ID",
    "INSERT INTO t (day) VALUES ('null id')",
    "SELECT * FROM t ORDER BY id",
    "UPDATE t SET n = n + 1 WHERE day = 'tue'",
    "UPDATE t SET n = '77' WHERE id = 1",
    (
        "UPDATE t SET s.a = 5, n = CASE WHEN id > 3 THEN 1 ELSE 2 END WHERE s.a IS "
        "NOT NULL"
    ),
    "UPDATE t x SET x.n = 8 WHERE x.id = 2",
    "UPDATE t SET n = 1 WHERE id IN (SELECT 1)",
    "UPDATE t SET nope = 1",
    "UPDATE t SET n = 1, n = 2",
    "DELETE FROM t AS d WHERE d.id = 3",
    "DELETE FROM t WHERE day = 'thu'",
    "DELETE FROM t WHERE id = 12345",
    "DELETE FROM t WHERE id IN (SELECT 1)",
    "SELECT * FROM t ORDER BY id",
    (
        "MERGE INTO t USING (SELECT 1 AS id, 'fri' AS day, 5 AS n, named_struct('a', "
        "1, 'b', 'z') AS s UNION ALL SELECT 9, 'fri', 9, null) AS src ON t.id = "
        "src.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ),
    (
        "MERGE INTO t AS x USING (SELECT * FROM t VERSION AS OF 1) y ON x.id = y.id "
        "WHEN MATCHED AND x.n > 3 THEN DELETE WHEN NOT MATCHED THEN INSERT (id, day) "
        "VALUES (y.id, y.day) WHEN NOT MATCHED BY SOURCE AND x.id > 100 THEN UPDATE "
        "SET n = 0"
    ),
    (
        "MERGE WITH SCHEMA EVOLUTION INTO t USING (SELECT 20 AS id, 'new' AS day, 1 "
        "AS extra) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    ),
    "SELECT * FROM t ORDER BY id",
    "INSERT OVERWRITE t PARTITION (day = 'tue') VALUES (30, 1, null, 2)",
    "INSERT OVERWRITE t PARTITION (day = 'tue') SELECT 31, 1, null, 2 WHERE false",
    "INSERT INTO t PARTITION (day = 'sat') (id, n) VALUES (32, 1)",
    "INSERT INTO t PARTITION (day) SELECT 33, 'sun', 1, null, 2",
    "INSERT INTO t REPLACE WHERE day = 'sun' VALUES (34, 'sun', 1, null, 2)",
    "INSERT INTO t REPLACE WHERE day = 'sun' VALUES (34, 'mon', 1, null, 2)",
    "SELECT * FROM t ORDER BY id",
    "SELECT count(*) FROM t VERSION AS OF 1",
    "SELECT count(*) FROM t VERSION AS OF 99",
    "DESCRIBE t",
    "SHOW COLUMNS IN t",
    "ALTER TABLE t ADD COLUMNS (a INT COMMENT 'x', b STRUCT<c: INT>)",
    "ALTER TABLE t ADD COLUMN b.d STRING",
    "ALTER TABLE t ADD COLUMN nope.d STRING",
    "ALTER TABLE t ADD COLUMN a INT",
    "ALTER TABLE t CHANGE COLUMN a a INT AFTER id",
    "ALTER TABLE t ALTER COLUMN a COMMENT 'new'",
    "ALTER TABLE t ALTER COLUMN id DROP NOT NULL",
    "ALTER TABLE t ALTER COLUMN nope DROP NOT NULL",
    "ALTER TABLE t RENAME COLUMN a TO c",
    "ALTER TABLE t DROP COLUMN a",
    "ALTER TABLE t ADD CONSTRAINT pos CHECK (id > 0)",
    "ALTER TABLE t ADD CONSTRAINT pos CHECK (id > 0)",
    "ALTER TABLE t ADD CONSTRAINT neg CHECK (id < 0)",
    "INSERT INTO t (id, day) VALUES (-1, 'x')",
    "ALTER TABLE t DROP CONSTRAINT nope",
    "ALTER TABLE t DROP CONSTRAINT IF EXISTS nope",
    "ALTER TABLE t DROP CONSTRAINT pos",
    "ALTER TABLE t SET TBLPROPERTIES ('k' = 'v', x.y = 5)",
    "ALTER TABLE t UNSET TBLPROPERTIES ('nope')",
    "ALTER TABLE t UNSET TBLPROPERTIES IF EXISTS ('nope', 'k')",
    "DESCRIBE t",
    "CREATE TABLE c USING delta PARTITIONED BY (day) AS SELECT id, day FROM t",
    "CREATE OR REPLACE TABLE c USING delta AS SELECT id AS n FROM c WHERE id < 10",
    "SELECT * FROM c ORDER BY n",
    "REPLACE TABLE c (z INT) USING delta",
    "SELECT * FROM c",
    "REPLACE TABLE nope (z INT) USING delta",
    "ALTER TABLE c RENAME TO c2",
    "SHOW TABLES LIKE 'c*'",
    "RESTORE TABLE t TO VERSION AS OF 1",
    "SELECT * FROM t",
    "GENERATE symlink_format_manifest FOR TABLE t",
    (
        "CREATE TABLE m (a INT, b INT, c INT) USING delta TBLPROPERTIES "
        "('delta.columnMapping.mode' = 'name')"
    ),
    "INSERT INTO m VALUES (1, 2, 3)",
    "ALTER TABLE m RENAME COLUMN b TO `b b`",
    "ALTER TABLE m DROP COLUMNS (c, a)",
    "SELECT * FROM m",
    "SELECT * FROM (t) JOIN m ON true",
    "SELECT t.id, e FROM t LATERAL VIEW explode(array(1, 2)) x AS e ORDER BY 1, 2",
    ("SELECT * FROM (SELECT day, n FROM t) PIVOT (sum(n) FOR day IN ('mon', 'tue'))"),
    "SELECT * FROM t UNPIVOT (v FOR k IN (id)) ORDER BY v",
    ("SELECT id FROM t WHERE n > (SELECT avg(n) FROM t) ORDER BY id LIMIT 1 OFFSET 0"),
    "FROM t |> WHERE id > 1 |> SELECT id |> ORDER BY id",
    "SELECT id FROM t WHERE day IN (SELECT day FROM t WHERE id = 2) ORDER BY 1",
    "SELECT count(*) FROM t TABLESAMPLE (100 PERCENT) x",
    "SHOW TBLPROPERTIES t ('nope')",
    "OPTIMIZE t WHERE id = 1",
    "DROP TABLE m",
    "DROP TABLE m",
    "DROP TABLE IF EXISTS m",
    "SELECT * FROM m",
]


def test_statements_give_what_delta_spark_gives(tmp_path: Path) -> None:
    try:
        jars = delta_spark.find_jars(tmp_path / "jars")
    except delta_spark.UnavailableError as error:
        pytest.skip(str(error))
    given = [",".join(map(str, jars)), str(tmp_path), json.dumps(STATEMENTS)]

    done = subprocess.run(program("sql_worker", *given), capture_output=True, text=True)

    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    for statement, (theirs, ours) in zip(STATEMENTS, told, strict=True):
        if "error" in theirs:
            assert "error" in ours, (statement, theirs, ours)
        else:
            assert ours == theirs, statement

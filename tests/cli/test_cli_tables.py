"""Tables are made, looked at, changed and dropped by the command."""

from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delkalakedb as dk
from delkalakedb.catalog.engine.migrations import latest_schema_version
from tests.support.cli import Cli

DDL = "id BIGINT NOT NULL COMMENT 'key', day DATE, tags ARRAY<STRING>"


# ---- init


def test_init_creates_the_catalog_once(new_catalog_uri: str, engine: str) -> None:
    command = Cli(new_catalog_uri)
    version = latest_schema_version(engine)

    first, second = command.json("init"), command.json("init")

    assert (first["schema_version"], first["created"]) == (version, True)
    assert second == {**first, "created": False}
    assert command.json("tables") == []


def test_init_shows_no_password(postgres_uri: str) -> None:
    assert "***" in Cli(postgres_uri)("init").stdout


# ---- create


def test_created_table_has_what_was_asked_for(deltasql: Cli, tmp_path: Path) -> None:
    location = tmp_path / "elsewhere"
    made = deltasql.json(
        "create",
        "orders",
        "--schema",
        DDL,
        "--partition-by",
        "day",
        "--location",
        str(location),
        "--property",
        "delta.appendOnly=true",
        "--property",
        "owner = me",
        "--comment",
        "all orders",
    )

    table = dk.DeltaTable(deltasql.table("orders"))
    assert made["version"] == table.version() == 0
    assert [f.name for f in table.schema().fields] == ["id", "day", "tags"]
    assert not table.schema().fields[0].nullable
    metadata = table.metadata()
    assert metadata.partition_columns == ["day"]
    assert metadata.description == "all orders"
    assert metadata.configuration == {"delta.appendOnly": "true", "owner": "me"}
    assert deltalake.DeltaTable(location).version() == 0


def test_schema_that_was_written_makes_the_same_table(
    on_sqlite: Cli, tmp_path: Path
) -> None:
    on_sqlite("create", "first", "--schema", DDL)
    (tmp_path / "ddl.sql").write_text(on_sqlite("schema", "first", "--ddl").stdout)
    (tmp_path / "delta.json").write_text(on_sqlite("schema", "first", "--delta").stdout)

    for name, file in (("second", "ddl.sql"), ("third", "delta.json")):
        on_sqlite("create", name, "--schema-file", str(tmp_path / file))
        assert on_sqlite.json("schema", name) == on_sqlite.json("schema", "first")


def test_sample_file_gives_the_columns(on_sqlite: Cli, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("id,day,at,x\n1,2026-01-31,2026-01-31 10:00:00,a\n")
    sample = pa.table(
        {
            "id": pa.array([1], pa.uint8()),
            "at": pa.array([0], pa.timestamp("ns", "Europe/Berlin")),
            "local": pa.array([0], pa.timestamp("ns")),
            "many": pa.array([[0]], pa.list_(pa.uint32())),
        }
    )
    pq.write_table(sample, tmp_path / "s.parquet")

    def types(file: str) -> list[str]:
        on_sqlite("create", file, "--like", str(tmp_path / file))
        return [column["type"] for column in on_sqlite.json("schema", file)]

    assert types("s.csv") == ["BIGINT", "DATE", "TIMESTAMP_NTZ", "STRING"]
    expected = ["SMALLINT", "TIMESTAMP", "TIMESTAMP_NTZ", "ARRAY<BIGINT>"]
    assert types("s.parquet") == expected


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (pa.nulls(1), "column a: it has only nulls, and so no type"),
        (pa.array([1], pa.time32("s")), "Invalid data type for Delta Lake: Time32"),
    ],
)
def test_sample_that_is_no_delta_schema_is_refused(
    on_sqlite: Cli, tmp_path: Path, column: pa.Array, problem: str
) -> None:
    pq.write_table(pa.table({"a": column}), tmp_path / "s.parquet")

    refused = on_sqlite("create", "x", "--like", str(tmp_path / "s.parquet"), code=5)

    assert problem in refused.stderr
    assert "Python" not in refused.stderr


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ([], 2, "give one of --schema"),
        (["--schema", "a INT", "--like", __file__], 2, "give one of --schema"),
        (["--schema", "a"], 2, "not a column with a type: a"),
        (["--schema", "a INT, A INT"], 2, "has the column A twice"),
        (["--schema", "a INT", "--property", "x"], 2, "write NAME=VALUE"),
        (["--schema", "a INT", "--partition-by", "b"], 5, "b"),
        (["--schema", "a INT", "--property", "delta.nope=1"], 5, "delta.nope"),
    ],
)
def test_create_that_makes_no_sense_creates_nothing(
    on_sqlite: Cli, words: list[str], code: int, problem: str
) -> None:
    assert problem in on_sqlite("create", "x", *words, code=code).stderr
    assert [table["name"] for table in on_sqlite.json("tables")] == ["sales"]


def test_table_that_exists_is_fine_only_if_so_asked(on_sqlite: Cli) -> None:
    words = ["create", "sales", "--schema", "a INT"]

    assert "the table exists already" in on_sqlite(*words, code=5).stderr
    there = on_sqlite(*words, "--if-not-exists")
    assert there.stdout.startswith("sales exists already at version 1")


def test_table_is_not_created_where_another_one_lies(on_sqlite: Cli) -> None:
    on_sqlite("drop", "sales", "--yes")

    refused = on_sqlite("create", "sales", "--schema", "a INT", code=5)

    assert "there is a Delta table at" in refused.stderr
    assert on_sqlite.json("tables") == []


# ---- describe and schema


def test_describe_tells_all_of_a_table(deltasql: Cli) -> None:
    told = deltasql.json("describe", "sales")

    assert (told["version"], told["num_files"], told["num_records"]) == (1, 3, 3)
    assert told["partition_columns"] == ["day"]
    assert (told["operation"], told["format"]) == ("WRITE", "parquet")
    assert (told["mirror_state"], told["versions_behind"]) == ("published", 0)
    assert [column["name"] for column in told["columns"]] == ["id", "day"]
    assert deltasql.json("describe", "sales", "--version", "0")["num_records"] == 2


def test_describe_shows_the_columns_below(on_sqlite: Cli) -> None:
    above, below = on_sqlite("describe", "sales").stdout.split("\n\n")

    assert "partition columns   day" in above
    assert below.splitlines()[1].split() == ["id", "BIGINT", "true", "false", "-"]


def test_rows_that_are_deleted_by_vectors_are_not_counted(on_sqlite: Cli) -> None:
    dk.DeltaTable(on_sqlite.table()).delete("id = 1")

    assert on_sqlite.json("describe", "sales")["num_records"] == 2


def test_schema_holds_deltas_own_words_as_json(on_sqlite: Cli) -> None:
    on_sqlite("create", "orders", "--schema", DDL)

    first, _, tags = on_sqlite.json("schema", "orders")
    assert (first["nullable"], first["comment"]) == (False, "key")
    assert tags["type"] == "ARRAY<STRING>"
    assert tags["field"]["type"]["elementType"] == "string"
    written = on_sqlite.json("schema", "orders", "--delta")
    assert written["fields"][0] == first["field"]
    assert on_sqlite.json("describe", "orders")["schema"] == written


def test_schema_says_what_sql_cannot(on_sqlite: Cli, tmp_path: Path) -> None:
    strict = pa.list_(pa.field("element", pa.int64(), nullable=False))
    pq.write_table(pa.table({"a": pa.array([[1]], strict)}), tmp_path / "s.parquet")
    on_sqlite("create", "x", "--like", str(tmp_path / "s.parquet"))

    told = on_sqlite("schema", "x", "--ddl")

    assert told.stdout == "a ARRAY<BIGINT>\n"
    assert "use --delta" in told.stderr
    assert on_sqlite("schema", "sales", "--ddl").stderr == ""


# ---- files


def test_files_are_limited_and_counted(on_sqlite: Cli) -> None:
    shown = on_sqlite("files", "sales", "--limit", "1")

    assert len(shown.stdout.splitlines()) == 2
    assert shown.stderr.startswith("3 of 3 files would be read: ")


# ---- set and unset


def test_properties_are_set_and_unset_in_commits_of_their_own(deltasql: Cli) -> None:
    done = deltasql.json("set", "sales", "delta.appendOnly=true", "owner=me", "x=")

    expected = {"delta.appendOnly": "true", "owner": "me", "x": ""}
    assert (done["version"], done["properties"]) == (2, expected)
    done = deltasql.json("unset", "sales", "delta.appendOnly", "x")
    assert (done["version"], done["properties"]) == (3, {"owner": "me"})
    (last,) = deltasql.json("history", "sales", "--limit", "1")
    assert last["operation"] == "UNSET TBLPROPERTIES"
    location = dk.DeltaTable(deltasql.table()).table_uri
    assert deltalake.DeltaTable(location).metadata().configuration == {"owner": "me"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["set", "sales", "delta.nope=1"], "there is no table property delta.nope"),
        (["set", "sales", "delta.appendOnly=maybe"], "one of true, false is needed"),
        (["set", "sales", "delta.minReaderVersion=3"], "can't be changed"),
        (["set", "sales", "delta.columnMapping.mode=name"], "can't be changed"),
        (["unset", "sales", "delta.constraints.x"], "can't be changed"),
        (["unset", "sales", "owner"], "sales: owner isn't set"),
    ],
)
def test_property_that_is_not_to_be_changed_is_refused(
    on_sqlite: Cli, words: list[str], problem: str
) -> None:
    assert problem in on_sqlite(*words, code=5).stderr
    assert on_sqlite.json("describe", "sales")["version"] == 1


def test_unset_of_what_is_not_set_makes_no_version(on_sqlite: Cli) -> None:
    assert on_sqlite.json("unset", "sales", "x", "--if-exists")["version"] == 1


# ---- rename and drop


def test_renamed_table_is_there_under_its_new_name(deltasql: Cli) -> None:
    (before,) = deltasql.json("tables")

    deltasql("rename", "sales", "old sales")

    assert deltasql.json("tables") == [{**before, "name": "old sales"}]
    assert "no such table" in deltasql("files", "sales", code=5).stderr


def test_uri_is_refused_where_a_name_belongs_and_not_shown(on_sqlite: Cli) -> None:
    uri = "deltasql://postgres/me:hunter2@elsewhere/db/public/t"
    for words in (
        ["create", uri, "--schema", DDL],
        ["create", uri, "--schema", DDL, "--if-not-exists"],
        ["rename", "sales", uri],
        ["rename", uri, "other"],
        ["files", uri],
        ["drop", uri, "--yes"],
    ):
        done = on_sqlite(*words, code=5)
        assert "URI as its name" in done.stderr
        assert "hunter2" not in done.output
    assert [table["name"] for table in on_sqlite.json("tables")] == ["sales"]


def test_dropped_table_leaves_its_data(deltasql: Cli) -> None:
    (table,) = deltasql.json("tables")
    again = "Add --yes to confirm"

    assert again in deltasql("drop", "sales", code=2).stderr
    dry = deltasql.json("drop", "sales", "--dry-run")
    assert (dry["dry_run"], dry["version"]) == (True, 1)
    assert deltasql.json("tables") == [table]
    done = deltasql("drop", "sales", "--yes")

    sentence = f"Dropped sales; its 3 files stay at {table['location']}\n"
    assert done.stdout == sentence
    assert deltasql.json("tables") == []
    assert deltalake.DeltaTable(table["location"]).to_pyarrow_table().num_rows == 3


def test_dropped_data_is_gone(on_sqlite: Cli) -> None:
    (table,) = on_sqlite.json("tables")
    dry = on_sqlite.json("drop", "sales", "--with-data", "--dry-run")

    done = on_sqlite.json("drop", "sales", "--with-data", "--yes")

    assert done == {**dry, "dry_run": False}
    assert done["deleted_files"] >= 5
    assert not Path(table["location"].removeprefix("file://")).exists()


# ---- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(shell: str) -> None:
    script = Cli()("completion", shell).stdout

    assert "_DELTASQL_COMPLETE" in script
    assert "deltasql" in script

"""Each command once, on a catalog with the table `sales`: run in text, JSON and CSV."""

from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq

INVOCATIONS: dict[str, list[str]] = {
    "init": ["init"],
    "tables": ["tables"],
    "help": ["help", "mirror", "status"],
    "create": ["create", "orders", "--schema", "id BIGINT", "--if-not-exists"],
    "describe": ["describe", "sales"],
    "schema": ["schema", "sales"],
    "rename": ["rename", "{before}", "{folder.name}"],
    "set": ["set", "sales", "delta.checkpointInterval=50"],
    "unset": ["unset", "sales", "owner", "--if-exists"],
    "drop": ["drop", "sales", "--dry-run"],
    "completion": ["completion", "bash"],
    "history": ["history", "sales"],
    "files": ["files", "sales"],
    "head": ["head", "sales"],
    "query": ["query", "SELECT * FROM sales ORDER BY id"],
    "shell": ["shell", "--file", "{folder}/statements.sql"],
    "append": ["append", "sales", "{folder}/more.parquet", "--dry-run"],
    "export": ["export", "sales", "{folder}/sales.csv"],
    "diff": ["diff", "sales", "1", "1"],
    "import": ["import", "{folder}"],
    "convert": ["convert", "{folder}"],
    "sync": ["sync", "{folder}"],
    "copy": ["copy", "--to", "deltasql://sqlite/{folder}/other.db", "--dry-run"],
    "detach": ["detach", "sales", "--dry-run"],
    "mirror status": ["mirror", "status"],
    "mirror run": ["mirror", "run", "--once"],
    "mirror retry": ["mirror", "retry", "sales"],
    "mirror republish": ["mirror", "republish", "sales"],
    "mirror adopt": ["mirror", "adopt", "sales", "--dry-run"],
    "mirror fence": ["mirror", "fence", "sales", "--yes"],
    "verify": ["verify", "sales"],
    "optimize": ["optimize", "sales"],
    "vacuum": ["vacuum", "sales", "--dry-run"],
    "checkpoint": ["checkpoint", "--all"],
    "restore": ["restore", "sales", "--version", "0", "--yes"],
    "retention": ["retention", "sales"],
    "stats": ["stats"],
    "doctor": ["doctor"],
    "audit": ["audit"],
    "upgrade": ["upgrade"],
    "backup": ["backup", "{folder}/backup"],
    "restore-catalog": ["restore-catalog", "{folder}/../backup", "--yes"],
}


def arguments(command: str, folder: Path) -> list[str]:
    """The words of the call; `{folder}` in them is a folder of the test's own."""
    if command in ("import", "sync"):
        deltalake.write_deltalake(folder, pa.table({"id": [1, 2]}))
    if command == "convert":
        pq.write_table(pa.table({"id": [1, 2]}), folder / "part.parquet")
    if command == "append":
        more = pa.table({"id": [4], "day": ["thu"]})
        pq.write_table(more, folder / "more.parquet")
    if command == "shell":
        (folder / "statements.sql").write_text("SELECT * FROM sales;")
    # A name that was given once is there no more.
    before = {"csv": "text", "json": "csv"}.get(folder.name, "sales")
    words = INVOCATIONS[command]
    return [word.format(folder=folder, before=before) for word in words]

"""A forked child works or fails with advice; it never hangs nor panics."""

from pathlib import Path

import pytest

from tests.support.processes import run_python
from tests.support.servers import stores

SCRIPT = """
import os, signal, sys
import pyarrow as pa
import delkalakedb as dk
from delkalakedb.errors import DeltalakeDBError

uri, place, options = {uri!r}, {place!r}, {options!r}
table = f"{{uri}}{{'&' if '?' in uri else '?'}}table=t&location={{place}}/t"
rows = pa.table({{"x": [1, 2]}})
feed = {{"delta.enableChangeDataFeed": "true"}}
dk.write_deltalake(table, rows, storage_options=options, configuration=feed)
dt = dk.DeltaTable(table, storage_options=options)
dt.to_pyarrow_table()
dataset = dt.to_pyarrow_dataset()
builder = dk.QueryBuilder().register("t", dt)
scanned, changes = dt.scan(), dt.load_cdf()
selected = builder.execute("SELECT * FROM t")
half_read = iter(dt.scan())
next(half_read)
catalog = dk.connect(uri)
snapshot = catalog.snapshot("t")

def transact():
    with dk.transaction(uri, storage_options=options) as tx:
        tx.write("t", rows, mode="append")

def merge():
    merger = dt.merge(rows, "t.x = s.x", "s", "t")
    return merger.when_matched_update_all().execute()

USES = [
    lambda: pa.RecordBatchReader.from_stream(scanned).read_all(),
    changes.read_all,
    selected.read_all,
    lambda: list(half_read),
    catalog.tables,
    lambda: snapshot.files().read_all(),
    dt.file_uris,
    dt.to_pyarrow_table,
    dt.to_pandas,
    dataset.to_table,
    lambda: pa.RecordBatchReader.from_stream(dt.load_cdf()).read_all(),
    lambda: builder.execute("SELECT * FROM t").read_all(),
    lambda: dk.DeltaTable(table, storage_options=options).to_pyarrow_table(),
    lambda: dk.write_deltalake(table, rows, mode="append", storage_options=options),
    lambda: dk.write_deltalake(table, rows, mode="overwrite", storage_options=options),
    lambda: dt.delete("x = 1"),
    merge,
    dt.optimize.compact,
    lambda: dt.vacuum(0, dry_run=False, enforce_retention_duration=False),
    transact,
    lambda: dk.verify(table, deep=True, storage_options=options),
    lambda: catalog.create_table(
        "u", rows.schema, location=place + "/u", storage_options=options
    ),
    lambda: dk.connect(uri).tables(),
    dk.close,
]

for number, use in enumerate(USES):
    if (child := os.fork()) == 0:
        # A child that hangs is ended by the signal.
        signal.alarm(20)
        try:
            use()
        except Exception as error:
            # Arrow raises an error of its own with the text of the reader's.
            ours = isinstance(error, DeltalakeDBError) or number < 4
            said = any(word in str(error) for word in ("spawn", "another process"))
            os._exit(0 if ours and said else 3)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(4)
        os._exit(0)
    ended = os.waitpid(child, 0)[1]
    if ended:
        print("use", number, "ended with", ended)

# The parent goes on as before.
assert sum(reader.read_all().num_rows for reader in (scanned, changes, selected)) == 6
dk.write_deltalake(table, rows, mode="append", storage_options=options)
assert dk.DeltaTable(table, storage_options=options).to_pyarrow_table().num_rows >= 4
"""


def test_child_works_or_is_told_after_its_parent_used_local_tables(
    catalog_uri: str, tmp_path: Path
) -> None:
    script = SCRIPT.format(uri=catalog_uri, place=str(tmp_path / "lake"), options=None)

    assert run_python(script) == ""


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_child_works_or_is_told_after_its_parent_used_an_object_store(
    catalog_uri: str, s3: stores.Place
) -> None:
    place, options = s3.location, s3.storage_options

    assert (
        run_python(SCRIPT.format(uri=catalog_uri, place=place, options=options)) == ""
    )


OTHERS = """
import os, signal
import obstore
from obstore.store import MemoryStore
from delkalakedb.errors import StorageError
from delkalakedb.storage import open_store

place, options = {place!r}, {options!r}

def child(refused):
    if (pid := os.fork()) == 0:
        signal.alarm(20)
        try:
            open_store(place, options).put("mine", b"x")
        except StorageError as error:
            os._exit(0 if refused and "spawn" in str(error) else 3)
        os._exit(3 if refused else 0)
    assert os.waitpid(pid, 0)[1] == 0, refused

child(refused=False)
# By whoever: it needn't be a table.
obstore.put(MemoryStore(), "theirs", b"x")
child(refused=True)
"""


def test_child_uses_an_object_store_unless_its_parent_has(s3: stores.Place) -> None:
    place, options = s3.location, s3.storage_options

    assert run_python(OTHERS.format(place=place, options=options)) == ""

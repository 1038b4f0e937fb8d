"""The main path in a Python without what Windows lacks; run by test_portability."""

import os
import pkgutil
import select
import sys
import warnings
from importlib import import_module

# The standard library and drivers first: they are made for each system, and look for
# these names in their own ways.
import deltalake
import duckdb  # noqa: F401
import psycopg  # noqa: F401
import pyarrow as pa
import pyarrow.dataset

for absent in ("fcntl", "pwd", "resource"):
    sys.modules[absent] = None  # type: ignore[assignment]
for module, names in {
    os: ("register_at_fork", "fork", "geteuid", "symlink", "O_DIRECTORY"),
    select: ("poll", "POLLIN"),
}.items():
    for name in names:
        delattr(module, name)

platform, sys.platform = sys.platform, "win32"
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import delkalakedb as dk
# What other packages load from now on is that of the system.
sys.platform = platform
assert [str(w.message) for w in told if "on Windows" in str(w.message)], told
for info in pkgutil.walk_packages(dk.__path__, "delkalakedb."):
    if ".spark" not in info.name and not info.name.endswith(("__main__", ".auto")):
        import_module(info.name)

folder = sys.argv[1]
for engine in ("sqlite", "duckdb"):
    uri = f"deltasql://{engine}/{folder}/{engine}.db?table=t"
    dk.write_deltalake(uri, pa.table({"id": [1, 2, 3]}))
    dk.write_deltalake(uri, pa.table({"id": [4, 5]}), mode="append")
    table = dk.DeltaTable(uri)
    table.delete("id = 1")
    source = pa.table({"id": [5, 6]})
    merged = table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
    merged.when_not_matched_insert_all().execute()
    table.optimize.compact()
    assert dk.verify(uri, deep=True).ok  # type: ignore[union-attr]
    plain = deltalake.DeltaTable(table.table_uri).to_pyarrow_table()
    found = sorted(dk.DeltaTable(uri).to_pyarrow_table()["id"].to_pylist())
    assert found == sorted(plain["id"].to_pylist()) == [2, 3, 4, 5, 6], found
print("done")

"""Tables that were not made here: every readable one imports and verifies.

`DELKALAKEDB_TEST_TABLES` is a folder with such tables at any depth, for instance a
checkout of delta-rs.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import delkalakedb as dk
from delkalakedb.errors import CodecError, DeltaError, ProtocolError
from delkalakedb.migrate.importer import import_table
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from delkalakedb.storage.log.segment import LogFiles, list_log

FOLDER = "DELKALAKEDB_TEST_TABLES"


def tables() -> Iterator[Path]:
    for log in sorted(Path(os.environ[FOLDER]).rglob("_delta_log")):
        if log.is_dir():
            yield log.parent


def is_readable(store: Store) -> bool:
    """Whether the log replays to a table at its newest version."""
    try:
        log: LogFiles = list_log(store)
        reader = FileTxnLogReader(store)
        return reader.state(log.latest).version == log.latest and all(
            True for _ in reader.adds()
        )
    except (DeltaError, CodecError):
        return False


@pytest.mark.soak
@pytest.mark.skipif(FOLDER not in os.environ, reason=f"{FOLDER} names no folder")
def test_every_readable_table_imports_and_verifies(catalog: dk.Catalog) -> None:
    wrong, refused, imported = [], [], 0
    for number, place in enumerate(tables()):
        store = open_store(str(place))
        if not is_readable(store):
            continue
        try:
            done = import_table(store, catalog, table=f"t{number}")
        except ProtocolError as error:
            refused.append(f"{place.name}: {error}")
            continue
        except (DeltaError, CodecError) as error:
            wrong.append(f"{place}: {error}")
            continue
        imported += 1
        if not done.ok:
            wrong.append(f"{place}: {done.report}")

    print(f"{imported} imported", *refused, sep="\n")
    assert not wrong, "\n".join(wrong)
    assert imported

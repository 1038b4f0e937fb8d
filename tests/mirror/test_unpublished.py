"""A commit that stands but couldn't be published: the caller gets to know."""

import json
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.catalog.commit import Lease, Outbox
from delkalakedb.mirror.publisher.delivery import drain
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.storage.remote import RemoteStore
from tests.support.servers.stores import KEY, SECRET, Place

ROWS = pa.table({"id": [1, 2]})


def uri_of(catalog_uri: str, name: str) -> str:
    return format_uri(parse_uri(catalog_uri).with_table(name))


def break_log(table: dk.DeltaTable) -> Path:
    """Put a file where the log's folder was, so that nothing can be published."""
    log = Path(table.table_uri.removeprefix("file://")) / "_delta_log"
    log.rename(log.with_name("_away"))
    log.touch()
    return log


def mend_log(log: Path) -> None:
    log.unlink()
    log.with_name("_away").rename(log)


@contextmanager
def told() -> Iterator[list[dk.PublishWarning]]:
    """The warnings of a block."""
    found: list[dk.PublishWarning] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [w.message for w in caught if isinstance(w.message, dk.PublishWarning)]


CHANGES: dict[str, Callable[[dk.DeltaTable], Any]] = {
    "append": lambda t: dk.write_deltalake(t, ROWS, mode="append"),
    "overwrite": lambda t: dk.write_deltalake(t, ROWS, mode="overwrite"),
    "delete": lambda t: t.delete(),
    "alter": lambda t: t.alter.set_table_properties({"delta.appendOnly": "false"}),
    "restore": lambda t: t.restore(0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_caller_is_warned_with_the_reason_and_what_comes_next(
    catalog_uri: str, change: str
) -> None:
    uri = uri_of(catalog_uri, "t")
    dk.write_deltalake(uri, ROWS)
    dk.write_deltalake(uri, ROWS, mode="append")
    log = break_log(table := dk.DeltaTable(uri))

    with told() as warned:
        CHANGES[change](table)

    (warning,) = warned
    assert (warning.table, warning.version) == ("t", 2)
    assert "version 2 is committed but not published yet" in str(warning)
    assert "_delta_log/00000000000000000002.json" in warning.reason
    assert "deltasql mirror run" in warning.outlook
    assert dk.DeltaTable(uri).version() == 2

    mend_log(log)
    (status,) = dk.mirror.run(uri, once=True)
    assert (status.state, status.published_version) == ("published", 2)


def test_table_named_like_a_secret_is_warned_of_in_full(
    catalog_uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    uri = uri_of(catalog_uri, "api_token")
    dk.write_deltalake(uri, ROWS)
    break_log(table := dk.DeltaTable(uri))

    with told() as warned, caplog.at_level("INFO", "delkalakedb"):
        table.delete()

    (warning,) = warned
    formatter = dk.JsonFormatter()
    lines = [json.loads(formatter.format(record)) for record in caplog.records]
    texts = [str(warning), *(line["message"] for line in lines)]
    assert any(text.startswith("api_token: version 1,") for text in texts)
    assert all("***" not in text for text in texts)


def test_each_table_is_warned_of_once(catalog_uri: str) -> None:
    with told() as warned:
        for name in ("a", "b"):
            dk.write_deltalake(uri_of(catalog_uri, name), ROWS)
            break_log(dk.DeltaTable(uri_of(catalog_uri, name)))
        for _ in range(3):
            for name in ("a", "b"):
                dk.write_deltalake(uri_of(catalog_uri, name), ROWS, mode="append")

    assert [(w.table, w.version) for w in warned] == [("a", 1), ("b", 1)]


def test_caller_is_warned_if_another_process_keeps_the_lease(
    catalog_uri: str,
) -> None:
    uri = uri_of(catalog_uri, "t")
    dk.write_deltalake(uri, ROWS)
    with dk.connect(catalog_uri, mirror={"wait": 0.1}) as catalog, told() as warned:
        # A process of which nothing is known here.
        with patch("delkalakedb.catalog.commit.outbox.begin", lambda *_: "elsewhere"):
            lease = Outbox(catalog._backend).take("t", 60.0)
        assert isinstance(lease, Lease)
        for _ in range(2):
            with dk.transaction(catalog) as tx:
                tx.write("t", ROWS, mode="append")
        Outbox(catalog._backend).release(lease)
        log = break_log(dk.DeltaTable(uri))
        with dk.transaction(catalog) as tx:
            tx.write("t", ROWS, mode="append")

    waits, fails = warned
    assert (waits.table, waits.version) == ("t", 1)
    assert "another process holds the lease" in waits.reason
    assert "That process publishes this version, too" in waits.outlook
    # A failure is shown although the table has been warned of.
    assert (fails.version, "_delta_log" in fails.reason) == (3, True)
    mend_log(log)
    (status,) = dk.mirror.run(uri, once=True)
    assert (status.state, status.published_version) == ("published", 3)


def test_warning_is_shown_at_the_callers_line_without_any_setup(
    tmp_path: Path,
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    dk.write_deltalake(uri, ROWS)
    break_log(dk.DeltaTable(uri))
    script = tmp_path / "script.py"
    script.write_text(
        "import delkalakedb as dk\n"
        f"table = dk.DeltaTable({uri!r})\n"
        "table.delete()\n"
        "print(table.version())\n"
    )

    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True
    )

    assert done.stdout == "1\n"
    assert f"{script}:3: PublishWarning: t: version 1 is committed" in done.stderr


def test_warning_that_is_an_error_is_raised_after_the_commit(catalog_uri: str) -> None:
    uri = uri_of(catalog_uri, "t")
    dk.write_deltalake(uri, ROWS)
    break_log(dk.DeltaTable(uri))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(dk.PublishWarning, match="version 1 is committed") as raised:
            dk.write_deltalake(uri, ROWS, mode="append")
        # Once for a table: it isn't raised again.
        dk.write_deltalake(uri, ROWS, mode="append")

    assert [c.version for c in raised.value.committed] == [1]
    assert dk.DeltaTable(uri).to_pyarrow_dataset().count_rows() == 6


def append_to_both(transaction: dk.Transaction) -> None:
    with transaction as tx:
        for name in ("a", "b"):
            tx.write(name, ROWS, mode="append")


def test_transaction_knows_what_it_committed_where_a_warning_is_an_error(
    catalog_uri: str,
) -> None:
    for name in ("a", "b"):
        dk.write_deltalake(uri_of(catalog_uri, name), ROWS)
        break_log(dk.DeltaTable(uri_of(catalog_uri, name)))

    transaction = dk.transaction(catalog_uri)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(dk.PublishWarning):
            append_to_both(transaction)

    assert [(c.table, c.version) for c in transaction.committed] == [("a", 1), ("b", 1)]
    for name in ("a", "b"):
        table = dk.DeltaTable(uri_of(catalog_uri, name))
        assert table.to_pyarrow_dataset().count_rows() == 4


def test_publish_that_is_put_off_after_a_failure_says_what_failed(
    tmp_path: Path,
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    dk.write_deltalake(uri, ROWS)
    mend = break_log(table := dk.DeltaTable(uri))
    with told():
        table.delete()
    mend_log(mend)
    with (
        dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog,
        catalog._backend.writing() as session,
    ):
        later = int(time.time() * 1000) + 60_000
        session.script([f"UPDATE dl_mirrors SET next_try_ms = {later}"])
    # As in a process that hasn't been told yet.
    script = (
        "import delkalakedb as dk, pyarrow as pa\n"
        f"dk.write_deltalake({uri!r}, pa.table({{'id': [1]}}), mode='append')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert "version 2 is committed" in done.stderr
    assert "an earlier attempt failed: " in done.stderr
    assert "_delta_log/00000000000000000001.json" in done.stderr


@pytest.mark.parametrize("mode", ["background", "external"])
def test_asynchronous_mirror_warns_only_of_a_publish_that_failed(
    catalog_uri: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", mode)
    uri = uri_of(catalog_uri, "t")
    with told() as warned:
        dk.write_deltalake(uri, ROWS)
        drain()
    assert warned == []
    if mode == "external":
        dk.mirror.run(uri, once=True)
    break_log(dk.DeltaTable(uri))

    with told() as warned:
        dk.write_deltalake(uri, ROWS, mode="append")
        drain()

    expected = [("t", 1)] if mode == "background" else []
    assert [(w.table, w.version) for w in warned] == expected


def test_background_publisher_lives_on_where_warnings_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "background")
    uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    for name in ("a", "b"):
        dk.write_deltalake(f"{uri}?table={name}", ROWS)
    drain()
    break_log(dk.DeltaTable(f"{uri}?table=a"))

    with warnings.catch_warnings():
        warnings.simplefilter("error", dk.PublishWarning)
        for name in ("a", "b"):
            dk.write_deltalake(f"{uri}?table={name}", ROWS, mode="append")
        drain()

    found = {s.table: s.published_version for s in dk.mirror.status(uri)}
    assert found == {"a": 0, "b": 1}


def test_wrong_credentials_are_told_of_a_metadata_only_change(
    s3: Place, tmp_path: Path
) -> None:
    """Without files to read or write, nothing but the publish needs the store."""
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={s3.location}"
    dk.write_deltalake(uri, ROWS, storage_options=s3.storage_options)
    wrong = s3.storage_options | {"AWS_SECRET_ACCESS_KEY": "wr0ng-s3cret"}

    with told() as warned:
        table = dk.DeltaTable(uri, storage_options=wrong)
        table.delete()
        table.alter.set_table_description("none left")

    (warning,) = warned
    assert warning.version == 1
    for text in (KEY, SECRET, "wr0ng-s3cret", "<", "\x1b"):
        assert text not in str(warning)
    (status,) = dk.mirror.status(uri)
    assert (status.ratified_version, status.published_version) == (2, 0)


def test_tables_of_a_transaction_are_published_side_by_side(
    catalog: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits at the store until all of them are there."""
    names, place = ["a", "b", "c"], f"memory:///{uuid.uuid4().hex}"
    with dk.transaction(catalog) as tx:
        for name in names:
            tx.write(name, ROWS, location=f"{place}/{name}")
    together, put_new = threading.Barrier(len(names), timeout=30), RemoteStore.put_new

    def put_together(store: RemoteStore, path: str, *args: Any, **given: Any) -> bool:
        if path.endswith(".json"):
            together.wait()
        return put_new(store, path, *args, **given)

    monkeypatch.setattr(RemoteStore, "put_new", put_together)
    with told() as warned, dk.transaction(catalog) as tx:
        for name in names:
            tx.delete(name)

    assert warned == []
    for status in dk.mirror.status(catalog.uri):
        assert (status.state, status.published_version) == ("published", 1)


def test_one_table_that_fails_keeps_no_other_from_being_published(
    catalog_uri: str,
) -> None:
    names = ("a", "b", "c")
    for name in names:
        dk.write_deltalake(uri_of(catalog_uri, name), ROWS)
    break_log(dk.DeltaTable(uri_of(catalog_uri, "b")))

    with told() as warned, dk.transaction(catalog_uri) as tx:
        for name in names:
            tx.write(name, ROWS, mode="append")

    assert [w.table for w in warned] == ["b"]
    found = {s.table: s.published_version for s in dk.mirror.status(catalog_uri)}
    assert found == {"a": 1, "b": 0, "c": 1}


def test_fence_that_is_not_published_warns_and_stands(catalog_uri: str) -> None:
    uri = uri_of(catalog_uri, "t")
    dk.write_deltalake(uri, ROWS)
    break_log(dk.DeltaTable(uri))

    with told() as warned:
        assert dk.mirror.fence(uri) == 0

    assert [w.version for w in warned] == [1]
    assert "catalogManaged" in (dk.DeltaTable(uri).protocol().writer_features or [])

"""What is refused leaves no file behind, and says why and what to do."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction as AppTransaction

import delkalakedb as dk
from delkalakedb.catalog.commit.ratify import SqlTxnLogWriter
from delkalakedb.errors import (
    CatalogError,
    CommitFailedError,
    DeltalakeDBError,
    StorageError,
    UnknownOutcomeError,
)
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.storage import open_store
from tests.support.servers.stores import KEY, SECRET, Place, s3_options

ROWS = pa.table({"id": [1, 2]})
# Too many for an append by Arrow: delta-rs writes them in a workspace.
MANY = pa.table({"id": range(20_000)})
SIZES = pytest.mark.parametrize("rows", [ROWS, MANY], ids=["small", "workspace"])


def uri_of(catalog_uri: str, name: str = "t") -> str:
    return format_uri(parse_uri(catalog_uri).with_table(name))


def data_files(uri: str) -> set[Path]:
    folder = Path(dk.DeltaTable(uri).table_uri.removeprefix("file://"))
    return {*folder.rglob("*.parquet")} - {*folder.glob("_delta_log/*")}


@contextmanager
def broken(uri: str) -> Iterator[None]:
    """The database refuses to write commits, as it would without the right to."""
    with dk.connect(parse_uri(uri).catalog) as catalog:
        away = "ALTER TABLE dl_table_versions RENAME TO dl_away"
        back = "ALTER TABLE dl_away RENAME TO dl_table_versions"
        with catalog._backend.writing() as session:
            session.script([away])
        try:
            yield
        finally:
            with catalog._backend.writing() as session:
                session.script([back])


@SIZES
def test_append_that_the_database_refuses_removes_its_file(
    catalog_uri: str, rows: pa.Table
) -> None:
    uri = uri_of(catalog_uri)
    dk.write_deltalake(uri, ROWS)
    table, before = dk.DeltaTable(uri), data_files(uri)

    with broken(uri), pytest.raises(CatalogError):
        dk.write_deltalake(table, rows, mode="append")

    assert data_files(uri) == before
    dk.write_deltalake(uri, rows, mode="append")
    assert dk.DeltaTable(uri).to_pyarrow_dataset().count_rows() == 2 + len(rows)


@SIZES
def test_append_that_loses_removes_its_file(catalog_uri: str, rows: pa.Table) -> None:
    uri = uri_of(catalog_uri)
    dk.write_deltalake(uri, ROWS)
    table = dk.DeltaTable(uri)
    dk.DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})
    before = data_files(uri)

    with pytest.raises(CommitFailedError):
        dk.write_deltalake(table, rows, mode="append")

    assert data_files(uri) == before


@SIZES
def test_transaction_that_is_refused_removes_its_files(
    catalog_uri: str, rows: pa.Table
) -> None:
    uris = [uri_of(catalog_uri, name) for name in ("a", "b")]
    for uri in uris:
        dk.write_deltalake(uri, ROWS)
    before = [data_files(uri) for uri in uris]

    def write_all() -> None:
        with dk.transaction(catalog_uri) as tx:
            for name in ("a", "b"):
                tx.write(name, rows, mode="append")
            rename.enter_context(broken(catalog_uri))

    with ExitStack() as rename, pytest.raises(CatalogError):
        write_all()

    assert [data_files(uri) for uri in uris] == before


def test_role_without_the_right_to_write_leaves_no_file(
    postgres_uri: str, tmp_path: Path
) -> None:
    owner = f"{postgres_uri}?data_path={tmp_path}/tables"
    uri = uri_of(owner)
    dk.write_deltalake(uri, ROWS)
    before, parsed = data_files(uri), parse_uri(postgres_uri)
    role = f"r{parsed.database}"
    place = f"{parsed.host}:{parsed.port}/{parsed.database}"
    with psycopg.connect(
        f"postgresql://{parsed.user}:{parsed.password}@{place}", autocommit=True
    ) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'r3ader'")
        try:
            admin.execute(f"GRANT USAGE ON SCHEMA public TO {role}")
            admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
            reader = f"deltasql://postgres/{role}:r3ader@{place}/public"
            for rows in (ROWS, MANY):
                with pytest.raises(DeltalakeDBError, match="permission denied"):
                    dk.write_deltalake(uri_of(reader), rows, mode="append")
        finally:
            admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    assert data_files(uri) == before


@SIZES
def test_file_of_a_commit_whose_outcome_is_unknown_stays(
    catalog_uri: str, rows: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost after the database has the commit, and stays away."""
    uri = uri_of(catalog_uri)
    dk.write_deltalake(uri, ROWS)
    before, attempt = data_files(uri), SqlTxnLogWriter._attempt

    def lose_answer(ratifier: SqlTxnLogWriter, *args: Any, **given: Any) -> Any:
        attempt(ratifier, *args, **given)
        raise UnknownOutcomeError("the connection was lost during COMMIT")

    def away(*_: Any) -> None:
        raise CatalogError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(SqlTxnLogWriter, "_attempt", lose_answer)
        patch.setattr(SqlTxnLogWriter, "_resolve", away)
        with pytest.raises(UnknownOutcomeError):
            dk.write_deltalake(uri, rows, mode="append")

    assert len(data_files(uri)) == len(before) + 1
    assert dk.DeltaTable(uri).to_pyarrow_dataset().count_rows() == 2 + len(rows)


def test_application_that_has_written_already_leaves_no_file(catalog_uri: str) -> None:
    uri = uri_of(catalog_uri)
    dk.write_deltalake(uri, ROWS)
    once = CommitProperties(app_transactions=[AppTransaction("app", 1)])
    dk.write_deltalake(uri, ROWS, mode="append", commit_properties=once)
    before = data_files(uri)

    dk.write_deltalake(uri, ROWS, mode="append", commit_properties=once)

    assert data_files(uri) == before


# ---- stores that refuse

READS: dict[str, Callable[[dk.DeltaTable], Any]] = {
    "table": lambda t: t.to_pyarrow_table(),
    "dataset": lambda t: t.to_pyarrow_dataset().to_table(),
    "scan": lambda t: t.scan(),
    "changes": lambda t: t.load_cdf(),
    "query": lambda t: dk.QueryBuilder().register("t", t),
    "verify": lambda t: dk.verify(t.catalog_uri, storage_options=t._storage_options),
}


def test_wrong_credentials_are_one_plain_error_for_every_read(
    s3: Place, tmp_path: Path
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={s3.location}"
    dk.write_deltalake(uri, ROWS, storage_options=s3.storage_options)
    wrong = s3.storage_options | {"AWS_SECRET_ACCESS_KEY": "wr0ng-s3cret"}
    table = dk.DeltaTable(uri, storage_options=wrong)

    for name, read in READS.items():
        with pytest.raises(StorageError) as raised:
            read(table)
        said = str(raised.value)
        assert "403 Forbidden" in said, name
        assert "check that the credentials in storage_options" in said, name
        for text in (KEY, SECRET, "wr0ng-s3cret", "\x1b", "<", "\n"):
            assert text not in said, name
            assert text not in str(raised.value.__cause__) or name == "verify"


NO_PLACE = (
    '<?xml version="1.0"?><Error><Code>{code}</Code>'
    "<Message>The specified place does not exist.</Message></Error>"
)


@contextmanager
def answering(code: str) -> Iterator[str]:
    """A server that answers every request with a 404 of that code."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            body = NO_PLACE.format(code=code).encode()
            self.send_response(404)
            self.send_header("x-ms-error-code", code)
            self.send_header("content-type", "application/xml")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def azure(endpoint: str) -> dict[str, str]:
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
        "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0LWtleQ==",
        "AZURE_STORAGE_ENDPOINT": endpoint,
        "allow_http": "true",
    }


PLACES = {
    "az://nowhere/t": ("ContainerNotFound", azure, "container nowhere"),
    "abfss://nowhere@devstoreaccount1.dfs.core.windows.net/t": (
        "ContainerNotFound",
        azure,
        "container nowhere",
    ),
    "s3://nowhere/t": ("NoSuchBucket", s3_options, "bucket nowhere"),
}


@pytest.mark.parametrize("location", PLACES)
def test_bucket_or_container_that_is_missing_is_named(
    location: str, tmp_path: Path
) -> None:
    code, options_of, name = PLACES[location]
    with answering(code) as endpoint:
        options = options_of(endpoint)
        store = open_store(location, options)
        for ask in (
            lambda: store.get("_delta_log/x"),
            lambda: store.put_new("x", b"x"),
            lambda: store.put("x", b"x"),
            lambda: list(store.list("_delta_log")),
        ):
            with pytest.raises(StorageError, match=f"there is no {name}; create") as no:
                ask()
            assert "<" not in str(no.value)
        uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={location}"
        with pytest.raises(StorageError, match=f"there is no {name}; create"):
            dk.write_deltalake(uri, ROWS, storage_options=options)

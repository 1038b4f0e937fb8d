"""Postgres over TLS: whose certificate is believed."""

import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import delkalakedb as dk
from delkalakedb.errors import CatalogUnavailableError
from tests.support.actions import add, create, paths
from tests.support.servers.postgres import PASSWORD, Server

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with openssl"
)
SETTINGS = ("ssl=on", "ssl_cert_file=../server.crt", "ssl_key_file=../server.key")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server("fsync=off", *SETTINGS)
    make_certificates(server)
    server.start()
    yield server
    server.stop()


def make_certificates(server: Server) -> None:
    """Two authorities, and a certificate for `localhost` by the first."""
    folder = server.folder
    for name in ("ca", "other"):
        openssl(
            folder,
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt"),
        )
    openssl(
        folder,
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
        *("-CA", "ca.crt", "-CAkey", "ca.key"),
        *("-keyout", "server.key", "-out", "server.crt"),
    )
    key = folder / "server.key"
    key.chmod(0o600)
    shutil.chown(key, folder.owner())


def openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True)
    assert done.returncode == 0, done.stderr


def uri_of(
    server: Server, mode: str, authority: str = "ca", host: str = "localhost"
) -> str:
    """A catalog in a schema of its own, by a server that `authority` must vouch for."""
    where = server.authority.replace("127.0.0.1", host)
    schema = f"s{uuid.uuid4().hex}"
    root = f"sslrootcert={server.folder}/{authority}.crt"
    return f"deltasql://postgres/{where}/postgres/{schema}?sslmode={mode}&{root}"


def refusal(uri: str) -> str:
    with pytest.raises(CatalogUnavailableError) as caught:
        dk.connect(uri)
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mode", ["verify-full", "require"])
def test_tls_works_for_commits_and_bulk_reads(server: Server, mode: str) -> None:
    with dk.connect(uri_of(server, mode)) as catalog:
        create(catalog, "t", add("a"))
        with catalog._backend.reading() as session:
            sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            assert session.query_sql(sql, {}) == [(True,)]
        assert paths(catalog) == ["a"]


def test_certificate_of_another_authority_is_refused(server: Server) -> None:
    assert "certificate verify failed" in refusal(
        uri_of(server, "verify-full", "other")
    )


def test_certificate_for_another_host_is_refused(server: Server) -> None:
    assert 'does not match host name "127.0.0.1"' in refusal(
        uri_of(server, "verify-full", "ca", host="127.0.0.1")
    )


def test_missing_root_certificate_is_refused(server: Server) -> None:
    assert "nowhere.crt" in refusal(uri_of(server, "verify-full", "nowhere"))

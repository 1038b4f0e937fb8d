"""A real PgBouncer in front of the tests' Postgres server."""

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
from tests.support.servers.postgres import PASSWORD, USER

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


class PgBouncer:
    """A pooler with few sessions; it can be killed and started again."""

    def __init__(self, server: str, mode: str, *, sessions: int = 2) -> None:
        info = psycopg.conninfo.conninfo_to_dict(server)
        (self.port,) = free_ports(1)
        self._folder = Path(tempfile.mkdtemp(prefix="dk-pgbouncer-", dir=run.folder()))
        self._process: subprocess.Popen[bytes] | None = None
        self._runner = "nobody" if os.getuid() == 0 else None
        users = self._folder / "users"
        users.write_text(f'"{info["user"]}" "{info["password"]}"\n')
        self._config = self._folder / "pgbouncer.ini"
        self._config.write_text(
            "[databases]\n"
            f"* = host={info['host']} port={info['port']}\n"
            "[pgbouncer]\n"
            "listen_addr = 127.0.0.1\n"
            f"listen_port = {self.port}\n"
            "unix_socket_dir =\n"
            "auth_type = plain\n"
            f"auth_file = {users}\n"
            f"pool_mode = {mode}\n"
            f"default_pool_size = {sessions}\n"
            "max_client_conn = 200\n"
            f"logfile = {self._folder}/log\n"
        )
        if self._runner is not None:
            # PgBouncer refuses to run as root.
            shutil.chown(self._folder, self._runner)
            for file in (users, self._config):
                shutil.chown(file, self._runner)

    @property
    def authority(self) -> str:
        """User, password, host and port, as a URI has them."""
        return f"{USER}:{PASSWORD}@127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [PROGRAM, "--quiet", self._config],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._runner,
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(
                    f"postgresql://{self.authority}/postgres", prepare_threshold=None
                ).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    log = self._folder / "log"
                    raise RuntimeError(log.read_text()) from None
                time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL the pooler: every client and every session loses its line."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Stop, and remove the folder."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

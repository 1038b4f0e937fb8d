"""A standalone cluster of Spark's on this machine: a master and two workers."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from tests.support.servers.ports import free_ports

# Both are this machine: Spark repeats a slow task on another host only.
HOSTS = ("127.0.0.1", "localhost")
_SMALL = {
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
    "SPARK_LOCAL_IP": "127.0.0.1",
    # A task that opens a catalog on an executor fails because of it.
    "DELKALAKEDB_CONFIG": "/no/catalog/here.toml",
}


@dataclass(frozen=True)
class Cluster:
    """Its URL, and the folder with all that it writes down."""

    master: str
    folder: Path


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """Start it, each part in a process of its own; kill it afterwards."""
    port, *more = free_ports(2 + len(HOSTS))
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as running:
        master = ["--host", "127.0.0.1", "--port", str(port)]
        web, *webs = (["--webui-port", str(number)] for number in more)
        running.enter_context(_started(folder, "master.Master", [*master, *web]))
        _wait_for(port)
        for host, web in zip(HOSTS, webs, strict=True):
            size = ["--host", host, "--cores", "1", "--memory", "512m"]
            work = ["--work-dir", str(folder / host)]
            words = [*size, *work, *web, url]
            running.enter_context(_started(folder, "worker.Worker", words))
        yield Cluster(url, folder)


@contextmanager
def _started(folder: Path, name: str, words: Sequence[str]) -> Iterator[None]:
    script = Path(_find_spark_home(), "bin", "spark-class")
    command = [str(script), f"org.apache.spark.deploy.{name}", *words]
    with (folder / f"{name}.{len(os.listdir(folder))}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=os.environ | _SMALL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "no master"
            time.sleep(0.1)

"""A small HTTP server for Prometheus and for probes of a process's health."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from delkalakedb.errors import DeltaError

_TEXT = "text/plain; charset=utf-8"


class MetricsServer:
    """Serves `/metrics`, `/healthz` and `/readyz` in a thread while it is open.

    Args:
        port: the port; 0 takes a free one.
        ready: returns why the process isn't ready, or None if it is.
        host: the address to listen on.
    """

    def __init__(
        self, port: int, ready: Callable[[], str | None], host: str = "127.0.0.1"
    ) -> None:
        metrics = _metrics()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/metrics":
                    kind, body = metrics()
                    self._answer(200, body, kind)
                elif path == "/healthz":
                    self._answer(200, b"ok\n")
                elif path == "/readyz":
                    reason = ready()
                    text = "ok" if reason is None else reason
                    self._answer(200 if reason is None else 503, f"{text}\n".encode())
                else:
                    self._answer(404, b"see /metrics, /healthz and /readyz\n")

            def _answer(self, status: int, body: bytes, kind: str = _TEXT) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing: a probe comes every few seconds."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise DeltaError(
                f"can't serve metrics on {host}:{port}: {error.strerror}; choose "
                "another port"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._server.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _metrics() -> Callable[[], tuple[str, bytes]]:
    """Return a function that gives the process's metrics as Prometheus text.

    Set a provider up, because the program has none.
    """
    try:
        from opentelemetry import metrics
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
    except ImportError as error:
        raise DeltaError(
            "metrics need more packages: pip install 'delkalakedb[metrics]'"
        ) from error
    reader = PrometheusMetricReader()
    metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
    return lambda: (CONTENT_TYPE_LATEST, generate_latest(REGISTRY))

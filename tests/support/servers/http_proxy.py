"""An HTTP proxy in front of a test server, which counts what passes."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# What the proxy answers itself to a request's method and headers, or None.
Answer = Callable[[str, dict[str, str]], tuple[int, bytes] | None]


def pass_on(method: str, headers: dict[str, str]) -> None:
    return None


class Proxy:
    """`endpoint` leads to another; `requests` are the methods that were sent.

    `received_bytes` is how much was answered.
    """

    def __init__(self, endpoint: str, answer: Answer) -> None:
        self.requests: list[str] = []
        self.received_bytes = 0
        self._answer = answer
        self._behind = urlsplit(endpoint).netloc
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                proxy.handle(self)

            do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = forward  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = request.rfile.read(int(headers.get("content-length", 0)))
        self.requests.append(request.command)
        own = self._answer(request.command, headers)
        if own is not None:
            status, content = own
            answered = {"content-length": str(len(content))}
        else:
            status, answered, content = self._ask(request, headers, body)
        self.received_bytes += len(content)
        request.send_response_only(status)
        for name, value in answered.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(content)

    def _ask(
        self, request: BaseHTTPRequestHandler, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        # With the headers as they are, the host too: they are signed.
        connection = HTTPConnection(self._behind)
        connection.request(request.command, request.path, body, headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        answered = {name.lower(): value for name, value in response.getheaders()}
        answered.pop("transfer-encoding", None)
        answered.setdefault("content-length", str(len(content)))
        return response.status, answered, content


@contextmanager
def proxy(endpoint: str, answer: Answer = pass_on) -> Iterator[Proxy]:
    """A proxy in front of an endpoint, as long as the context lasts."""
    running = Proxy(endpoint, answer)
    thread = threading.Thread(target=running.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.server.shutdown()
        running.server.server_close()
        thread.join()

"""A TCP proxy that loses connections on purpose."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

_ESTABLISHED = 1  # TCP_ESTABLISHED of Linux


class Proxy:
    """Passes bytes on to Postgres until the test cuts the line at a COMMIT.

    `cut` says when, once: `before` the server gets it, `during` it (the server has
    it, the client hears nothing more), or `after` the server has answered. With `late`
    the client hears nothing more, and the server gets it when `deliver` is called.
    `at_commit` is called, once, when the server has a COMMIT and nothing behind it.
    `most_open` is the largest number of connections that clients had open at once.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.cut: str | None = None
        self.cuts = 0
        self.most_open = 0
        self._clients: list[socket.socket] = []
        self.at_commit: Callable[[], None] | None = None
        self.deliver: Callable[[], None] | None = None
        self._threads: list[threading.Thread] = []
        self._start(self._serve)

    def refuse(self) -> None:
        """Take no new connections."""
        _cut(self._listener)
        self._listener.close()

    def hang_up(self) -> None:
        """Cut every connection."""
        for end in self._ends:
            _cut(end)

    def close(self) -> None:
        """Refuse, hang up, and leave nothing open."""
        self.refuse()
        self._threads[0].join()
        self.hang_up()
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                self.most_open = max(self.most_open, sum(map(_is_open, self._clients)))
                server = socket.create_connection(("127.0.0.1", self._server))
                self._ends += [client, server]
                self._start(self._pump, client, server, True)
                self._start(self._pump, server, client, False)

    def _pump(self, source: socket.socket, target: socket.socket, asking: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                moment = self._cut_now(data, asking)
                if moment == "during":
                    # First, because the server may answer before the next line runs.
                    _cut(source)
                if moment in (None, "during"):
                    target.sendall(data)
                if moment == "late":
                    self.deliver = partial(target.sendall, data)
                    _cut(source)
                    return
                if moment is not None:
                    break
                if asking and b"COMMIT" in data and self.at_commit is not None:
                    call, self.at_commit = self.at_commit, None
                    call()
        _cut(source)
        _cut(target)

    def _cut_now(self, data: bytes, asking: bool) -> str | None:
        sign = b"COMMIT" if asking else b"COMMIT\0"
        if sign not in data or self.cut is None or asking is (self.cut == "after"):
            return None
        moment, self.cut = self.cut, None
        self.cuts += 1
        return moment


def _is_open(client: socket.socket) -> bool:
    """Return whether neither side has closed a connection."""
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED


def _cut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)

"""A small HTTP server in threads of its own, which answers with one text: metrics."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, cast

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
METRICS_PATH: Final = "/metrics"
CLIENT_TIMEOUT_S: Final = 10.0  # for a client that sends no request, or does not read the answer
# The pause before the next accept after a failed one, for example without free descriptors.
ACCEPT_PAUSE_S: Final = 0.1


def hint(program: str) -> str:
    """Returns the line that other paths answer."""
    return f"{program}: metrics for Prometheus are at {METRICS_PATH}\n"


# A connection; socketserver uses the same name for a datagram with its socket.
_Socket: TypeAlias = Any
_ClientAddress: TypeAlias = Any  # its form depends on the address family


class TextServer:
    """An endpoint for a text.

    It is a context manager, which closes the endpoint at the block's end.

    ``GET`` and ``HEAD`` of ``/metrics`` return the text; of ``/`` they return a line with a hint.
    Other paths are 404, other methods 405. If the text cannot be made, the answer is 500 with the
    reason. Any number of clients may connect at the same time. All methods may be called from
    several threads. A forked child process does not serve.
    """

    __slots__ = ("__weakref__", "_address", "_listener")

    def __init__(
        self, read: Callable[[], str], *, program: str, version: str, address: str, port: int
    ) -> None:
        """Listens, and serves what ``read`` returns for each request.

        Args:
            read: makes the text; called from several threads.
            program: the name of the program that serves.
            version: its version.
            address: a name or a number of this host.
            port: 0: any free port.

        Raises:
            OSError: the server cannot listen there; ``filename`` is the address with the port.
            ValueError: an invalid port.
        """
        if not 0 <= port < 2**16:
            raise ValueError(f"a port must be between 0 and 65535: {port}")
        self._address = address
        self._listener = _Listener(address, port, read, program, version)
        self._listener.start()
        _servers.add(self)

    def __enter__(self) -> Self:
        """Returns the server."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the server."""
        self.close()

    def __repr__(self) -> str:
        """Returns a text with the URL."""
        state = "closed" if self.closed else f"at {self.url}"
        return f"<{type(self).__name__} {state}>"

    @property
    def address(self) -> str:
        """The address to listen on, as it was given."""
        return self._address

    @property
    def port(self) -> int:
        """The port, also if the argument was 0."""
        return self._listener.server_port

    @property
    def url(self) -> str:
        """The URL of the statistics."""
        return f"http://{_host_and_port(self._address, self.port)}{METRICS_PATH}"

    @property
    def closed(self) -> bool:
        """Whether the server was closed, by a call or by a fork."""
        return self not in _servers

    def close(self) -> None:
        """Ends the service. Waits for its threads. A second call does nothing.

        Closes all connections and the socket.
        """
        _servers.discard(self)
        self._listener.close()

    def _forget(self) -> None:
        self._listener.socket.close()


# Keeps all servers alive, and finds them at exit.
_servers: Final[set[TextServer]] = set()


@atexit.register
def _close_all() -> None:
    """Closes all servers. Threads that still run after the exit are killed within a call."""
    for server in list(_servers):
        server.close()


def _forget_all() -> None:
    """Closes the sockets after a fork: no thread serves them in the child process.

    An open socket would keep the port in use.
    """
    for server in list(_servers):
        server._forget()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_all)


def _host_and_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


class _Listener(ThreadingHTTPServer):
    """Accepts connections on one thread and answers each on another; ``close`` ends them all."""

    daemon_threads = True
    allow_reuse_port = False  # the default of newer Pythons would let two servers share a port

    def __init__(
        self, address: str, port: int, read: Callable[[], str], program: str, version: str
    ) -> None:
        self.read: Final = read
        self.hint: Final = hint(program)
        self.software: Final = f"{program}/{version}"
        self._name: Final = f"{program}-metrics"
        self._ending: Final = threading.Event()
        # Guards `_connections`, and prevents that a socket is closed while another thread shuts it
        # down. Reentrant: a garbage collection in the critical section may close a mount and its
        # server.
        self._latch: Final = threading.RLock()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._owner: Final = os.getpid()
        self._thread: Final = threading.Thread(target=self._accept, name=self._name, daemon=True)
        try:
            found = socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            self.address_family = found[0][0]
            super().__init__((address, port), _Handler)
        except OSError as error:
            raise OSError(error.errno, error.strerror, _host_and_port(address, port)) from error
        except UnicodeError as error:
            raise ValueError(f"no address of a host: {address!r}") from error

    def server_bind(self) -> None:
        """Binds without looking up the host's full name, which may wait for a name server."""
        TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = int(self.server_address[1])

    def start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError:
            self.server_close()
            raise

    def close(self) -> None:
        """Ends all threads except the calling one.

        The caller may be one of them, because a garbage collection closes mounts.
        """
        if os.getpid() != self._owner:
            return
        self._ending.set()
        with contextlib.suppress(OSError):  # already closed
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        me = threading.current_thread()
        if self._thread is not me:
            self._thread.join()
        with self._latch:
            for connection in self._connections.values():
                with contextlib.suppress(OSError):  # the client has disconnected
                    connection.shutdown(socket.SHUT_RDWR)
            threads = list(self._connections)
        for thread in threads:
            if thread is not me:
                thread.join()
        self.server_close()

    def _accept(self) -> None:
        while not self._ending.is_set():
            self.handle_request()

    def get_request(self) -> tuple[socket.socket, _ClientAddress]:
        try:
            return super().get_request()
        except OSError:
            # The caller retries at once, and the connection that could not be accepted is still
            # waiting.
            self._ending.wait(ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: _Socket, client_address: _ClientAddress) -> None:
        thread = threading.Thread(
            target=self.process_request_thread,
            args=(request, client_address),
            name=self._name,
            daemon=True,
        )
        with self._latch:
            for ended in [other for other in self._connections if not other.is_alive()]:
                del self._connections[ended]
            try:
                thread.start()
            # No thread can be started, or the interpreter exits: this client gets no answer.
            except RuntimeError:
                self.shutdown_request(request)
            else:
                self._connections[thread] = request

    def shutdown_request(self, request: _Socket) -> None:
        with self._latch:
            super().shutdown_request(request)

    def handle_error(self, request: _Socket, client_address: _ClientAddress) -> None:
        """Ignores errors of clients that disconnect or stop reading and writing."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_TIMEOUT_S

    def version_string(self) -> str:
        """Returns the text of the header ``Server``."""
        return cast(_Listener, self.server).software

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Answers every method, including unknown ones."""
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if self.command not in ("GET", "HEAD"):
            self._send(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD\n", {"Allow": "GET, HEAD"})
        elif path == METRICS_PATH:
            try:
                text = cast(_Listener, self.server).read()
            except Exception as error:
                self._send(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}\n")
            else:
                self._send(HTTPStatus.OK, text, {"Content-Type": CONTENT_TYPE})
        elif path == "/":
            self._send(HTTPStatus.OK, cast(_Listener, self.server).hint)
        else:
            self._send(HTTPStatus.NOT_FOUND, cast(_Listener, self.server).hint)

    def _send(
        self, status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None
    ) -> None:
        body = text.encode("utf-8", "backslashreplace")
        fields = {
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Length": str(len(body)),
        } | dict(headers or {})
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: standard error belongs to the program."""

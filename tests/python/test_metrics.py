"""The server of metrics."""

from __future__ import annotations

import errno
import gc
import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import gpufs
import pytest
from gpufs import _core, grep, metrics

from .conftest import FORKS, in_child
from .exposition_rules import validate

CLIENT_TIMEOUT_S = 20


def get(
    server: metrics.MetricsServer, path: str = "/metrics", method: str = "GET"
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=CLIENT_TIMEOUT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("gpufs-metrics")]


def open_sockets() -> int:
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except FileNotFoundError:  # that of this very listing
            continue
    return sum(link.startswith("socket:") for link in links)


@pytest.fixture
def server(mount: gpufs.Mount) -> Iterator[metrics.MetricsServer]:
    with metrics.serve(mount, port=0) as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    sockets = open_sockets()
    yield
    assert own_threads() == []
    assert open_sockets() == sockets


def test_all_statistics_are_served(
    mount: gpufs.Mount, server: metrics.MetricsServer, tree: Path
) -> None:
    grep.search(mount, grep.Dictionary(["alpha"]), [str(tree)])
    status, text, headers = get(server)
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    series = validate(text)
    labels = (("device", "cpu"), ("mount", "0"), ("ordinal", "0"))
    told = {name: value for (name, found), value in series.items() if found == labels}
    by_path = {(name, dict(found).get("path")): value for (name, found), value in series.items()}
    statistics = mount.stats()
    names = {
        "extents_registered": "gpufs_extents",
        "extent_bytes": "gpufs_extent_bytes",
        "host_open_files": "gpufs_host_open_files",
    }
    for key, value in statistics.items():
        loads = re.fullmatch(r"(direct|staged|bulk|open)_(loads|bytes)", key)
        if key == "fault_latency_ns":
            assert (
                told["gpufs_fault_latency_seconds_count"] == sum(statistics["fault_latency_ns"]) > 0
            )
        elif key == "rpc_wait_ns":
            assert told["gpufs_rpc_wait_seconds_total"] == pytest.approx(
                statistics["rpc_wait_ns"] / 1e9
            )
        elif loads:
            name = {"loads": "gpufs_loads_total", "bytes": "gpufs_loaded_bytes_total"}[loads[2]]
            assert by_path[name, loads[1]] == value
        else:
            assert told[names.get(key, f"gpufs_{key}_total")] == value, key
    assert told["gpufs_cache_bytes"] == mount.cache_bytes
    assert told["gpufs_page_bytes"] == mount.page_bytes
    assert series["gpufs_mounts", ()] == 1
    assert series["gpufs_build_info", (("version", gpufs.__version__),)] == 1


def test_paths_and_methods(server: metrics.MetricsServer) -> None:
    status, text, _ = get(server, "/")
    assert (status, text) == (200, metrics.HINT)
    assert get(server, "/metrics?x=1")[0] == 200
    for path in ("/metric", "/metrics/", "/favicon.ico", "//metrics/.."):
        assert get(server, path)[0] == 404
    for path in ("/", "/metrics"):
        status, text, headers = get(server, path, "HEAD")
        assert (status, text) == (200, "")
        assert int(headers["Content-Length"]) > 0
        with socket.create_connection(
            ("127.0.0.1", server.port), timeout=CLIENT_TIMEOUT_S
        ) as client:
            client.sendall(f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
            assert b"".join(iter(lambda: client.recv(65536), b"")).endswith(b"\r\n\r\n")
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"):
            status, _, headers = get(server, path, method)
            assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_only_this_host_can_connect_by_default(server: metrics.MetricsServer) -> None:
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    assert server.url in repr(server)
    with urllib.request.urlopen(server.url, timeout=CLIENT_TIMEOUT_S) as answer:
        validate(answer.read().decode())
    table = Path("/proc/net/tcp").read_text()
    assert f"0100007F:{server.port:04X} 00000000:0000 0A" in table
    assert f"00000000:{server.port:04X} 00000000:0000 0A" not in table


def test_several_mounts_keep_their_numbers_and_closed_ones_are_left_out(mount: gpufs.Mount) -> None:
    other = gpufs.mount(device="cpu", cache="1MiB", cpu_threads=1, workers=1)
    with other, metrics.serve([other, mount], port=0) as server:
        sizes = cache_sizes(server)
        assert sizes == {"0": 1 << 20, "1": 4 << 20}
        other.close()
        assert cache_sizes(server) == {"1": 4 << 20}
        mount.close()
        assert cache_sizes(server) == {}
        assert validate(get(server)[1])["gpufs_mounts", ()] == 0


def cache_sizes(server: metrics.MetricsServer) -> dict[str, float]:
    series = validate(get(server)[1])
    return {
        dict(labels)["mount"]: value
        for (name, labels), value in series.items()
        if name == "gpufs_cache_bytes"
    }


def test_serving_keeps_no_mount() -> None:
    made = gpufs.mount(device="cpu", cache="1MiB", cpu_threads=1, workers=1)
    core = made._core
    with metrics.serve(made, port=0) as server:
        assert set(cache_sizes(server)) == {"0"}
        del made
        gc.collect()
        assert core.closed
        assert cache_sizes(server) == {}


def test_a_mount_ends_its_own_server() -> None:
    with gpufs.mount(device="cpu", cache="1MiB", cpu_threads=1, workers=1) as mount:
        mount.serve_metrics(port=0)  # kept by nobody
        gc.collect()
        (server,) = mount._servers
        assert get(server)[0] == 200
    assert server.closed
    assert "closed" in repr(server)
    with pytest.raises(ConnectionRefusedError):
        get(server)
    with pytest.raises(ValueError, match="closed"):
        mount.serve_metrics(port=0)


def test_a_mount_that_is_garbage_ends_its_own_server() -> None:
    mount = gpufs.mount(device="cpu", cache="1MiB", cpu_threads=1, workers=1)
    server = mount.serve_metrics(port=0)
    del mount
    gc.collect()
    assert server.closed


def test_errors_of_listening_name_the_address(
    mount: gpufs.Mount, server: metrics.MetricsServer
) -> None:
    with pytest.raises(OSError, match=f"127.0.0.1:{server.port}") as raised:
        metrics.serve(mount, port=server.port)
    assert (raised.value.errno, raised.value.filename) == (
        errno.EADDRINUSE,
        f"127.0.0.1:{server.port}",
    )
    with pytest.raises(OSError, match=r"192\.0\.2\.1:1") as raised:
        metrics.serve(mount, address="192.0.2.1", port=1)
    assert raised.value.errno == errno.EADDRNOTAVAIL
    for port in (-1, 65536):
        with pytest.raises(ValueError, match=str(port)):
            metrics.serve(mount, port=port)


def test_a_port_can_be_taken_again_at_once(mount: gpufs.Mount) -> None:
    with metrics.serve(mount, port=0) as server:
        get(server)
    for _ in range(3):
        with metrics.serve(mount, port=server.port) as again:
            assert again.port == server.port
            assert get(again)[0] == 200


def test_an_error_of_reading_is_told_to_the_client(
    server: metrics.MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_mount: gpufs.Mount) -> gpufs.Statistics:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(gpufs.Mount, "stats", fail)
    status, text, _ = get(server)
    assert status == 500
    assert "Input/output error" in text
    monkeypatch.undo()
    assert get(server)[0] == 200


def test_scrapes_of_several_threads_during_a_search(mount: gpufs.Mount, tmp_path: Path) -> None:
    names = [b'line\nend"', b"caf\xe9\\", *(b"file%d" % number for number in range(20))]
    paths = [os.fsencode(tmp_path) + b"/" + name for name in names]
    for path in paths:
        Path(os.fsdecode(path)).write_text("alpha beta\n" * 20_000)
    for path in paths[:2]:
        assert _core.bench_open(mount._core, path) >= 0  # stays open
    stop = threading.Event()
    failures: list[BaseException] = []
    hits: list[list[float]] = []

    def scrape() -> None:
        mine = []
        try:
            while not stop.is_set() or len(mine) < 2:
                series = validate(get(server)[1])
                mine.append(
                    series[
                        "gpufs_hits_total", (("device", "cpu"), ("mount", "0"), ("ordinal", "0"))
                    ]
                )
                opened = [dict(labels) for name, labels in series if name == "gpufs_file_holders"]
                found = [
                    bytes.fromhex(labels["file_bytes"])
                    if "file_bytes" in labels
                    else labels["file"].encode()
                    for labels in opened
                ]
                assert set(paths[:2]) <= set(found) <= set(paths)
        except BaseException as error:
            failures.append(error)
        hits.append(mine)

    with metrics.serve(mount, port=0, files=True) as server:
        threads = [threading.Thread(target=scrape) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            result = grep.search(mount, grep.Dictionary(["alpha"]), [str(tmp_path)])
            assert result.occurrences == 22 * 20_000
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert all(mine == sorted(mine) for mine in hits)


@pytest.mark.parametrize("what", ["server", "mount"])
def test_closing_while_scraping(what: str) -> None:
    for _ in range(10):
        with gpufs.mount(device="cpu", cache="1MiB", cpu_threads=1, workers=1) as mount:
            server = metrics.serve(mount, port=0)
            failures: list[BaseException] = []
            stop = threading.Event()

            def scrape(
                server: metrics.MetricsServer = server,
                failures: list[BaseException] = failures,
                stop: threading.Event = stop,
            ) -> None:
                while not stop.is_set():
                    try:
                        status, text, _ = get(server)
                    except (OSError, http.client.HTTPException):  # cut off
                        continue
                    try:
                        assert status == 200
                        validate(text)
                    except BaseException as error:
                        failures.append(error)

            threads = [threading.Thread(target=scrape) for _ in range(2)]
            for thread in threads:
                thread.start()
            time.sleep(0.01)
            (server if what == "server" else mount).close()
            time.sleep(0.01)
            stop.set()
            for thread in threads:
                thread.join()
            server.close()
            assert failures == []


def test_clients_that_say_nothing_do_not_hold_up_others_or_the_end(
    mount: gpufs.Mount, server: metrics.MetricsServer
) -> None:
    clients = [
        socket.create_connection(("127.0.0.1", server.port), timeout=3 * CLIENT_TIMEOUT_S)
        for _ in range(5)
    ]
    try:
        clients[0].sendall(b"GET /met")
        for _ in range(3):
            assert get(server)[0] == 200
        start = time.monotonic()
        server.close()
        assert time.monotonic() - start < CLIENT_TIMEOUT_S
        assert own_threads() == []
        for client in clients:
            assert client.recv(100) == b""
    finally:
        for client in clients:
            client.close()
    server.close()


def test_a_server_may_be_closed_by_its_own_threads(
    server: metrics.MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a collection of garbage, which finds a mount there."""
    closed = []

    def close(_mount: gpufs.Mount) -> None:
        server.close()
        closed.append(True)

    monkeypatch.setattr(gpufs.Mount, "stats", close)
    with pytest.raises((OSError, http.client.HTTPException)):
        get(server)
    monkeypatch.undo()
    deadline = time.monotonic() + CLIENT_TIMEOUT_S
    while own_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert closed == [True]


@FORKS
def test_a_forked_process_does_not_serve(mount: gpufs.Mount) -> None:
    server = metrics.serve(mount, port=0)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent has ended or closed
        os._exit(0)
    os.close(reader)
    assert get(server)[0] == 200
    server.close()
    with metrics.serve(mount, port=server.port) as again:  # the child must not hold it
        assert get(again)[0] == 200

        def close_in_child() -> str:
            again.close()
            return f"{again.closed} {open_sockets()}"

        client = http.client.HTTPConnection("127.0.0.1", again.port, timeout=CLIENT_TIMEOUT_S)
        client.connect()
        assert get(again)[0] == 200  # so the other connection is accepted
        before = open_sockets()
        assert in_child(close_in_child) == f"returned True {before - 1}"
        client.request("GET", "/metrics")  # the child must not cut it off
        assert client.getresponse().status == 200
        client.close()
        assert get(again)[0] == 200
    assert in_child(lambda: metrics.exposition([mount])).endswith("gpufs_mounts 0")
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "del mount", "mount.close()"])
def test_the_interpreter_ends_quietly(ending: str) -> None:
    program = f"""
import atexit, socket, sys, threading, time, urllib.request
atexit.register(
    lambda: print([thread.name for thread in threading.enumerate() if "gpufs" in thread.name])
)
import gpufs
from gpufs import _exposition, metrics
mount = gpufs.mount(device="cpu", cache="1MiB", cpu_threads=1, workers=1)
server = metrics.serve(mount, port=0)
mount.serve_metrics(port=0)
url = server.url
port = server.port
silent = socket.create_connection(("127.0.0.1", port))
gone = socket.create_connection(("127.0.0.1", port))
gone.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
gone.close()
def scrape():
    while True:
        try:
            urllib.request.urlopen(url).read()
        except Exception:
            pass
for _ in range(2):
    threading.Thread(target=scrape, daemon=True).start()
time.sleep(0.1)
del server
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)


def test_who_serves_nothing_imports_nothing_of_it() -> None:
    program = (
        "import sys, gpufs; "
        "sys.exit('http.server' in sys.modules or 'gpufs.metrics' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import gpufs
import pytest
from gpufs import grep, metrics, top
from hypothesis import given
from hypothesis import strategies as st

from .conftest import TIMEOUT_S, Command, command_line

URL = "http://127.0.0.1:1/metrics"


@contextmanager
def answering(*answers: bytes, status: int = 200) -> Iterator[int]:
    """Serves these answers in order, and then the last one repeatedly; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    left = list(answers)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def answer(**counts: int) -> str:
    """An answer of gpufs whose counters are these, those by path as `loads_direct`."""
    lines = ['gpufs_build_info{version="0"} 1']
    for name, value in counts.items():
        by_path = re.fullmatch(r"(loads|loaded_bytes)_(direct|staged|bulk|open)", name)
        name = by_path[1] if by_path else name
        path = f',path="{by_path[2]}"' if by_path else ""
        lines.append(f'gpufs_{name}_total{{mount="0",device="cuda",ordinal="3"{path}}} {value}')
    return "".join(f"{line}\n" for line in lines)


def compared(before: str, after: str, seconds: float = 2.0) -> top.Update:
    return top.compare(top.read(before, URL), top.read(after, URL), seconds)


# --- Where it asks ---


@pytest.mark.parametrize(
    ("where", "url"),
    [
        (None, "http://127.0.0.1:9464/metrics"),
        ("80", "http://127.0.0.1:80/metrics"),
        ("host:8000", "http://host:8000/metrics"),
        ("http://host", "http://host/metrics"),
        ("http://host:1/", "http://host:1/metrics"),
        ("https://host:1/other/metrics?x=1#y", "https://host:1/other/metrics?x=1"),
        ("http://[::1]:9/metrics", "http://[::1]:9/metrics"),
    ],
)
def test_where_it_asks(where: str | None, url: str) -> None:
    assert top.locate(where) == url


@pytest.mark.parametrize(
    "where",
    ["", "0", "65536", "file:///etc/passwd", "ftp://host", "http://", "host:99999", "http://[::1"],
)
def test_where_it_cannot_ask(where: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        top.locate(where)


# --- What it computes ---


def test_rates_are_what_was_counted_in_between() -> None:
    before = answer(
        hits=100,
        minor_faults=1,
        loads_direct=10,
        loads_staged=0,
        loads_bulk=5,
        loads_open=7,
        opens=4,
    )
    after = answer(
        **{
            "hits": 190,
            "minor_faults": 3,
            "loads_direct": 14,
            "loads_staged": 4,
            "loads_bulk": 9,
            "loads_open": 8,
        },
        **{
            "loaded_bytes_direct": 4_000_000,
            "opens": 10,
            "write_backs": 6,
            "load_errors": 2,
            "no_frames": 1,
        },
    )
    update = compared(before, after)
    ((label, rates),) = update.mounts.items()
    assert label == top.Label("0", "cuda", "3")
    assert rates == update.all
    assert rates.hits_per_s == 45
    assert rates.minor_faults_per_s == 1
    assert rates.hit_ratio == 90 / (90 + 2 + 4 + 4)
    assert rates.loads_per_s == {"direct": 2, "staged": 2, "bulk": 2, "open": 0.5}
    assert rates.loaded_bytes_per_s == {"direct": 2e6, "staged": 0, "bulk": 0, "open": 0}
    assert (rates.opens_per_s, rates.write_backs_per_s) == (3, 3)
    assert (rates.errors, rates.errors_total) == (3, 3)
    assert (rates.latency_p50_s, rates.latency_p99_s) == (None, None)
    shown = dict(top.rows(rates))
    assert (shown["hits/s"], shown["hit ratio"], shown["direct MB/s"], shown["errors"]) == (
        "45",
        "90.0%",
        "2.0",
        "3",
    )
    assert compared(after, after).all.errors == 0
    assert compared(after, after).all.errors_total == 3
    assert compared(after, after).all.hit_ratio is None


def test_counters_that_begin_again_have_counted_from_0() -> None:
    assert compared(answer(hits=1000), answer(hits=10)).all.hits_per_s == 5
    assert compared(answer(), answer(hits=10)).all.hits_per_s == 5


def test_several_mounts_are_summed() -> None:
    before = answer(hits=10)
    after = answer(hits=20) + answer(hits=40).replace('mount="0"', 'mount="1"').split("\n", 1)[1]
    update = compared(before, after)
    assert [rates.hits_per_s for rates in update.mounts.values()] == [5, 20]
    assert update.all.hits_per_s == 25
    assert [mount["mount"] for mount in update.to_json()["mounts"]] == ["0", "1"]


def test_latencies_are_those_in_between() -> None:
    def histogram(*counts: int) -> str:
        bounds = ("1e-06", "2e-06", "+Inf")
        lines = [
            f'gpufs_fault_latency_seconds_bucket{{mount="0",le="{bound}"}} {count}'
            for bound, count in zip(bounds, counts, strict=True)
        ]
        return answer() + "".join(f"{line}\n" for line in lines)

    rates = compared(histogram(100, 100, 100), histogram(100, 200, 200)).all
    assert rates.latency_p50_s == pytest.approx(1.5e-6)
    assert rates.latency_p99_s == pytest.approx(1.99e-6)
    assert dict(top.rows(rates))["fault p50"] == "1.5 us"
    again = compared(histogram(100, 100, 100), histogram(10, 10, 10)).all  # begun again
    assert again.latency_p50_s == pytest.approx(0.5e-6)
    assert compared(histogram(5, 5, 5), histogram(5, 5, 6)).all.latency_p99_s == pytest.approx(2e-6)


@given(st.lists(st.integers(1, 2**31 - 1), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_true_one(times_ns: list[int], share: float) -> None:
    bounds_ns = [2 ** (bit + 1) - 1 for bit in range(31)]
    buckets = {bound / 1e9: float(sum(time <= bound for time in times_ns)) for bound in bounds_ns}
    buckets[float("inf")] = len(times_ns)
    found = top.quantile(buckets, share)
    assert found is not None
    wanted = share * len(times_ns)
    true = next(time for rank, time in enumerate(sorted(times_ns), 1) if rank >= wanted)
    assert (
        2 ** (true.bit_length() - 1) - 1 - 1e-6 <= found * 1e9 <= 2 ** true.bit_length() - 1 + 1e-6
    )


# --- The command ---


def test_an_update_is_a_line(run: Command, mount: gpufs.Mount, tree: Path) -> None:
    with mount.serve_metrics(port=0) as server:
        done = run("top", str(server.port), "-n", "3", "-i", "0.05")
        assert (done.stderr, done.returncode) == (b"", 0)
        lines = done.stdout.decode().splitlines()
        assert len(lines) == 3
        for line in lines:
            assert re.match(r"[0-9:]{8}  hits/s 0  hit ratio -  direct loads/s 0  ", line)
            assert line.endswith("  fault p50 -  fault p99 -  errors 0")


def test_an_update_is_an_object(run: Command, mount: gpufs.Mount, tree: Path) -> None:
    stop = threading.Event()

    def search() -> None:
        while not stop.is_set():
            grep.search(mount, grep.Dictionary(["alpha"]), [str(tree)])

    with mount.serve_metrics(port=0) as server:
        searcher = threading.Thread(target=search)
        searcher.start()
        try:
            done = run("top", server.url, "-n", "8", "--interval", "0.3", "--json")
        finally:
            stop.set()
            searcher.join()
    assert (done.stderr, done.returncode) == (b"", 0)
    # A late answer makes one update short; and a searcher that stands still makes one empty.
    updates = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(updates) == 8
    times = [update["time"] for update in updates]
    assert times == sorted(set(times))
    assert sum(update["seconds"] for update in updates) >= 8 * 0.2
    for update in updates:
        (one,) = update["mounts"]
        assert one == {"mount": "0", "device": "cpu", "ordinal": "0"} | update["all"]
        assert set(update["all"]) == set(top.Rates.__dataclass_fields__)
        assert one["errors_total"] == 0
    assert any(u["all"]["opens_per_s"] + u["all"]["reopens_per_s"] > 0 for u in updates)
    assert any(u["all"]["read_bytes_per_s"] > 0 for u in updates)
    assert top.__doc__ is not None
    assert all(f"``{name}``" in top.__doc__ for name in (*one, *updates[0]))


def test_an_endpoint_without_open_mounts_is_said_so(run: Command, mount: gpufs.Mount) -> None:
    with metrics.serve(mount, port=0) as server:
        mount.close()
        done = run("top", str(server.port), "-n", "1", "-i", "0.05")
        assert done.stdout.decode().endswith("  no mount is open\n")
        done = run("top", str(server.port), "-n", "1", "-i", "0.05", "--json")
        assert json.loads(done.stdout)["mounts"] == []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_nothing_listens(run: Command) -> None:
    port = free_port()
    done = run("top", str(port))
    assert done.stderr == f"gpufs: http://127.0.0.1:{port}/metrics: Connection refused\n".encode()
    assert (done.stdout, done.returncode) == (b"", 2)


def test_no_proxy_is_asked(run: Command, mount: gpufs.Mount) -> None:
    with mount.serve_metrics(port=0) as server:
        environment = dict(os.environ) | {
            "http_proxy": f"http://127.0.0.1:{free_port()}",
            "no_proxy": "",
        }
        assert run("top", server.url, "-n", "1", "-i", "0.05", env=environment).returncode == 0


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        (b"<html>", 200, "not a sample"),
        (b"node_load1 0.5\n", 200, "no gpufs_build_info"),
        (b"", 200, "no gpufs_build_info"),
        (b"\xff\n", 200, "no text"),
        (b"nothing\n", 404, "404 Not Found"),
        (
            answer().encode() + b'gpufs_fault_latency_seconds_bucket{mount="0"} 1\n',
            200,
            "a bucket without a bound",
        ),
    ],
)
def test_what_answers_is_something_else(
    run: Command, content: bytes, status: int, text: str
) -> None:
    with answering(content, status=status) as port:
        done = run("top", str(port))
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"gpufs: http://127.0.0.1:{port}/metrics: not metrics of gpufs: ")
    assert text in line
    assert (done.stdout, done.returncode) == (b"", 2)


def test_what_answers_speaks_no_http(run: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")
                connection.recv(65536)

        greeter = threading.Thread(target=greet)
        greeter.start()
        done = run("top", str(server.getsockname()[1]))
        greeter.join()
    assert b"not metrics of gpufs: no HTTP" in done.stderr
    assert (len(done.stderr.splitlines()), done.stdout, done.returncode) == (1, b"", 2)


@pytest.mark.parametrize(
    "piece", [b"", b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\ngpufs_build_info 1\n"]
)
def test_an_answer_that_is_cut_off(piece: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def begin() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(piece)

        beginner = threading.Thread(target=begin)
        beginner.start()
        url = top.locate(str(server.getsockname()[1]))
        with pytest.raises(ConnectionResetError) as raised:
            top.fetch(url)
        beginner.join()
    assert raised.value.filename == url
    assert raised.value.strerror == "Connection reset by peer"


def test_labels_cannot_command_the_terminal() -> None:
    update = compared(answer(), answer(hits=1).replace('"cuda"', '"\x1b[2Jcuda"'))
    (label,) = update.mounts
    assert label.device.isprintable()


@pytest.mark.parametrize(
    "arguments", [["-i", "0"], ["-i", "x"], ["-n", "0"], ["1", "2"], ["ftp://host"]]
)
def test_wrong_use_is_one_line(run: Command, arguments: list[str]) -> None:
    done = run("top", *arguments)
    assert done.stderr.startswith(b"gpufs: ")
    assert (len(done.stderr.splitlines()), done.stdout, done.returncode) == (1, b"", 2)


def watch(
    arguments: list[bytes], ended: Callable[[bytes], bool], end: Callable[[int], None]
) -> tuple[int, bytes]:
    """Runs a command on a terminal. Returns its status and text. `end` gets the process's id."""
    ours, theirs = pty.openpty()
    environment = dict(os.environ) | {"TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    shown = b""
    with subprocess.Popen(
        arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        done = False
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                shown += os.read(ours, 65536)
            except OSError:  # EIO: the other side is closed
                break
            if not done and ended(shown):
                done = True
                end(process.pid)
        process.wait(TIMEOUT_S)
    os.close(ours)
    return process.returncode, shown


def test_a_terminal_shows_a_table_until_an_interrupt(mount: gpufs.Mount) -> None:
    other = gpufs.mount(device="cpu", cache="1MiB", cpu_threads=1, workers=1)
    with other, metrics.serve([mount, other], port=0) as server:
        status, shown = watch(
            command_line("top", str(server.port), "-i", "0.05"),
            lambda shown: shown.count(b"errors") >= 3,
            lambda process: os.kill(process, signal.SIGINT),
        )
    assert status == 0
    for text in (
        server.url,
        "mount 0: cpu 0",
        "mount 1: cpu 0",
        "all",
        "hit ratio",
        "fault p99",
        "staged MB/s",
    ):
        assert text.encode() in shown
    assert b"Traceback" not in shown
    assert shown.rstrip().endswith(b"\x1b[?25h")  # the cursor is back


def test_a_terminal_is_told_when_the_program_ends(mount: gpufs.Mount) -> None:
    server = mount.serve_metrics(port=0)
    status, shown = watch(
        command_line("top", str(server.port), "-i", "0.05"),
        lambda shown: b"errors" in shown,
        lambda _process: mount.close(),
    )
    assert status == 2
    # The latter where the end came between a question and its answer.
    told = shown.rstrip().splitlines()[-1].removeprefix(b"\x1b[?25h").decode()
    assert told in (
        f"gpufs: {server.url}: Connection {why}" for why in ("refused", "reset by peer")
    )
    assert b"\x1b[?25h" in shown


def test_an_interrupt_without_a_terminal_is_quiet(mount: gpufs.Mount) -> None:
    with mount.serve_metrics(port=0) as server:
        arguments = command_line("top", str(server.port), "-i", "0.05")
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert b"hits/s" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=TIMEOUT_S)
    assert (errors, process.returncode) == (b"", 0)

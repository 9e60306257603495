"""`gpufs bench` on the CPU device: its behaviour and its output, not its numbers."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpufs
import pytest
from gpufs import _core, bench
from gpufs.bench import _alone, _measure, _quiet, _report, _results, _world, plots
from gpufs.cli._bench import replace_file

from .conftest import TIMEOUT_S, Command, command_line
from .test_command_line import on_terminal

SMALL = ("bench", "--device", "cpu", "--quick", "--size", "4MiB")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of content that is so old that no run has to wait for it."""
    path = tmp_path_factory.mktemp("bench") / "file"
    _core.bench_write_content(os.fsencode(path), 0, 4 << 20)
    time.sleep(_world.SETTLING_S)
    return path


def measured(name: str = "gpufs", value: float | None = 1.0, **more: Any) -> bench.Measurement:
    return bench.Measurement(
        name, "GB/s", value, **({"seconds": [1.0, 1.1], "cpu_seconds": [0.0, 0.0]} | more)
    )


def results_of(*lines: bench.Line, **more: Any) -> bench.Results:
    facts = {
        "version": "1",
        "commit": "c",
        "date": "d",
        "device": "cpu",
        "device_name": "the CPU",
        "quick": True,
    }
    table = bench.Table("random", "title", "page", list(lines))
    return bench.Results(
        **(facts | {"file_bytes": 4096, "machine": {}, "benchmarks": [table]} | more)
    )


def test_the_list_names_each_benchmark(run: Command) -> None:
    done = run("bench", "--list")
    names = [line.split()[0].decode() for line in done.stdout.splitlines()]
    assert names == [*bench.BENCHMARKS, *bench.GROUPS]
    assert (done.stderr, done.returncode) == (b"", 0)


def test_what_was_measured_is_kept_when_the_run_is_cut_off(tmp_path: Path, file: Path) -> None:
    out = tmp_path / "out.json"
    running = subprocess.Popen(
        command_line(
            *SMALL, "random", "large", "staged", "hits", "gather", "--file", file, "--json", out
        ),
        stdout=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + TIMEOUT_S
        while not out.exists():
            assert running.poll() is None, "it ended before it wrote anything"
            assert time.monotonic() < end
            time.sleep(0.001)
    finally:
        running.kill()
        running.wait()
    kept = bench.read(out)
    assert kept.benchmarks[0].name == "random"
    assert kept.benchmarks[0].lines
    assert {table.name for table in kept.benchmarks} < {
        "random",
        "large",
        "staged",
        "hits",
        "gather",
    }


def test_results_that_are_kept_outlive_a_disk_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.json"
    replace_file(str(out), "first")
    refused = OSError(errno.ENOSPC, "No space left on device", "part")
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(refused))
    with pytest.raises(OSError, match="No space left on device") as error:
        replace_file(str(out), "second")
    assert error.value.filename == str(out)
    assert out.read_bytes() == b"first"
    # A file that cannot be replaced is written in its place.
    refused = OSError(errno.EBUSY, "Device or resource busy", "part")
    replace_file(str(out), "third")
    assert out.read_bytes() == b"third"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_json_may_go_to_what_is_no_file(run: Command, file: Path) -> None:
    done = run(*SMALL, "random", "--file", file, "--json", "/dev/stderr")
    assert done.returncode == 0
    assert json.loads(done.stderr)["benchmarks"][0]["name"] == "random"


def test_json_holds_what_was_measured_where(run: Command, tmp_path: Path, file: Path) -> None:
    out = tmp_path / "out.json"
    done = run(*SMALL, "random", "idle", "--file", file, "--json", out)
    assert (done.stderr, done.returncode) == (b"", 0)
    assert b"this is the CPU device" in done.stdout
    content = json.loads(out.read_text())
    assert set(content) == {
        *(
            "schema",
            "version",
            "commit",
            "date",
            "device",
            "device_name",
            "quick",
            "file_bytes",
            "machine",
        ),
        "benchmarks",
    }
    assert (content["schema"], content["version"], content["device"]) == (
        1,
        gpufs.__version__,
        "cpu",
    )
    assert (content["file_bytes"], content["quick"]) == (4 << 20, True)
    assert content["machine"]["host"]["cpus"] >= 1
    assert content["machine"]["built_with"] == _core.built_with
    assert [table["name"] for table in content["benchmarks"]] == ["random", "idle"]
    random = content["benchmarks"][0]["lines"]
    assert [line["parameters"] for line in random] == [
        {"page": 512},
        {"page": 4096},
        {"page": 65536},
    ]
    for line in random:
        assert set(line) == {"parameters", "ours", "limit", "target", "peers"}
        for one in (line["ours"], line["limit"]):
            assert len(one["seconds"]) == len(one["cpu_seconds"]) == 3
            assert one["value"] > 0
            assert (one["bytes"], one["wrong_bytes"], one["unit"]) == (4 << 20, 0, "GB/s")
        assert line["ours"]["operations"] * line["parameters"]["page"] == 4 << 20
        # First touches: each page was loaded, directly but for the one that tells of the extent.
        assert line["ours"]["counters"]["direct_loads"] == line["ours"]["operations"] - 1
        assert line["limit"]["name"] == "raw pulls"
    assert bench.read(out).to_json() == out.read_text()


@pytest.mark.parametrize(
    "name", [name for name in bench.BENCHMARKS if name not in ("random", "idle")]
)
def test_each_benchmark_runs_and_its_data_is_right(
    run: Command, tmp_path: Path, name: str, file: Path
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "text").write_text("some words of source text\n" * 100)
    out = tmp_path / "out.json"
    done = run(*SMALL, name, "--file", file, "--tree", tmp_path / "tree", "--json", out)
    assert (done.stderr, done.returncode) == (b"", 0)
    assert b"wrong" not in done.stdout
    results = bench.read(out)
    lines = results.benchmarks[0].lines
    assert lines
    assert results.wrong_bytes == 0
    if name != "limits":
        # Where the page cache cannot be dropped (tmpfs), there is a reason and no number.
        for line in lines:
            assert line.ours is not None
            assert line.ours.value or line.parameters.get("state") == "dropped"


def test_the_service_is_measured_under_kernels_that_do_not_need_it(
    run: Command, tmp_path: Path, file: Path
) -> None:
    out = tmp_path / "out.json"
    assert run(*SMALL, "idle", "--file", file, "--json", out).returncode == 0
    lines = bench.read(out).benchmarks[0].lines
    assert [line.parameters for line in lines] == [
        {"load": "idle"},
        {"load": "hits"},
        {"load": "direct"},
    ]
    for line, counter in zip(lines, (None, "hits", "direct_loads"), strict=True):
        assert line.ours is not None
        assert line.ours.unit == "% of a core"
        # Far less than the kernels, which are threads of the same process, used.
        assert 0 < line.ours.cores < 0.5
        assert min(line.ours.seconds) > 0
        if counter is not None:
            # The CPU device's few threads can come to the same page of a small file at once.
            assert line.ours.counters[counter] > line.ours.operations / 2
            assert "rpcs" not in line.ours.counters


def test_an_own_process_gives_its_errors_to_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    def world(path: Path) -> bench.World:
        return bench.World.make(
            "cpu",
            file=os.fspath(path),
            size=4 << 20,
            quick=True,
            tree=[],
            tell=lambda text: print(text),
        )

    missing = tmp_path / "missing"
    with pytest.raises(FileNotFoundError) as raised:
        next(_alone.alone(_quiet.samples, world(missing), "idle")())
    assert raised.value.filename == os.fspath(missing)
    monkeypatch.setattr(_alone, "_CHILD", "raise SystemExit")
    with pytest.raises(OSError, match="ended early"):
        next(_alone.alone(_quiet.samples, world(file), "idle")())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ModuleNotFoundError('No module', name='kvikio')", "no kvikio here"),
        (
            "ImportError('libkvikio.so: cannot open shared object file')",
            "kvikio: libkvikio.so: cannot open",
        ),
        ("OSError('libcufile.so.0: no such file')", "kvikio: libcufile.so.0: no such file"),
        ("RuntimeError('not found:\\n  libnvvm.so.4')", "kvikio: not found:\n"),
        ("RuntimeError()", "kvikio: RuntimeError\n"),
    ],
)
def test_a_peer_that_cannot_be_imported_is_one_line(
    run: Command, tmp_path: Path, file: Path, error: str, reason: str
) -> None:
    (tmp_path / "kvikio.py").write_text(f"raise {error}\n")
    path = os.pathsep.join([os.fspath(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    done = run(*SMALL, "random", "--file", file, env=dict(os.environ) | {"PYTHONPATH": path})
    assert (done.stderr, done.returncode) == (b"", 0)
    (line,) = (line for line in done.stdout.decode().splitlines(keepends=True) if "KvikIO" in line)
    assert line.startswith(f"  KvikIO (16 threads): not measured: {reason}")


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        ("exit 0", "rg -w "),
        ("exit 2", "rg -w "),  # a file that it could not read, about which it was told to be silent
        (
            "echo 'regex is too large' >&2; echo more >&2; exit 2",
            "  rg -w: not measured: rg: regex is too large\n",
        ),
        ("exec sleep 30", "  rg -w: not measured: over 5 s\n"),
    ],
)
def test_ripgrep_is_found_in_path_and_not_waited_for_long(
    run: Command, tmp_path: Path, tree: Path, file: Path, script: str, shown: str
) -> None:
    rg = tmp_path / "bin" / "rg"
    rg.parent.mkdir()
    rg.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n{script}\n')
    rg.chmod(0o755)
    path = f"{rg.parent}{os.pathsep}{os.environ['PATH']}"
    out = tmp_path / "out.json"
    done = run(
        *(*SMALL, "grep", "--file", file, "--tree", tree, "--json", out),
        env=dict(os.environ) | {"PATH": path},
    )
    assert (done.stderr, done.returncode) == (b"", 0)
    assert shown in done.stdout.decode()
    cores = len(os.sched_getaffinity(0))
    called = (tmp_path / "called").read_text().splitlines()
    assert all(
        f"--no-config -j {cores} " in line and line.endswith(f" -- {tree}") for line in called
    )
    assert {" -w " in line for line in called} == {True, False}
    (line,) = bench.read(out).benchmarks[0].lines
    assert line.parameters["words"] in (6, 500)  # the tree's, or out of a dictionary
    assert line.limit is not None
    assert line.limit.name == f"CPU device, {min(16, cores)} cores"


def test_wrong_data_is_seen_and_status_1(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "file"
    done = run(*SMALL, "random", "--file", file)
    assert (done.stderr, done.returncode) == (b"", 0)
    assert file.stat().st_size == 4 << 20  # left there: it has the user's name
    with file.open("r+b") as out:
        out.seek((4 << 20) // 2 + 123)
        out.write(b"\0")
    done = run(*SMALL, "random", "hits", "--file", file, "--json", tmp_path / "out.json")
    assert done.returncode == 1
    assert b"B wrong" in done.stdout
    assert done.stderr.startswith(b"gpufs: ")
    assert done.stderr.endswith(b"bytes that were read were wrong\n")
    for table in bench.read(tmp_path / "out.json").benchmarks:
        for line in table.lines:
            assert line.ours is not None
            # The byte's whole word, seen in the warm-up and each of three runs.
            assert line.ours.wrong_bytes == 4 * 8


def test_a_file_of_somebody_else_is_refused_and_left_alone(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "precious"
    for content in (b"", b"not ours\n" * 100_000):
        file.write_bytes(content)
        done = run(*SMALL, "random", "--file", file)
        assert (
            done.stderr
            == (
                f"gpufs: {file} was not made by gpufs bench: "
                "name a new file, and it will be written\n"
            ).encode()
        )
        assert (done.stdout, done.returncode) == (b"", 2)
        assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["no-such-benchmark"], "no benchmark 'no-such-benchmark'"),
        (["random", "--size", "much"], "'much'"),
        (["random", "--file", "missing/file"], "missing"),
        (["random", "--json", "missing/out.json"], "missing/out.json: No such file or directory"),
        (["random", "--json", "/tmp"], "/tmp: Is a directory"),
        (["compare"], "compare needs two files"),
        (["compare", "missing", "missing"], "missing: No such file or directory"),
        (["compare", "OTHER", "OTHER"], "these are no results of gpufs bench"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(
    run: Command, tmp_path: Path, arguments: list[str], text: str
) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"schema": 1}')
    done = run(
        "bench", "--device", "cpu", *(str(other) if word == "OTHER" else word for word in arguments)
    )
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("gpufs: ")
    assert text in line
    assert done.returncode == 2


def test_plots_without_matplotlib_are_one_line_before_any_work(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['matplotlib'] = None; from gpufs.cli import main;"
        f"sys.exit(main(['bench', '--device', 'cpu', 'random', '--plot', {str(tmp_path)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stderr == b"gpufs: plots need matplotlib: pip install 'gpufs[bench]'\n"
    assert (done.stdout, done.returncode) == (b"", 2)


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_plots_are_drawn_for_benchmarks_with_an_axis(
    run: Command, tmp_path: Path, file: Path
) -> None:
    done = run(*SMALL, "random", "reopen", "--file", file, "--plot", tmp_path / "plots")
    assert done.returncode == 0
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == [
        "random.pdf",
        "random.png",
    ]


def test_what_changes_with_the_axis_makes_no_series_of_its_own() -> None:
    cases = [
        ("map", 512, 512),
        ("map", 4096, 4096),
        ("read", 4096, 1024),
        ("read", 4096, 4096),
        ("read", 65536, 4096),
    ]
    lines = [
        _results.Line({"access": access, "page": page, "chunk": chunk}, None, None, None)
        for access, page, chunk in cases
    ]
    assert plots._kinds(_results.Table("hits", "Hits", "chunk", lines), lines) == [
        *["map"] * 2,
        *["read, page 4 KiB"] * 2,
        "read, page 64 KiB",
    ]


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_plots_leave_out_rows_that_have_no_place_on_the_axis(tmp_path: Path) -> None:
    def line(value: float, **parameters: _results.Value) -> _results.Line:
        return _results.Line(parameters, _measure.Measurement("gpufs", "GB/s", value), None, None)

    lines = [
        line(3, what="cached"),
        line(1, what="file", workers=1),
        line(2, what="file", workers=8),
    ]
    table = _results.Table("writing", "Writing", "workers", lines)
    results = _results.Results("0", "none", "today", "cpu", "the CPU", True, 1, {}, [table])
    assert [path.name for path in plots.draw(results, tmp_path)] == ["writing.png", "writing.pdf"]


def test_programs_are_drawn_against_the_one_for_the_cpu() -> None:
    peers = [
        measured("CPU, 2 threads", 2.0),
        measured("CUDA", 6.0),
        measured("CPU device, 1 cores", 1.0),
    ]
    both = bench.Line(
        {"words": 5}, measured(value=8.0), measured("CPU device, 2 cores", 1.5), None, peers
    )
    old = bench.Line(
        {"words": 6},
        measured(value=8.0),
        measured("CPU device, 2 cores", 2.0),
        None,
        [measured("rg", 1.0)],
    )
    table = _results.Table("grep", "Words", "words", [both, old])
    assert dict(plots._programs(table)) == {
        "grep: 5": {"gpufs": 4.0, "CPU device": 0.75, "CUDA": 3.0},
        "grep: 6": {"gpufs": 4.0, "rg": 0.5},
    }


def test_lines_without_a_program_for_the_cpu_are_drawn_against_that_of_the_same_sizes() -> None:
    first = bench.Line(
        {"rows": 5, "run": "first"},
        measured(value=8.0),
        None,
        None,
        [measured("CPU, 2 threads", 2.0)],
    )
    other = bench.Line(
        {"rows": 6, "run": "first"},
        measured(value=8.0),
        None,
        None,
        [measured("CPU, 2 threads", 4.0)],
    )
    again = bench.Line(
        {"rows": 5, "run": "again"}, measured(value=12.0), measured("CUDA", 3.0), None, []
    )
    alone = bench.Line({"rows": 7, "run": "again"}, measured(value=12.0), None, None, [])
    table = _results.Table("matvec", "Products", "rows", [first, other, again, alone])
    assert dict(plots._programs(table)) == {
        "matvec: 5, first": {"gpufs": 4.0},
        "matvec: 6, first": {"gpufs": 2.0},
        "matvec: 5, again": {"gpufs": 6.0, "CUDA": 1.5},
    }


@pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
def test_plots_are_drawn_of_results_in_a_file(run: Command, tmp_path: Path, file: Path) -> None:
    results = tmp_path / "results.json"
    assert run(*SMALL, "random", "--file", file, "--json", results).returncode == 0
    done = run("bench", "plot", results, "--plot", tmp_path / "plots")
    assert done.returncode == 0
    assert done.stdout.decode().split() == [
        str(tmp_path / "plots" / f"random.{suffix}") for suffix in ("png", "pdf")
    ]
    for wrong in (["plot", results], ["plot", "--plot", tmp_path]):
        assert run("bench", *wrong).returncode == 2
    assert run("bench", "plot", tmp_path / "nothing", "--plot", tmp_path).returncode == 2
    done = run(*SMALL, "random", "--plot", results / "plots")  # known before anything is measured
    assert (done.stdout, done.returncode) == (b"", 2)
    assert b"results.json/plots: Not a directory" in done.stderr


def test_an_interrupt_ends_it_with_130_and_removes_its_files(tmp_path: Path) -> None:
    environment = dict(os.environ) | {"TMPDIR": str(tmp_path)}
    arguments = command_line("bench", "--device", "cpu", "--size", "16MiB")
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not list(tmp_path.glob("gpufs-bench-*/file")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(4)  # behind the wait for the file's age
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert (errors, process.returncode) == (b"", 130)
    assert list(tmp_path.iterdir()) == []


def test_progress_is_for_terminals_only(file: Path) -> None:
    arguments = command_line(*SMALL, "random", "--file", file)
    status, output, shown = on_terminal(arguments)
    assert (status, b"data" in output) == (0, True)
    assert b"random: raw pulls" in shown
    assert b"\x1b[?25h" in shown  # the cursor is back
    status, _, shown = on_terminal([*arguments, b"--no-progress"])
    assert (status, shown) == (0, b"")


def test_the_commit_is_named_by_the_environment_or_else_by_git(tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(
        Path(gpufs.__file__).parent, package / "gpufs", ignore=shutil.ignore_patterns("__pycache__")
    )

    def commit(**environment: str) -> str:
        program = "from gpufs.bench import _results; print(_results._commit())"
        return subprocess.run(
            [sys.executable, "-c", program],
            env=dict(os.environ) | {"PYTHONPATH": os.fspath(package)} | environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
            cwd=tmp_path,
        ).stdout.strip()

    def git(*arguments: str) -> str:
        identity = (
            "-c",
            "user.name=n",
            "-c",
            "user.email=e@example.org",
            "-c",
            "commit.gpgsign=false",
        )
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    assert commit(GPUFS_COMMIT="") == "unknown"
    assert commit(GPUFS_COMMIT="1234567") == "1234567"
    if shutil.which("git") is None:
        pytest.skip("no git here")
    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "-m", "not ours")
    assert commit(GPUFS_COMMIT="1234567") == "1234567"
    git("add", "package/gpufs/bench")
    git("commit", "--quiet", "-m", "ours")
    assert commit(GPUFS_COMMIT="") == git("rev-parse", "--short=7", "HEAD")
    assert commit(GPUFS_COMMIT="1234567") == "1234567"


def test_compare_tells_changes_from_noise() -> None:
    def line(page: int, value: float, spread: float) -> bench.Line:
        one = measured(value=value, seconds=[1.0, 1.0 + spread])
        return bench.Line({"page": page}, one, measured("raw pulls", 10.0), 0.9)

    before = results_of(line(512, 5.0, 0.01), line(4096, 5.0, 0.2), line(8192, 5.0, 0.0))
    after = results_of(line(512, 6.0, 0.01), line(4096, 5.2, 0.2), line(65536, 5.0, 0.0))
    text = bench.compare(before, after)
    assert "+20.0%" in text
    assert "+4.0% (noise)" in text
    assert "8 KiB" not in text  # only in one of them
    assert "64 KiB" not in text
    assert "different machines" not in text
    assert "different machines" in bench.compare(
        before, results_of(line(512, 5.0, 0.0), device_name="other")
    )
    assert "no benchmark in common" in bench.compare(before, results_of())


def test_compare_reads_its_files(run: Command, tmp_path: Path) -> None:
    results = results_of(bench.Line({"page": 512}, measured(), measured("raw pulls", 2.0), 0.9))
    for name in ("a", "b"):
        (tmp_path / name).write_text(results.to_json())
    done = run("bench", "compare", tmp_path / "a", tmp_path / "b")
    assert (done.stderr, done.returncode) == (b"", 0)
    assert b"+0.0% (noise)" in done.stdout


def test_one_source_is_measured_once_for_tasks_in_several_units() -> None:
    def source() -> Iterator[_measure.Sample]:
        while True:
            yield _measure.Sample(0.5, 0.0, 10, 10**9, 0)

    rate, time_ = (_measure.Task("", unit, source) for unit in ("GB/s", "ms/GB"))
    assert _measure.measure(_measure.Task("", "TFLOP/s", source), 3).value == pytest.approx(20e-12)
    seen = _measure.measure(rate, 3)
    assert seen.value == 2.0
    other = _measure.restated(seen, _measure.Task("part", "ms/GB", source))
    assert (other.name, other.unit, other.value) == ("part", "ms/GB", pytest.approx(500))
    assert other.seconds == seen.seconds
    assert _measure.measure(time_, 3).value == pytest.approx(500)
    assert _measure.restated(bench.Measurement("", "GB/s", None, "why"), time_).absent == "why"


def test_breakdown_does_not_measure_again_what_sequential_has(file: Path) -> None:
    seen: list[bench.Progress] = []
    with bench.World.make(
        "cpu", file=os.fspath(file), size=4 << 20, quick=True, tree=[], tell=print
    ) as world:
        results = bench.run(["sequential", "breakdown"], world, on_progress=seen.append)
    assert {progress.what for progress in seen if progress.benchmark == "breakdown"} == {"hits"}
    assert seen[-1].done == seen[-1].total - 1
    whole, parts = (table.lines for table in results.benchmarks)
    plain = [line for line in whole if line.parameters["variant"] == "gpufs"]
    assert len(plain) < len(whole)
    for line, part in zip(plain, parts, strict=True):
        assert line.ours is not None
        assert part.ours is not None
        assert line.ours.value is not None
        assert part.ours.value == pytest.approx(1000 / line.ours.value)
        assert part.ratio is not None


@pytest.mark.parametrize(("unit", "expected"), [("GB/s", 0.5), ("us", 2.0)])
def test_a_ratio_above_one_is_better_than_the_limit(unit: _measure.Unit, expected: float) -> None:
    ours, limit = (bench.Measurement("", unit, value) for value in (5.0, 10.0))
    assert _measure.ratio(ours, limit) == expected
    assert _measure.ratio(ours, bench.Measurement("", unit, None)) is None


def test_what_is_absent_is_named_with_its_reason_and_brackets_survive() -> None:
    absent = bench.Measurement("np.memmap[rows] + copy", "GB/s", None, "no numpy here")
    there = measured("list[rows]", 3.0)
    table = results_of(
        bench.Line({"page": 512}, measured(bytes=1), measured("raw"), None, [absent, there])
    ).benchmarks[0]
    text = bench.show(table)
    assert "np.memmap[rows] + copy: not measured: no numpy here" in text
    assert "list[rows] 3.00 GB/s" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.34"), (123.4, "123.4"), (12345.6, "12,346")],
)
def test_numbers_have_the_digits_that_tell_something(value: float, text: str) -> None:
    assert _report.number(value) == text

"""The benchmarks on the CPU device: what they measure, not their numbers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gpufs import bench
from gpufs.bench import _alone, _quiet

from .bench_runs import SMALL
from .conftest import Command


@pytest.mark.parametrize(
    "name", [name for name in bench.BENCHMARKS if name not in ("random", "idle")]
)
def test_each_benchmark_runs_and_its_data_is_right(
    run: Command, tmp_path: Path, name: str, bench_file: Path
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "text").write_text("some words of source text\n" * 100)
    out = tmp_path / "out.json"
    done = run(*SMALL, name, "--file", bench_file, "--tree", tmp_path / "tree", "--json", out)
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
    run: Command, tmp_path: Path, bench_file: Path
) -> None:
    out = tmp_path / "out.json"
    assert run(*SMALL, "idle", "--file", bench_file, "--json", out).returncode == 0
    results = bench.read(out)
    lines = results.benchmarks[0].lines
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
            # Threads or warps that come to the same page of a small file at once share its load:
            # all but one find that it has begun.
            shared = line.ours.counters.get("lost_races", 0) if counter == "direct_loads" else 0
            assert line.ours.counters[counter] + shared > line.ours.operations / 2
            assert "rpcs" not in line.ours.counters


def test_an_own_process_gives_its_errors_to_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench_file: Path
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
        next(_alone.alone(_quiet.samples, world(bench_file), "idle")())


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
    run: Command, tmp_path: Path, bench_file: Path, error: str, reason: str
) -> None:
    (tmp_path / "kvikio.py").write_text(f"raise {error}\n")
    path = os.pathsep.join([os.fspath(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    done = run(*SMALL, "random", "--file", bench_file, env=dict(os.environ) | {"PYTHONPATH": path})
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
    run: Command, tmp_path: Path, tree: Path, bench_file: Path, script: str, shown: str
) -> None:
    rg = tmp_path / "bin" / "rg"
    rg.parent.mkdir()
    rg.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n{script}\n')
    rg.chmod(0o755)
    path = f"{rg.parent}{os.pathsep}{os.environ['PATH']}"
    out = tmp_path / "out.json"
    done = run(
        *(*SMALL, "grep", "--file", bench_file, "--tree", tree, "--json", out),
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


def test_breakdown_does_not_measure_again_what_sequential_has(bench_file: Path) -> None:
    seen: list[bench.Progress] = []
    with bench.World.make(
        "cpu", file=os.fspath(bench_file), size=4 << 20, quick=True, tree=[], tell=print
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

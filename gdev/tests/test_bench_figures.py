"""``gdev bench dataflow`` on the simulated GPU, and results as tables and plots."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from .gdev_daemon import Daemon, seed_of_test
from .simulated_gpu import BUILD, ROOT, TIMEOUT_S, Gpu

DATAFLOW = BUILD / "programs" / "bench" / "dataflow"
SMALL = ["--first", "32", "--add", "64", "--multiply", "32", "--repeats", "2", "--depth", "3"]


def lines_of(process: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.stdout.splitlines()]


@pytest.mark.parametrize(("graph", "modules"), [("tree", 7), ("rectangle", 9)])
def test_a_dataflow_alone_goes_through_the_host(gpu: Gpu, graph: str, modules: int) -> None:
    process = gpu.run(DATAFLOW, graph, *SMALL, "--width", "3", under_gdev=False)
    assert (process.returncode, process.stderr) == (0, "")
    lines = lines_of(process)
    cases = [(one["operation"], one["side"], one["memory"]) for one in lines]
    assert cases == [
        (operation, side, memory)
        for operation, side in (("add", 32), ("multiply", 32), ("add", 64))
        for memory in ("pageable", "pinned")
    ]
    assert all(one["right"] and one["way"] == "copied" for one in lines)
    assert all(one["modules"] == modules and len(one["seconds"]) >= 2 for one in lines)


def test_dataflows_by_key_have_the_same_results(daemon: Daemon, tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    process = daemon.gdev(
        "bench", "dataflow", *SMALL, "--width", "3", "--runs", "2", "--json", str(file)
    )
    assert (process.returncode, process.stderr) == (0, "")
    found = json.loads(file.read_text())
    runs = found["runs"]
    assert all(one["right"] for one in runs)
    # 2 graphs x 2 runs x 3 sizes and operations x 2 kinds of memory
    for kind, way, count in (
        ("alone", "copied", 24),
        ("gdev", "copied", 24),
        ("gdev", "shared", 24),
    ):
        assert len([one for one in runs if (one["kind"], one["way"]) == (kind, way)]) == count
    assert len(found["summary"]) == 12
    for row in found["summary"]:
        assert all(0 < row[way] < row[f"whole_{way}"] for way in ("alone", "copied", "shared"))
    # The segments are gone.
    assert len(daemon.must("shm").splitlines()) == 1


def test_keys_need_gdev(gpu: Gpu) -> None:
    process = gpu.run(DATAFLOW, "tree", *SMALL, "--shared", "1", under_gdev=False)
    assert process.returncode == 2
    assert process.stderr == "dataflow: --shared: the program does not run under gdev\n"


def test_a_dataflow_ends_when_a_module_fails(shared: Daemon, gpu: Gpu) -> None:
    # 7 modules take 2 MiB and more each, in a virtual GPU of 4 MiB.
    shared.must("vgpu", "add", "small", "--memory", "4MiB")
    begin = time.monotonic()
    command = ["run", "--vgpu", "small", "--", str(DATAFLOW), "tree", *SMALL, "--shared", "1"]
    process = shared.gdev(*command)
    assert process.returncode == 2 and time.monotonic() - begin < TIMEOUT_S / 2
    assert "dataflow: gshmget: Cannot allocate memory" in process.stderr
    assert len(shared.must("shm").splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["star"], "there is no such dataflow: 'star' (tree, rectangle)"),
        (["tree", "--depth", "0"], "--depth: a number of 1 to 8 is needed"),
        (["rectangle", "--width", "1"], "--width: a number of 2 to 32 is needed"),
        (["tree", "--first", "33"], "--first: a positive multiple of 32 is needed"),
        (["tree", "--repeats", "0"], "--repeats: a positive number is needed"),
    ],
)
def test_wrong_arguments_are_one_line(gpu: Gpu, arguments: list[str], said: str) -> None:
    process = gpu.run(DATAFLOW, *arguments, under_gdev=False)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == f"dataflow: {said}\n"


# --- Changes ---


def change_of(pairs: list[list[tuple[float, float]]]) -> tuple[float, float, float]:
    """Returns ratio, low and high by the package, which is not on the path of the tests."""
    path = ROOT / "gdev" / "python" / "gdev" / "bench" / "_changes.py"
    spec = importlib.util.spec_from_file_location("changes_of_gdev", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    found = module.change(pairs)
    return found.ratio, found.low, found.high


def test_a_change_of_one_percent_is_seen_in_drift(drift: random.Random) -> None:
    # The machine gets slower by half during a run, and processes differ by 0.1 %.
    pairs = []
    for _ in range(6):
        one, other = (1 + drift.gauss(0, 0.001) for _ in range(2))
        speeds = [1 + i / 40 for i in range(20)]
        pairs.append([(one * at, other * 1.01 * at) for at in speeds])
    ratio, low, high = change_of(pairs)
    assert 1.005 < low < ratio < high < 1.015


def test_processes_that_differ_widen_the_interval(drift: random.Random) -> None:
    pairs = [[(1.0, 1 + drift.gauss(0, 0.001) + pair) for _ in range(20)] for pair in (0, 0.1)]
    _, low, high = change_of(pairs)
    assert low < 1.01 and high > 1.09


@pytest.fixture
def drift() -> random.Random:
    return random.Random(seed_of_test())


# --- Results as tables and plots ---


def result(benchmark: str, summary: list[dict[str, Any]], **settings: object) -> dict[str, Any]:
    gpus = [{"name": "NVIDIA Test", "memory_bytes": 1 << 30, "driver": "580.1"}]
    return {
        "benchmark": benchmark,
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {"gpus": gpus},
        "settings": settings,
        "summary": summary,
        "runs": [],
    }


def change(ratio: float) -> dict[str, float]:
    return {"ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01}


def copy(
    test: str, way: str, memory: str, size: int, seconds: float, **more: int
) -> dict[str, Any]:
    row = {"test": test, "direction": way, "memory": memory, "bytes": size, "chunk": None}
    return row | {"alone": seconds, "gdev": seconds * 1.01} | change(1.01) | more


def case(graph: str, operation: str, side: int, memory: str) -> dict[str, Any]:
    row = {"graph": graph, "operation": operation, "side": side, "memory": memory}
    return row | {
        "alone": 0.004,
        "copied": 0.003,
        "shared": 0.002,
        "whole_alone": 3.0,
        "whole_copied": 2.5,
        "whole_shared": 2.0,
    }


RESULTS = {
    "micro": result(
        "micro",
        [
            {"program": name, "alone": 0.02, "gdev": 0.0202}
            | change(1.01)
            | {"process_ratio": 1.1, "process_low": 1.0, "process_high": 1.2}
            for name in ("LOOP", "MALLOC16")
        ],
    ),
    "copies": result(
        "copies",
        [
            row
            for way in ("to_device", "to_host")
            for row in (
                copy("chunk", way, "pageable", 1 << 28, 0.03, chunk=1 << 20),
                copy("chunk", way, "pageable", 1 << 28, 0.02, chunk=1 << 22),
                copy("small", way, "pinned", 16, 4e-6),
                copy("small", way, "kernel", 16, 3e-6),
                copy("size", way, "pinned", 1 << 20, 1e-4),
                copy("size", way, "pageable", 1 << 22, 1e-3),
            )
        ],
    ),
    "dataflow": result(
        "dataflow",
        [
            case(graph, operation, side, memory)
            for graph in ("tree", "rectangle")
            for operation in ("add", "multiply")
            for side in (512, 1024)
            for memory in ("pageable", "pinned")
        ],
    ),
    "search": result(
        "search",
        [
            {"vgpus": vgpus, "searches": count, "seconds": 1.5, "finished": done, "faults": []}
            for vgpus, count, done in ((0, 1, 1), (0, 4, 2), (1, 1, 1), (1, 4, 4))
        ],
        size=1 << 27,
        large=1 << 30,
    ),
}
# A row of each table, and the plots' words of the paper.
ROWS = {
    "micro": "| LOOP | 20.00 ms | 20.20 ms | +1.0 % [+0.0, +2.0] | +10.0 % [+0.0, +20.0] | "
    "about 20 % slower |",
    "copies": "| 4 MiB | 256 MiB | to host | pageable | 13.42 GB/s | 13.29 GB/s | "
    "+1.0 % [+0.0, +2.0] |",
    "dataflow": "| tree | add | 1024 | pageable | 4.00 ms | 3.00 ms | 2.00 ms | +50 % | "
    "2500 -> 2000 ms, +25 % | 1424 -> 953 ms, +49 % |",
    "search": "| no gdev | 4 | 1.500 s | 2 | fails (NVIDIA) |",
}
WORDS = {
    "micro": "about 20 % slower: LOOP",
    "copies": "paper's best",
    "dataflow": "paper, shared",
    "search": "without Gdev more than one fail",
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_table_of_markdown(daemon: Daemon, tmp_path: Path, name: str) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps(RESULTS[name]))
    lines = daemon.must("bench", "table", str(file)).splitlines()
    assert lines[0] == f"`gdev bench {name}`, NVIDIA Test, 2026-01-02."
    assert ROWS[name] in lines
    tables = [line.count("|") for line in lines if line.startswith("|")]
    assert len(set(tables)) == (2 if name == "copies" else 1)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_plot(daemon: Daemon, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    file, plot = tmp_path / "result.json", tmp_path / "plot.svg"
    file.write_text(json.dumps(RESULTS[name]))
    daemon.must("bench", "plot", str(file), "-o", str(plot))
    first = plot.read_text()
    text = " ".join(node.text or "" for node in ElementTree.fromstring(first).iter())
    assert WORDS[name] in text and f"NVIDIA Test; gdev bench {name}" in text
    if name == "micro":  # the same file again
        daemon.must("bench", "plot", str(file), "-o", str(plot))
        assert plot.read_text() == first


@pytest.mark.parametrize("command", ["table", "plot"])
def test_other_files_are_no_results(daemon: Daemon, tmp_path: Path, command: str) -> None:
    output = ["-o", str(tmp_path / "plot.svg")] if command == "plot" else []
    for text in ("", "[]", '{"benchmark": "other"}'):
        file = tmp_path / "other.json"
        file.write_text(text)
        process = daemon.gdev("bench", command, str(file), *output)
        assert process.returncode == 2
        assert process.stderr == f"gdev: not a result of gdev bench: {file}\n"

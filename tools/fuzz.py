#!/usr/bin/env python3
"""libFuzzer for each parser of foreign bytes (tests/fuzz/targets.hpp).

    tools/fuzz.py SECONDS [TARGET...]     all targets in SECONDS together; or some

Inputs with new coverage are kept in build/fuzz/corpus/TARGET. The next run starts with them and
with those of tests/fuzz/corpus/TARGET. An input that failed is kept in build/fuzz/found, and the
summary has the command that runs it again. The exit status is 0 only if nothing was found and
something ran.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
SEEDS = ROOT / "tests" / "fuzz" / "corpus"
INPUT_BYTES_MAX = 2048
INPUT_TIMEOUT_S = 60
MISSING = (
    "fuzzing needs clang++, with which libFuzzer comes: please install it (Debian: apt-get install "
    "clang)"
)


@dataclass(frozen=True)
class Outcome:
    """The result of a target."""

    target: str
    executions: int
    seconds: float
    replay: str  # the command that runs the failed input again; empty: no failure
    output: str  # the end of the output


def is_possible() -> bool:
    """Returns whether there is a compiler with libFuzzer."""
    return shutil.which("clang++") is not None


def build(jobs: int) -> None:
    """Builds all targets."""
    subprocess.run(["cmake", "--preset", "fuzz"], cwd=ROOT, check=True)
    subprocess.run(
        ["cmake", "--build", BUILD, "--parallel", str(jobs), "--target", "gpufs_fuzzers"],
        cwd=ROOT,
        check=True,
    )


def targets() -> list[str]:
    """Returns the names of all built targets."""
    return sorted(path.name.split("_")[1] for path in (BUILD / "tests").glob("gpufs_*_fuzz"))


def decoded(text: str) -> bytes:
    """Returns the bytes of a file NAME.hex: hexadecimal digits, with comments after #."""
    return bytes.fromhex("".join(line.partition("#")[0] for line in text.splitlines()))


def seeds_of(target: str) -> Path:
    """Returns a folder with the repository's inputs of a target, as bytes."""
    folder = BUILD / "seeds" / target
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in (SEEDS / target).iterdir():
        content = decoded(path.read_text()) if path.suffix == ".hex" else path.read_bytes()
        (folder / path.stem).write_bytes(content)
    return folder


def run(target: str, seconds: int, seed: int = 0) -> Outcome:
    """Runs a target for some seconds, or until it fails. Seed 0: a random one."""
    corpus, found = BUILD / "corpus" / target, BUILD / "found"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    program = BUILD / "tests" / f"gpufs_{target}_fuzz"
    command: list[str | Path] = [
        *(program, f"-max_total_time={max(seconds, 1)}", f"-max_len={INPUT_BYTES_MAX}"),
        *(
            f"-seed={seed}",
            f"-timeout={INPUT_TIMEOUT_S}",
            "-print_final_stats=1",
            f"-artifact_prefix={found}/{target}-",
        ),
        *(corpus, seeds_of(target)),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=dict(os.environ),
    )
    executions = re.search(r"stat::number_of_executed_units: (\d+)", done.stderr)
    kept = re.search(r"Test unit written to (\S+)", done.stderr)
    replay = ""
    if done.returncode != 0:
        replay = (
            f"{program.relative_to(ROOT)} {Path(kept[1]).relative_to(ROOT) if kept else ''}"
        ).rstrip()
    took = re.search(r"Done \d+ runs in (\d+) second", done.stderr)
    return Outcome(
        target,
        int(executions[1]) if executions else 0,
        float(took[1]) if took else float(seconds),
        replay,
        "\n".join(done.stderr.splitlines()[-60:]),
    )


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Fuzzes the parsers of bytes that others write.")
    parser.add_argument("seconds", type=int, nargs="?", default=60)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    arguments = parser.parse_args()
    if not is_possible():
        print(MISSING, file=sys.stderr)
        return 1
    build(len(os.sched_getaffinity(0)))
    chosen = arguments.targets or targets()
    unknown = set(chosen) - set(targets())
    if unknown:
        parser.error(
            f"no such target: {', '.join(sorted(unknown))}; there are {', '.join(targets())}"
        )
    failed = not chosen
    for target in chosen:
        outcome = run(target, arguments.seconds // len(chosen))
        rate = outcome.executions / max(outcome.seconds, 1)
        print(
            f"{target:<10} {outcome.executions:>10} inputs  {rate:>8.0f}/s  "
            f"{'FOUND' if outcome.replay else 'ok'}"
        )
        if outcome.replay:
            failed = True
            print(f"{outcome.output}\nreplay: {outcome.replay}")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

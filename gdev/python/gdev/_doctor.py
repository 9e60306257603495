"""What this machine can do for gdev, and what it lacks: the findings of ``gdev doctor``.

Levels: ``ok``; ``info``: slower, or nothing to do; ``fail``: something is missing, or a program
does what gdev does not see.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpufs import _machine
from gpufs._findings import Finding
from gpufs.sizes import format_size

from gdev import _daemon, _files, _symbols
from gdev._sight import look
from gdev._values import NO_LIMIT, format_limit

_CHILD_TIMEOUT_S: Final = 60  # a GPU may have to wake up
_SYS_MEMBARRIER: Final = 324  # of x86-64
_PRIVATE_EXPEDITED: Final = 1 << 3  # MEMBARRIER_CMD_PRIVATE_EXPEDITED
_SHOWN: Final = 5
_NVML_TIMEOUT_S: Final = 10
# Loads the library of management as gdev's library does; prints what fails, or nothing.
_NVML: Final = """
import ctypes, os
try:
    library = ctypes.CDLL(os.environ.get("GDEV_NVML") or "libnvidia-ml.so.1")
    error = library.nvmlInit_v2()
    print(f"it fails with error {error}" if error else "")
except (OSError, AttributeError) as error:
    print(error)
"""
# What the overhead of a program is, by its source.
_OVERHEAD_TEXTS: Final = {
    "unknown": "what its contexts and modules take does not count: NVML does not answer it",
    "difference": "what its contexts take is an estimate, and its modules do not count:"
    " NVML does not list it",
}
_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# A program under gdev: prints the driver that gdev's library would use, or nothing without it.
_PRELOADED: Final = """
import ctypes
class Status(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("driver", ctypes.c_char_p)] + [
        (name, ctypes.c_uint64) for name in ("launches", "lookups", "unknown", "bypasses")]
status = Status(size=ctypes.sizeof(Status))
ask = getattr(ctypes.CDLL(None), "gdev_status", None)
print(status.driver.decode() if ask and ask(ctypes.byref(status)) == 0 else "")
"""


def examine() -> Iterator[Finding]:
    """Yields the findings. Runs programs of its own; the driver is loaded in one of them."""
    driver = _probe()
    yield from _judge_driver(driver)
    yield from _judge_library(driver)
    yield _judge_nvml()
    yield _judge_membarrier()
    yield _judge_huge_pages()
    try:
        with _daemon.connect(start=False) as daemon:
            yield Finding(
                "daemon", "ok", f"answers at {_files.socket_path()}, protocol {_daemon.VERSION}"
            )
            yield _judge_host_memory(daemon)
            yield from _judge_gpus(daemon)
            yield from _judge_settings(daemon)
            yield from _judge_programs(daemon)
    except OSError as error:
        advice = "see what the socket belongs to"
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
            advice = "gdev service runs one from boot on"
        elif error.errno == errno.EPROTO:
            advice = "end it with the gdev that started it, or with kill"
        about = f"{error.filename}: " if error.filename else ""
        yield Finding("daemon", "fail", about + str(error.strerror), advice)


def _run(command: list[str], extra: dict[str, str], timeout_s: float = _CHILD_TIMEOUT_S) -> str:
    """Returns what a program of our own prints. Raises OSError or SubprocessError."""
    environment = {name: text for name, text in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(
        command,
        env=environment | extra,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=True,
    ).stdout


def _probe() -> dict[str, Any]:
    found: dict[str, Any] = {"path": None, "error": "", "version": 0, "gpus": []}
    try:
        answer = json.loads(_run([sys.executable, "-m", "gdev._probe"], {}))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        found["error"] = f"asking it failed: {error}"
        return found
    return found | dict(answer)


def _judge_driver(driver: dict[str, Any]) -> Iterator[Finding]:
    if driver["path"] is None or not driver["version"]:
        advice = "install the NVIDIA driver, or name its libcuda.so.1 in GDEV_DRIVER"
        yield Finding("driver", "fail", driver["error"], advice)
        return
    version = driver["version"]
    yield Finding(
        "driver", "ok", f"{driver['path']}, for CUDA {version // 1000}.{version % 1000 // 10}"
    )
    if driver["error"] or not driver["gpus"]:
        text = driver["error"] or "the driver has none"
        yield Finding("GPU", "fail", text, "see whether nvidia-smi lists one")
        return
    lacking = [str(number) for number, has in enumerate(driver["gpus"]) if not has]
    if lacking:
        text = f"no virtual memory management: {', '.join(lacking)}"
        yield Finding("GPU", "fail", text, "programs there keep their memory: share by limits")
    else:
        count = len(driver["gpus"])
        yield Finding("GPU", "ok", f"{count}, with virtual memory management: memory can be moved")


def _judge_library(driver: dict[str, Any]) -> Iterator[Finding]:
    advice = "build gdev with CUDA, or name the folder of its programs in GDEV_PROGRAMS"
    try:
        library = _files.library()
        if not _files.daemon().exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(_files.daemon()))
    except OSError as error:
        yield Finding("library", "fail", f"{error.filename}: {error.strerror}", advice)
        return
    extra = {"LD_PRELOAD": str(library), "GDEV_SOCKET": ""}
    if driver["path"] is not None:
        extra["GDEV_DRIVER"] = driver["path"]
    try:
        used = _run([sys.executable, "-c", _PRELOADED], extra).strip()
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("library", "fail", f"a program under it fails: {error}", "please report this")
        return
    if used != (driver["path"] or ""):
        text = f"{library}: a program under it does not use the driver"
        yield Finding("library", "fail", text, "see what the loader says with LD_DEBUG=libs")
        return
    yield Finding("library", "ok", f"{library} is preloaded")
    if driver["path"] is not None:
        yield _judge_names(library, Path(driver["path"]))


def _judge_names(library: Path, driver: Path) -> Finding:
    """Compares the driver's functions with the table of gdev's library."""
    try:
        names = _symbols.exported_names(driver) - _symbols.exported_names(library)
    except (OSError, ValueError) as error:
        return Finding("functions", "info", f"the driver's are not known: {error}")
    newer = sorted(name for name in names if re.match("cu[A-Z]", name))
    if not newer:
        return Finding("functions", "ok", "all of the driver's are known")
    text = f"{len(newer)} of the driver's are passed on unseen: {_some(newer)}"
    return Finding("functions", "info", text, "a gdev of the driver's CUDA version knows more")


def _judge_nvml() -> Finding:
    try:
        text = _run([sys.executable, "-c", _NVML], {}, _NVML_TIMEOUT_S).strip()
    except subprocess.TimeoutExpired:
        text = f"it does not answer within {_NVML_TIMEOUT_S} s"
    except (OSError, subprocess.SubprocessError) as error:
        text = str(error)
    if not text:
        return Finding("NVML", "ok", "there: what contexts and modules take counts")
    advice = "install the driver's libnvidia-ml.so.1, or name it in GDEV_NVML"
    return Finding("NVML", "info", f"contexts and modules do not count: {text}", advice)


def _judge_gpus(daemon: _daemon.Daemon) -> Iterator[Finding]:
    for one in daemon.gpus():
        if one.unaccounted:
            text = f"{one.label}: {format_size(one.unaccounted)} are in use, and no program's here"
            yield Finding("GPU memory", "info", text, "nvidia-smi lists what uses the GPU")


def _judge_membarrier() -> Finding:
    commands = ctypes.CDLL(None).syscall(_SYS_MEMBARRIER, 0, 0, 0)
    if commands >= 0 and commands & _PRIVATE_EXPEDITED:
        return Finding("membarrier", "ok", "the kernel has it: calls pass the gate without a fence")
    advice = "allow membarrier(2) in the container's seccomp profile"
    return Finding("membarrier", "info", "refused: each call that submits work is slower", advice)


def _judge_huge_pages() -> Finding:
    text = ""
    with contextlib.suppress(OSError):
        text = _HUGE_PAGES.read_text()
    if "[always]" in text or "[madvise]" in text:
        return Finding("huge pages", "ok", "used for what is swapped out")
    advice = f"write madvise into {_HUGE_PAGES}, as root"
    return Finding("huge pages", "info", "off: moves to the host are slower", advice)


def _judge_host_memory(daemon: _daemon.Daemon) -> Finding:
    _, _, most, _ = daemon.settings()
    host = _machine.examine_host()
    there = min(host.memory_bytes, host.memory_limit_bytes or host.memory_bytes)
    text = f"{format_limit(most)} for what is swapped out, of {format_size(there)}"
    if most > there:
        return Finding("host memory", "fail", text, "lower it: gdev gpu set --host-memory")
    return Finding("host memory", "ok", text)


def _judge_settings(daemon: _daemon.Daemon) -> Iterator[Finding]:
    """Finds settings that the GPUs cannot fulfil: they may be older than the GPUs are known."""
    largest = daemon.known_gpu()
    if largest == NO_LIMIT:
        return
    memory, spare, _, _ = daemon.settings()
    most = min(memory, largest)
    reserved = sum(one.reserve for one in daemon.vgpus())
    is_well = True
    for name, amount, is_wrong in (
        ("--reserve of all virtual GPUs", reserved, reserved > most),
        ("--spare", spare, spare >= most),
    ):
        if is_wrong:
            is_well = False
            text = f"{name}: {format_size(amount)}, and programs may have {format_size(most)}"
            yield Finding("settings", "fail", text, "lower it: gdev vgpu set, gdev gpu set")
    if is_well:
        yield Finding("settings", "ok", "the GPUs can fulfil them")


def _judge_programs(daemon: _daemon.Daemon) -> Iterator[Finding]:
    count = 0
    is_well = True
    for one in look(daemon).programs():
        count += 1
        about = f"process {one.process}, virtual GPU {one.vgpu}"
        if one.gpu and one.overhead_source in _OVERHEAD_TEXTS:
            text = f"{about}: {_OVERHEAD_TEXTS[one.overhead_source]}"
            advice = "in a container: share the machine's process numbers (--pid=host)"
            yield Finding("program", "info", text, advice)
        if one.counts["unknown_functions"]:
            is_well = False
            names = _some(daemon.unknown_functions(one)) or "names not known yet"
            advice = "they were passed on unseen: limits and turns may not hold; update gdev"
            yield Finding("program", "fail", f"{about}: unknown functions: {names}", advice)
        if one.counts["bypasses"]:
            is_well = False
            text = f"{about}: loaded the driver past gdev, {one.counts['bypasses']} times"
            advice = "what it does there is not limited: run it on a GPU of its own"
            yield Finding("program", "fail", text, advice)
    if is_well:
        yield Finding("programs", "ok", f"{count} run, and gdev sees all that they call")


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")

"""Checks of this machine: what it supports, the path of file data, and whether gpufs works.

:func:`examine` asks the driver and the kernel, makes a small mount and searches a file with it.
``gpufs doctor`` prints the result. ``gpufs doctor --json`` prints one object,
:meth:`Report.to_json`. Its fields are stable: new ones may be added, and ``schema`` grows when a
field changes or is removed.

``schema``
    1.
``version``
    The version of gpufs.
``usable``
    True if no finding is a ``fail``.
``device``, ``device_name``, ``direct_path``
    Of the trial mount, made with ``device="auto"``: ``"cuda"`` or ``"cpu"``, the device's name,
    and ``"on"`` or the reason why every load is staged. All null if there was no trial mount.
``host``
    ``kernel``, ``architecture``, ``cpus``, ``memory_bytes``, ``memory_limit_bytes`` (of the control
    group), ``open_files_soft``, ``open_files_hard``, ``locked_memory_bytes``, ``directory`` (the
    working directory), ``file_system`` (its type). Null means no limit.
``cuda``
    ``built_with`` and ``driver_supports`` (CUDA versions such as ``"13.0"``, or null), ``driver``
    (its release, or null), ``obstacle`` (why there is no GPU, or an empty string).
``gpus``
    For each GPU ``ordinal``, ``name``, ``pci_address``, ``compute_capability`` (such as ``"9.0"``),
    ``multiprocessors``, ``memory_bytes``, the booleans ``host_register``,
    ``host_register_read_only``, ``virtual_memory``, ``unified_addressing``, ``mapped_host_memory``,
    ``pageable_memory_access``, ``host_native_atomics``, ``prohibited``, and ``pcie``: null, or
    ``generation``, ``generation_max``, ``width``, ``width_max``, each a number or null.
``findings``
    A list of ``check`` (a name such as ``"gpu.memory"``), ``gpu`` (an ordinal, or null), ``level``,
    ``text`` and ``advice`` (what to do; may be empty). Levels: ``ok``; ``info``, no action is
    needed; ``warn``, works, but slower or with limits; ``fail``, does not work.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from gpufs import _core, _machine, grep
from gpufs._mount import Device, Mount, Statistics
from gpufs.sizes import format_size

Level: TypeAlias = Literal["ok", "info", "warn", "fail"]

SCHEMA: Final = 1
OPEN_FILES_PROMISED: Final = 65536
OLDEST_CAPABILITY: Final = (8, 0)  # the oldest GPUs for which the binaries contain code
# lanes of a warp that wait for each other make progress
INDEPENDENT_THREADS_CAPABILITY: Final = (7, 0)
TRIAL_CACHE: Final = "4MiB"
TRIAL_PAGES: Final = 256
# A file that changed less than two seconds ago gets a new version at its next open.
SETTLING_S: Final = 2.5


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    level: Level
    text: str
    advice: str = ""
    gpu: int | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """Properties and counters of the trial mount."""

    device: str
    device_name: str
    direct_path: str
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, and the facts that they are based on."""

    host: _machine.HostFacts
    cuda: dict[str, Any]
    gpus: list[dict[str, Any]]
    trial: Trial | None
    findings: list[Finding]

    @property
    def usable(self) -> bool:
        """Whether gpufs works here."""
        return all(finding.level != "fail" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Returns the object that the module's documentation describes."""
        return {
            "schema": SCHEMA,
            "version": _core.__version__,
            "usable": self.usable,
            "device": self.trial.device if self.trial else None,
            "device_name": self.trial.device_name if self.trial else None,
            "direct_path": self.trial.direct_path if self.trial else None,
            "host": dataclasses.asdict(self.host),
            "cuda": self.cuda,
            "gpus": self.gpus,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }


def examine() -> Report:
    """Examines this machine. Waits for the driver and a trial mount.

    This may take seconds if a GPU has to wake up.
    """
    host = _machine.examine_host()  # before the mount, which raises the limit of open files
    cuda_facts = _core.examine_cuda()
    gpus: list[dict[str, Any]] = []
    for facts in cuda_facts["gpus"]:
        link = _machine.pcie_link(facts["pci_address"])
        gpus.append(dict(facts) | {"pcie": dataclasses.asdict(link) if link else None})
    cuda = {
        "built_with": cuda_version(cuda_facts["built_version"]),
        "driver_supports": cuda_version(cuda_facts["driver_version"]),
        "driver": _machine.driver_release(),
        "obstacle": cuda_facts["obstacle"],
    }
    findings = [*_judge_cuda(cuda, gpus), *_judge_host(host, _core.examine_host())]
    trial = _try_mount("auto", findings)
    if trial is None and gpus:
        _try_mount("cpu", findings)  # checks whether at least the CPU device works
    return Report(host, cuda, gpus, trial, findings)


def cuda_version(number: int) -> str | None:
    """Returns a CUDA version number such as 13000 as ``13.0``; None for 0."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


# --- GPUs ---


def _judge_cuda(cuda: dict[str, Any], gpus: list[dict[str, Any]]) -> Iterator[Finding]:
    built, supported, release = cuda["built_with"], cuda["driver_supports"], cuda["driver"]
    if built is None:
        yield Finding(
            "cuda.build",
            "info",
            "built without CUDA: everything runs on the CPU device",
            "To use a GPU, install gpufs again with GPUFS_CUDA=ON in the environment."
            if release
            else "",
        )
        return
    yield Finding("cuda.build", "ok", f"built with CUDA {built}")
    if supported is None:
        yield Finding("cuda.driver", "info", "no NVIDIA driver: everything runs on the CPU device")
        return
    named = f"driver {release}" if release else "driver"
    if not gpus:
        too_old = float(supported) < float(built)
        yield Finding(
            "cuda.driver",
            "warn",
            f"{named}, for CUDA up to {supported}, gives no GPU: {cuda['obstacle']}",
            f"Update the driver to one for CUDA {built}."
            if too_old
            else "See whether nvidia-smi lists a GPU, and whether CUDA_VISIBLE_DEVICES hides it.",
        )
        return
    yield Finding("cuda.driver", "ok", f"{named}, for CUDA up to {supported}")
    for gpu in gpus:
        for finding in _judge_gpu(gpu):
            yield dataclasses.replace(finding, gpu=gpu["ordinal"])


def _judge_gpu(gpu: dict[str, Any]) -> Iterator[Finding]:
    yield Finding(
        "gpu.name",
        "ok",
        f"GPU {gpu['ordinal']}: {gpu['name']}, {gpu['multiprocessors']} multiprocessors, at "
        f"{gpu['pci_address']}",
    )
    if gpu["prohibited"]:
        yield Finding(
            "gpu.compute_mode",
            "fail",
            "its compute mode forbids programs",
            "An administrator can change that: nvidia-smi -c DEFAULT.",
        )
    yield Finding(
        "gpu.memory",
        "ok",
        f"{format_size(gpu['memory_bytes'])} of memory; a quarter of what is free is the default "
        "cache",
    )
    yield _judge_capability(gpu["compute_capability"])
    yield _needed(
        gpu["virtual_memory"],
        "gpu.virtual_memory",
        "virtual memory management (the page cache's memory)",
    )
    yield _needed(
        gpu["mapped_host_memory"],
        "gpu.mapped_host_memory",
        "kernels reach pinned host memory (requests, staging)",
    )
    yield _needed(
        gpu["unified_addressing"], "gpu.unified_addressing", "one address space with the host"
    )
    if gpu["host_register"] and gpu["host_register_read_only"]:
        yield Finding(
            "gpu.host_register",
            "ok",
            "can register mapped files: the GPU pulls pages by itself (direct loads)",
        )
    else:
        missing = "read-only memory" if gpu["host_register"] else "host memory"
        yield Finding(
            "gpu.host_register",
            "warn",
            f"cannot register {missing}: host workers bring every page (staged loads)",
            "Nothing is wrong. Give the mount more workers, up to the number of cores, for more "
            "speed.",
        )
    unused = [
        name
        for name, there in (
            ("HMM or ATS", gpu["pageable_memory_access"]),
            ("atomics on host memory", gpu["host_native_atomics"]),
        )
        if there
    ]
    yield Finding(
        "gpu.host_access",
        "info",
        f"{' and '.join(unused) or 'neither HMM nor atomics on host memory'}: gpufs needs neither",
    )
    yield _judge_pcie(gpu["pcie"])


def _judge_capability(text: str) -> Finding:
    major, _, minor = text.partition(".")
    capability = (int(major), int(minor))
    if capability >= OLDEST_CAPABILITY:
        return Finding("gpu.compute_capability", "ok", f"compute capability {text}")
    if capability >= INDEPENDENT_THREADS_CAPABILITY:
        return Finding(
            "gpu.compute_capability",
            "warn",
            f"compute capability {text}: the usual build has code for 8.0 and newer",
            f"Build for it: pip install . -Ccmake.define.CMAKE_CUDA_ARCHITECTURES={major}{minor}",
        )
    return Finding(
        "gpu.compute_capability",
        "warn",
        f"compute capability {text} is too old: gpufs needs 7.0, where threads of a warp can wait "
        "for each other",
        'Use another GPU, or the CPU device (device="cpu").',
    )


def _needed(there: bool, check: str, what: str) -> Finding:
    if there:
        return Finding(check, "ok", what)
    return Finding(
        check, "fail", f"lacks {what}", 'Use another GPU, or the CPU device (device="cpu").'
    )


def _judge_pcie(link: dict[str, int | None] | None) -> Finding:
    if link is None:
        return Finding(
            "gpu.pcie",
            "info",
            "neither sysfs nor NVML tells of its PCI Express link (usual in virtual machines)",
        )
    generation = link["generation_max"] or link["generation"]
    text = f"PCI Express {generation or '?'} x{link['width'] or '?'}"
    if link["width"] and link["width_max"] and link["width"] < link["width_max"]:
        return Finding(
            "gpu.pcie",
            "warn",
            f"{text}, but the GPU could use x{link['width_max']}: loads are as much slower",
            "Move it to a wider slot, if there is one.",
        )
    return Finding("gpu.pcie", "ok", text)


# --- The host ---


def _judge_host(host: _machine.HostFacts, calls: _core.HostCalls) -> Iterator[Finding]:
    yield Finding(
        "host.kernel", "info", f"Linux {host.kernel}, {host.architecture}, {host.cpus} cores"
    )
    yield _judge_memory(host)
    yield _judge_open_files(host)
    limit = (
        "no limit" if host.locked_memory_bytes is None else format_size(host.locked_memory_bytes)
    )
    yield Finding(
        "host.locked_memory",
        "info",
        f"limit of locked memory (ulimit -l): {limit}; what the NVIDIA driver pins for gpufs does "
        "not count against it",
    )
    yield Finding(
        "host.file_system",
        "info",
        f"the working directory, {host.directory}, is on {host.file_system}",
    )
    yield _judge_call(
        calls["process_vm_readv"],
        "host.process_vm_readv",
        "process_vm_readv works: the CPU device has direct loads",
        "the CPU device has no direct loads; GPUs are not concerned",
        "In a container, allow it in the seccomp profile, or add the capability SYS_PTRACE.",
    )
    yield _judge_call(
        calls["cachestat"],
        "host.cachestat",
        "cachestat works (Linux 6.5)",
        "mincore serves instead",
    )
    yield _judge_call(
        calls["io_uring"],
        "host.io_uring",
        "io_uring works; gpufs does not need it",
        "gpufs does not need it",
    )


def _judge_call(error: int, check: str, good: str, otherwise: str, advice: str = "") -> Finding:
    if error == 0:
        return Finding(check, "ok", good)
    name = check.rpartition(".")[2]
    return Finding(check, "info", f"{name}: {os.strerror(error)}; {otherwise}", advice)


def _judge_memory(host: _machine.HostFacts) -> Finding:
    text = f"{format_size(host.memory_bytes)} of host memory"
    limit = host.memory_limit_bytes
    if limit is None or limit >= host.memory_bytes:
        return Finding(
            "host.memory",
            "ok",
            f"{text}; up to half of it may be registered for direct loads (pinned)",
        )
    text = f"{text}, of which this control group may use {format_size(limit)}"
    if limit >= host.memory_bytes // 2:
        return Finding("host.memory", "ok", text)
    return Finding(
        "host.memory",
        "warn",
        f"{text}: less than the half that a mount may register by default",
        f"Give mounts a budget below the limit, such as pinned={limit // 2}.",
    )


def _judge_open_files(host: _machine.HostFacts) -> Finding:
    hard = host.open_files_hard
    soft = host.open_files_soft
    shown = (
        f"limit of open files: {soft or 'none'}, which a mount raises to the hard limit: "
        f"{hard or 'none'}"
    )
    # A mount leaves a quarter of the descriptors to the rest of the program.
    if hard is None or hard // 4 * 3 >= OPEN_FILES_PROMISED:
        return Finding("host.open_files", "ok", shown)
    return Finding(
        "host.open_files",
        "info",
        f"{shown}; kernels may still have 131,072 files open, but the service keeps only "
        f"{hard // 4 * 3} descriptors "
        "and opens files again when it needs them",
        f"For many open files, raise the hard limit to {OPEN_FILES_PROMISED * 4 // 3 + 1} "
        "(limits.conf, or LimitNOFILE= of systemd).",
    )


# --- The trial ---


def _try_mount(device: Device, findings: list[Finding]) -> Trial | None:
    """Makes a mount and searches a file whose pages differ; appends the findings."""
    where = "the CPU device" if device == "cpu" else "the default device"
    try:
        with Mount(
            device=device,
            cache=TRIAL_CACHE,
            pinned="64MiB",
            workers=1,
            open_files=64,
            read_only=True,
        ) as mount:
            direct = mount.direct_path
            findings.append(
                Finding("mount.device", "ok", f"a mount works; kernels run on: {mount.device_name}")
            )
            if direct == "on":
                findings.append(
                    Finding(
                        "mount.direct_path",
                        "ok",
                        "files in the host's page cache are loaded directly",
                    )
                )
            else:
                findings.append(
                    Finding(
                        "mount.direct_path",
                        "warn",
                        f"every load is staged by a host worker: {direct}",
                    )
                )
            findings.append(_self_test(mount))
            return Trial(mount.device, mount.device_name, direct, mount.stats())
    except (OSError, ValueError, RuntimeError, MemoryError) as error:
        findings.append(
            Finding(
                "mount.device",
                "fail",
                f"a mount on {where} does not work: {error}",
                'The CPU device may still do (device="cpu").' if device != "cpu" else "",
            )
        )
        return None


def _self_test(mount: Mount) -> Finding:
    # Each page has a word of its own, so a lost, duplicated or exchanged page is detected.
    words = [f"page{_letters(number)}" for number in range(TRIAL_PAGES)]
    page_bytes = mount.page_bytes
    content = b"".join((word.encode() + b"\n").ljust(page_bytes, b".") for word in words)
    with tempfile.TemporaryDirectory(prefix="gpufs-doctor-") as folder:
        file = Path(folder, "file")
        try:
            file.write_bytes(content)
        except OSError as error:
            return Finding(
                "mount.self_test",
                "warn",
                f"not done, because no test file could be written: {error}",
                "Free some space, or set TMPDIR to a folder that has it."
                if error.errno == errno.ENOSPC
                else "",
            )
        if mount.direct_path == "on":
            # The registration of a file that has just changed does not serve its next open.
            time.sleep(SETTLING_S)
            mount.register_file(file)
        result = grep.search(mount, grep.Dictionary(words), [file])
    found = {match.word: match.count for match in result}
    if result.failures or found != dict.fromkeys(words, 1):
        why = "; ".join(str(failure) for failure in result.failures)
        return Finding(
            "mount.self_test",
            "fail",
            f"the self-test found {len(found)} of {len(words)} words" + (f": {why}" if why else ""),
            "Please report this, with the output of gpufs doctor --json.",
        )
    counts = mount.stats()
    return Finding(
        "mount.self_test",
        "ok",
        f"a kernel read {format_size(result.bytes)} correctly; pages came {_ways(counts)}",
    )


def _ways(counts: Statistics) -> str:
    ways = [
        f"{count} {how}"
        for count, how in (
            (counts["direct_loads"], "directly"),
            (counts["bulk_loads"], "in runs by the copy engine"),
            (counts["staged_loads"], "through staging"),
            (counts["open_loads"], "with the open"),
        )
        if count
    ]
    return ", ".join(ways) or "from nowhere"


def _letters(number: int) -> str:
    return "".join(chr(ord("a") + number // 26**place % 26) for place in (2, 1, 0))


def format_report(report: Report) -> list[tuple[Level, str, str]]:
    """Returns the report as lines of level, text and advice.

    Findings of a GPU are indented under its name.
    """
    return [
        (
            finding.level,
            finding.text
            if finding.gpu is None or finding.check == "gpu.name"
            else f"  {finding.text}",
            finding.advice,
        )
        for finding in report.findings
    ]


def conclude(report: Report) -> str:
    """Returns a summary of the report in one sentence."""
    failed = ", ".join(finding.check for finding in report.findings if finding.level == "fail")
    if failed or report.trial is None:
        return f"gpufs {_core.__version__} does not work here as it should: {failed}"
    where = "on the GPU" if report.trial.device == "cuda" else "on the CPU"
    path = "loaded directly" if report.trial.direct_path == "on" else "staged by host workers"
    return f"gpufs {_core.__version__} works here: kernels run {where}, files are {path}"

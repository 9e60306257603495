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
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpufs import _core, _machine, grep
from gpufs._checks import (
    INDEPENDENT_THREADS_CAPABILITY,
    OLDEST_CAPABILITY,
    OPEN_FILES_PROMISED,
    judge_cuda,
    judge_host,
)
from gpufs._findings import Finding, Level
from gpufs._mount import Mount
from gpufs._options import Device
from gpufs._statistics import Statistics
from gpufs.sizes import format_size

SCHEMA: Final = 1
TRIAL_CACHE: Final = "4MiB"
TRIAL_PAGES: Final = 256
# A file that changed less than two seconds ago gets a new version at its next open.
SETTLING_S: Final = 2.5


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
    findings = [*judge_cuda(cuda, gpus), *judge_host(host, _core.examine_host())]
    trial = _try_mount("auto", findings)
    if trial is None and gpus:
        _try_mount("cpu", findings)  # checks whether at least the CPU device works
    return Report(host, cuda, gpus, trial, findings)


def cuda_version(number: int) -> str | None:
    """Returns a CUDA version number such as 13000 as ``13.0``; None for 0."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


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


__all__ = [
    "INDEPENDENT_THREADS_CAPABILITY",
    "OLDEST_CAPABILITY",
    "OPEN_FILES_PROMISED",
    "SCHEMA",
    "SETTLING_S",
    "TRIAL_CACHE",
    "TRIAL_PAGES",
    "Finding",
    "Level",
    "Report",
    "Trial",
    "conclude",
    "cuda_version",
    "examine",
    "format_report",
]

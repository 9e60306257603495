"""Facts about this machine, from the kernel; :mod:`gpufs.doctor` judges them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts about the host, as this process may use it."""

    kernel: str
    architecture: str
    cpus: int  # CPUs that this process may run on
    memory_bytes: int
    memory_limit_bytes: int | None  # the control group's limit; None: no limit
    open_files_soft: int | None  # RLIMIT_NOFILE; None: no limit
    open_files_hard: int | None
    locked_memory_bytes: int | None  # the soft RLIMIT_MEMLOCK; None: no limit
    directory: str  # the working directory
    file_system: str  # the type of the working directory's file system


@dataclass(frozen=True, slots=True)
class PcieLink:
    """The link between host and GPU. Idle GPUs lower the current generation, never the width."""

    generation: int | None
    generation_max: int | None
    width: int | None  # lanes
    width_max: int | None


def examine_host() -> HostFacts:
    """Returns facts about the host. Does not wait."""
    system = os.uname()
    directory = str(Path.cwd())
    soft, hard = (_limit(value) for value in resource.getrlimit(resource.RLIMIT_NOFILE))
    return HostFacts(
        kernel=system.release,
        architecture=system.machine,
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        memory_limit_bytes=_control_group_limit(),
        open_files_soft=soft,
        open_files_hard=hard,
        locked_memory_bytes=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        directory=directory,
        file_system=file_system_of(directory),
    )


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _control_group_limit() -> int | None:
    """Returns the smallest memory limit of this process's control group and those above it."""
    smallest: int | None = None
    for line in _read("/proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            root, name = Path("/sys/fs/cgroup"), "memory.max"
        elif "memory" in controllers.split(","):
            root, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            text = _read(folder / name).strip()
            # No limit is "max", or in version 1 a number larger than all memory.
            if text.isdigit() and int(text) < 2**60:
                smallest = int(text) if smallest is None else min(smallest, int(text))
            if folder == root:
                break
    return smallest


def file_system_of(directory: str) -> str:
    """Returns the type of the file system that holds a directory, or ``"unknown"``."""
    best, kind = "", "unknown"
    target = os.path.realpath(directory)
    for line in _read("/proc/self/mountinfo").splitlines():
        fields = line.split(" ")
        try:
            mount_point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
            found = fields[fields.index("-") + 1]
        except (IndexError, ValueError):
            continue  # not in the kernel's documented format
        # If two file systems are mounted on one mount point, the later one hides the earlier.
        inside = target == mount_point or target.startswith(mount_point.rstrip("/") + "/")
        if inside and len(mount_point) >= len(best):
            best, kind = mount_point, found
    return kind


def gpu_devices() -> list[Path]:
    """Returns the device files of GPUs, by the rule of ``tools/has_gpu.sh``."""
    return [
        path
        for path in (*Path("/dev").glob("nvidia[0-9]*"), Path("/dev/dxg"))
        if path.is_char_device()
    ]


def driver_release() -> str | None:
    """Returns the NVIDIA driver's release, such as ``580.82.07``, or None."""
    match = re.search(
        r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s",
        _read("/proc/driver/nvidia/version"),
        re.MULTILINE,
    )
    return match[1] if match else None


def pcie_link(pci_address: str) -> PcieLink | None:
    """Returns a GPU's link from sysfs, or else from NVML; None if neither knows it."""
    folder = Path("/sys/bus/pci/devices") / pci_address
    link = PcieLink(
        generation=_generation(_read(folder / "current_link_speed")),
        generation_max=_generation(_read(folder / "max_link_speed")),
        width=_lanes(_read(folder / "current_link_width")),
        width_max=_lanes(_read(folder / "max_link_width")),
    )
    if link.generation is None or link.width is None:
        return _pcie_link_from_nvml(pci_address)
    return link


def _generation(speed: str) -> int | None:
    """Returns the PCI Express generation of a speed such as ``32.0 GT/s PCIe``."""
    rates = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
    return rates.get(speed.partition(" ")[0])


def _lanes(width: str) -> int | None:
    text = width.strip()
    return int(text) if text.isdigit() and 0 < int(text) <= 32 else None


def _pcie_link_from_nvml(pci_address: str) -> PcieLink | None:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return None
    except (OSError, AttributeError):
        return None
    try:
        device = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(pci_address.encode(), ctypes.byref(device)) != 0:
            return None

        def ask(name: str) -> int | None:
            value = ctypes.c_uint()
            return value.value if getattr(nvml, name)(device, ctypes.byref(value)) == 0 else None

        link = PcieLink(
            generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            generation_max=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
            width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
            width_max=ask("nvmlDeviceGetMaxPcieLinkWidth"),
        )
    except AttributeError:
        return None  # an older library lacks a function
    finally:
        with contextlib.suppress(AttributeError):
            nvml.nvmlShutdown()
    return None if link.generation is None and link.width is None else link


def _read(path: str | Path) -> str:
    """Returns the content of a small kernel file; an empty text if the file does not exist."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""

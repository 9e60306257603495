"""The findings of :mod:`gpufs.doctor` about GPUs, drivers and the host."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, Final

from gpufs import _core, _machine
from gpufs._findings import Finding
from gpufs.sizes import format_size

OPEN_FILES_PROMISED: Final = 65536
OLDEST_CAPABILITY: Final = (8, 0)  # the oldest GPUs for which the binaries contain code
# lanes of a warp that wait for each other make progress
INDEPENDENT_THREADS_CAPABILITY: Final = (7, 0)


def judge_cuda(cuda: dict[str, Any], gpus: list[dict[str, Any]]) -> Iterator[Finding]:
    """Yields the findings about the build, the driver and the GPUs."""
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
    if gpu["pageable_memory_access"]:
        yield Finding(
            "gpu.memory_of_the_process",
            "warn",
            "kernels can read and change all memory of their process (HMM or ATS)",
            "root and read_only hold against mistakes, not against a hostile kernel. Run kernels "
            "that are not trusted on a GPU without HMM or ATS.",
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


def judge_host(host: _machine.HostFacts, calls: _core.HostCalls) -> Iterator[Finding]:
    """Yields the findings about the host's memory, limits and system calls."""
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

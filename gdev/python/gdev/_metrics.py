"""The metrics of ``gdev metrics`` as text for Prometheus.

Labels: ``vgpu``, ``process`` (its number) and ``gpu`` (as ``gdev gpu list`` shows it). A program's
counters have no label ``gpu``: it would change when the program begins to use a GPU, and the series
would end. ``gdev_process_gpu_info`` says which one it uses.

Counters of a program last as long as it does, also from one daemon to the next. Those of a virtual
GPU include programs that have ended, as far as this daemon has seen them. Programs with the same
labels are added up: those of containers, whose processes have no number here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gpufs import _samples

from gdev import _daemon
from gdev._records import PHASES, Client, GpuUse, gpu_label
from gdev._sight import Sight, VgpuSight
from gdev._values import NO_LIMIT


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter of a program and of its virtual GPU."""

    name: str  # between gdev_process_ or gdev_vgpu_, and _total
    help: str
    key: str  # in COUNTERS
    divisor: int = 1


_COUNTERS: Final = (
    _Counter("launches", "Kernels and graphs that were launched.", "launches"),
    _Counter(
        "fills", "Fills of memory, and copies whose direction the call does not say.", "fills"
    ),
    _Counter("copies_to_device", "Copies from the host.", "to_device"),
    _Counter("copies_to_host", "Copies to the host.", "to_host"),
    _Counter(
        "unknown_functions",
        "How often a driver function was asked for that gdev does not know.",
        "unknown_functions",
    ),
    _Counter("bypasses", "How often the driver was loaded past gdev.", "bypasses"),
    _Counter("turns", "Turns on the GPU that began, after one had ended.", "turns"),
    _Counter("swap_out_bytes", "Bytes copied from the GPU when turns ended.", "bytes_out"),
    _Counter("swap_in_bytes", "Bytes copied to the GPU when turns began.", "bytes_in"),
    _Counter("swap_seconds", "Time of moves from and to the GPU.", "moving_ns", 10**9),
    _Counter("wait_seconds", "Time of waiting for room on the GPU.", "waiting_ns", 10**9),
    _Counter("refusals", "Requests of memory that were refused.", "refusals"),
)


_Thing = TypeVar("_Thing")


@dataclass(frozen=True, slots=True)
class _Gauge(Generic[_Thing]):
    """A gauge of programs, virtual GPUs or GPUs."""

    name: str
    help: str
    value: Callable[[_Thing], float]


_PROCESS_GAUGES: Final[tuple[_Gauge[Client], ...]] = (
    _Gauge("memory_used_bytes", "Memory in use.", lambda one: one.used),
    _Gauge("memory_overhead_bytes", "Of that: no allocations.", lambda one: one.overhead),
    _Gauge("memory_swapped_bytes", "Of that: on the host.", lambda one: one.swapped),
    _Gauge(
        "memory_wired_bytes",
        "Of that: what does not leave the GPU, and what is on other GPUs.",
        lambda one: one.wired,
    ),
    _Gauge("paused", "1 if it is paused until it is resumed.", lambda one: int(one.is_paused)),
    _Gauge("stuck", "1 if it could not end its last turn.", lambda one: int(one.stays != 0)),
)


_VGPU_GAUGES: Final[tuple[_Gauge[VgpuSight], ...]] = (
    _Gauge("memory_used_bytes", "Memory in use.", lambda one: one.vgpu.used),
    _Gauge(
        "memory_limit_bytes",
        "The limit of that; infinite: none.",
        lambda one: float("inf") if one.vgpu.limit >= NO_LIMIT else one.vgpu.limit,
    ),
    _Gauge("memory_shared_bytes", "Of that: shared by keys.", lambda one: one.vgpu.shared),
    _Gauge("memory_overhead_bytes", "Of that: no allocations.", lambda one: one.vgpu.overhead),
    _Gauge("memory_swapped_bytes", "Of that: on the host.", lambda one: one.swapped),
    _Gauge(
        "memory_wired_bytes",
        "Of that: what does not leave the GPU, and what is on other GPUs.",
        lambda one: one.wired,
    ),
    _Gauge(
        "memory_reserve_bytes",
        "As much of a GPU is never taken away from its programs.",
        lambda one: one.vgpu.reserve,
    ),
    _Gauge("priority", "The higher one is served first.", lambda one: one.vgpu.priority),
    _Gauge("programs", "Programs that use it.", lambda one: len(one.programs)),
)


_GPU_GAUGES: Final[tuple[_Gauge[GpuUse], ...]] = (
    _Gauge("memory_bytes", "The GPU's memory.", lambda one: one.total),
    _Gauge("memory_for_programs_bytes", "What programs may have.", lambda one: one.capacity),
    _Gauge("memory_given_bytes", "What programs may have just now.", lambda one: one.rooms),
    _Gauge(
        "memory_overhead_bytes", "What programs have beside allocations.", lambda one: one.overhead
    ),
    _Gauge(
        "memory_unaccounted_bytes",
        "What is in use and no program's of gdev.",
        lambda one: one.unaccounted,
    ),
)


def exposition(sight: Sight) -> str:
    """Returns all metrics in the text exposition format."""
    return "".join(f"{line}\n" for line in _lines(sight))


def _lines(sight: Sight) -> Iterator[str]:
    yield from _samples.head("gdev_daemon_info", "gauge", "Always 1; the daemon's protocol.")
    yield _samples.sample("gdev_daemon_info", {"protocol": str(_daemon.VERSION)}, 1)
    for gpu_gauge in _GPU_GAUGES:
        name = f"gdev_gpu_{gpu_gauge.name}"
        yield from _samples.head(name, "gauge", gpu_gauge.help)
        for gpu in sight.gpus:
            yield _samples.sample(name, {"gpu": gpu.label}, gpu_gauge.value(gpu))
    for vgpu_gauge in _VGPU_GAUGES:
        name = f"gdev_vgpu_{vgpu_gauge.name}"
        yield from _samples.head(name, "gauge", vgpu_gauge.help)
        for vgpu in sight.vgpus:
            yield _samples.sample(name, {"vgpu": vgpu.vgpu.name}, vgpu_gauge.value(vgpu))
    for counter in _COUNTERS:
        name = f"gdev_vgpu_{counter.name}_total"
        yield from _samples.head(name, "counter", counter.help)
        for vgpu in sight.vgpus:
            value = _scaled(vgpu.counts[counter.key], counter.divisor)
            yield _samples.sample(name, {"vgpu": vgpu.vgpu.name}, value)
    yield from _process_lines(list(sight.programs()))


def _process_lines(programs: list[Client]) -> Iterator[str]:
    for gauge in _PROCESS_GAUGES:
        name = f"gdev_process_{gauge.name}"
        yield from _samples.head(name, "gauge", gauge.help)
        yield from _summed(name, ((_labels(one), int(gauge.value(one))) for one in programs))
    name = "gdev_process_phase"
    yield from _samples.head(name, "gauge", "1 for the phase of its turn, 0 for the others.")
    yield from _summed(
        name,
        (
            ((*_labels(one), ("phase", phase)), int(one.phase == phase))
            for phase in PHASES
            for one in programs
        ),
    )
    name = "gdev_process_gpu_info"
    yield from _samples.head(name, "gauge", "The GPU on which it takes turns.")
    yield from _summed(
        name,
        (((*_labels(one), ("gpu", gpu_label(one.gpu))), 1) for one in programs if one.gpu),
    )
    for counter in _COUNTERS:
        name = f"gdev_process_{counter.name}_total"
        yield from _samples.head(name, "counter", counter.help)
        yield from _summed(
            name, ((_labels(one), one.counts[counter.key]) for one in programs), counter.divisor
        )


def _labels(one: Client) -> tuple[tuple[str, str], ...]:
    return (("vgpu", one.vgpu), ("process", str(one.process)))


def _scaled(count: int, divisor: int) -> float:
    return count if divisor == 1 else count / divisor


def _summed(
    name: str, values: Iterable[tuple[tuple[tuple[str, str], ...], int]], divisor: int = 1
) -> Iterator[str]:
    """Yields samples. Two with the same labels would make the answer invalid."""
    sums: dict[tuple[tuple[str, str], ...], int] = {}
    for labels, value in values:
        sums[labels] = sums.get(labels, 0) + value
    for labels, value in sums.items():
        yield _samples.sample(name, dict(labels), _scaled(value, divisor))

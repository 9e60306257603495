from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gpufs import _core, _machine, doctor

from .conftest import Command, command_line

GPU = {
    "ordinal": 0,
    "name": "NVIDIA H100",
    "pci_address": "ffff:ff:ff.7",
    "compute_capability": "9.0",
    "multiprocessors": 132,
    "memory_bytes": 80 << 30,
    "host_register": True,
    "host_register_read_only": True,
    "virtual_memory": True,
    "unified_addressing": True,
    "mapped_host_memory": True,
    "pageable_memory_access": False,
    "host_native_atomics": False,
    "prohibited": False,
}


@pytest.fixture(scope="module")
def report() -> doctor.Report:
    return doctor.examine()


def findings_with(monkeypatch: pytest.MonkeyPatch, **changes: object) -> dict[str, doctor.Finding]:
    """Examines a machine that claims to have a GPU, or something else."""
    monkeypatch.setattr(
        doctor, "SETTLING_S", 0.0
    )  # what is asked here is not whether pages were kept
    cuda: dict[str, Any] = {
        "built_version": 13000,
        "driver_version": 13000,
        "obstacle": "",
        "gpus": [GPU],
    }
    monkeypatch.setattr(_core, "examine_cuda", lambda: cuda | changes)
    return {finding.check: finding for finding in doctor.examine().findings}


def host_with(monkeypatch: pytest.MonkeyPatch, **changes: object) -> dict[str, doctor.Finding]:
    monkeypatch.setattr(doctor, "SETTLING_S", 0.0)
    host = dataclasses.replace(_machine.examine_host(), **changes)  # type: ignore[arg-type]
    monkeypatch.setattr(_machine, "examine_host", lambda: host)
    return {finding.check: finding for finding in doctor.examine().findings}


def test_it_warns_where_kernels_reach_the_memory_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = "gpu.memory_of_the_process"
    assert check not in findings_with(monkeypatch)
    found = findings_with(monkeypatch, gpus=[GPU | {"pageable_memory_access": True}])
    assert found[check].level == "warn"


def test_it_is_usable_here(report: doctor.Report) -> None:
    assert report.usable
    assert [finding for finding in report.findings if finding.level == "fail"] == []


def test_it_reads_a_file_and_says_which_way_it_came(report: doctor.Report) -> None:
    assert report.trial is not None
    (self_test,) = [finding for finding in report.findings if finding.check == "mount.self_test"]
    assert self_test.level == "ok"
    assert "1 MiB" in self_test.text
    counts = report.trial.statistics
    assert counts["direct_loads"] + counts["staged_loads"] + counts["open_loads"] >= 256
    if report.trial.direct_path == "on":
        assert counts["direct_loads"] > 0
        assert "directly" in self_test.text


def test_every_finding_says_something(report: doctor.Report) -> None:
    for finding in report.findings:
        assert finding.text
        assert finding.level in ("ok", "info", "warn", "fail")
        assert finding.level != "fail" or finding.advice
    checks = {finding.check for finding in report.findings}
    assert {
        *(
            "cuda.build",
            "host.kernel",
            "host.memory",
            "host.open_files",
            "host.locked_memory",
            "host.file_system",
        ),
        *("host.process_vm_readv", "host.cachestat", "host.io_uring"),
        *("mount.device", "mount.direct_path", "mount.self_test"),
    } <= checks


def test_json_has_the_documented_fields(run: Command) -> None:
    done = run("doctor", "--json")
    found = json.loads(done.stdout)
    assert (done.stderr, done.returncode) == (b"", 0)
    assert found["schema"] == 1
    assert found["usable"] is True
    assert found["version"] == _core.__version__
    assert found["device"] in ("cpu", "cuda")
    assert set(found) == {
        *(
            "schema",
            "version",
            "usable",
            "device",
            "device_name",
            "direct_path",
            "host",
            "cuda",
            "gpus",
            "findings",
        ),
    }
    assert set(found["host"]) == {
        *(
            "kernel",
            "architecture",
            "cpus",
            "memory_bytes",
            "memory_limit_bytes",
            "open_files_soft",
            "open_files_hard",
        ),
        *("locked_memory_bytes", "directory", "file_system"),
    }
    assert set(found["cuda"]) == {"built_with", "driver_supports", "driver", "obstacle"}
    for gpu in found["gpus"]:
        assert set(gpu) == {*GPU, "pcie"}
    for finding in found["findings"]:
        assert set(finding) == {"check", "gpu", "level", "text", "advice"}
    for name in (
        "schema",
        "usable",
        "device_name",
        "direct_path",
        *found["host"],
        *found["cuda"],
        *GPU,
        *finding,
    ):
        assert f"``{name}``" in (doctor.__doc__ or ""), name


def test_text_is_for_people(run: Command) -> None:
    done = run("doctor")
    text = done.stdout.decode()
    assert "works here" in text.splitlines()[-1]
    assert "\x1b" not in text
    assert (done.stderr, done.returncode) == (b"", 0)


def test_a_gpu_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = findings_with(monkeypatch)
    assert "NVIDIA H100" in findings["gpu.name"].text
    assert findings["gpu.name"].gpu == 0
    assert "80 GiB" in findings["gpu.memory"].text
    assert findings["gpu.compute_capability"].level == "ok"
    assert findings["gpu.host_register"].level == "ok"
    assert findings["gpu.pcie"].level == "info"


@pytest.mark.parametrize(
    ("lack", "check", "level"),
    [
        ({"host_register_read_only": False}, "gpu.host_register", "warn"),
        ({"host_register": False}, "gpu.host_register", "warn"),
        ({"virtual_memory": False}, "gpu.virtual_memory", "fail"),
        ({"mapped_host_memory": False}, "gpu.mapped_host_memory", "fail"),
        ({"unified_addressing": False}, "gpu.unified_addressing", "fail"),
        ({"compute_capability": "7.5"}, "gpu.compute_capability", "warn"),
        ({"compute_capability": "6.1"}, "gpu.compute_capability", "warn"),
        ({"prohibited": True}, "gpu.compute_mode", "fail"),
    ],
)
def test_what_a_gpu_lacks_is_said_with_advice(
    monkeypatch: pytest.MonkeyPatch, lack: dict[str, object], check: str, level: str
) -> None:
    finding = findings_with(monkeypatch, gpus=[GPU | lack])[check]
    assert (finding.level, finding.gpu) == (level, 0)
    assert finding.advice


def test_a_narrow_link_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    link = _machine.PcieLink(generation=1, generation_max=5, width=8, width_max=16)
    monkeypatch.setattr(_machine, "pcie_link", lambda _: link)
    finding = findings_with(monkeypatch)["gpu.pcie"]
    assert finding.level == "warn"
    assert "5 x8" in finding.text
    assert "x16" in finding.text


def test_an_old_driver_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = findings_with(
        monkeypatch, driver_version=12040, gpus=[], obstacle="insufficient driver"
    )
    assert findings["cuda.driver"].level == "warn"
    assert "insufficient driver" in findings["cuda.driver"].text
    assert "13.0" in findings["cuda.driver"].advice


def test_no_driver_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = findings_with(monkeypatch, driver_version=0, gpus=[], obstacle="no NVIDIA driver")
    assert findings["cuda.driver"].level == "info"


def test_a_mount_that_fails_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(5, "the driver is broken")

    monkeypatch.setattr(doctor, "Mount", refuse)
    report = doctor.examine()
    assert not report.usable
    assert report.trial is None
    assert report.to_json()["device"] is None
    assert "does not work" in doctor.conclude(report)
    failures = [finding for finding in report.findings if finding.level == "fail"]
    assert len(failures) == (2 if report.gpus else 1)  # with a GPU the CPU device is tried too
    for finding in failures:
        assert "the driver is broken" in finding.text


def test_wrong_contents_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    search = doctor.grep.search

    def lose_a_page(mount: Any, words: Any, paths: list[Any]) -> Any:
        data = bytearray(paths[0].read_bytes())
        data[4096:8192] = data[:4096]
        paths[0].write_bytes(data)
        return search(mount, words, paths)

    monkeypatch.setattr(doctor.grep, "search", lose_a_page)
    report = doctor.examine()
    assert not report.usable
    (finding,) = [finding for finding in report.findings if finding.level == "fail"]
    assert finding.check == "mount.self_test"


def test_few_descriptors_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    few = host_with(monkeypatch, open_files_soft=1024, open_files_hard=4096)["host.open_files"]
    assert few.level == "info"
    assert "3072" in few.text
    assert "opens files again" in few.text
    assert few.advice
    for enough in (None, 1 << 20):
        finding = host_with(monkeypatch, open_files_soft=1024, open_files_hard=enough)[
            "host.open_files"
        ]
        assert (finding.level, finding.advice) == ("ok", "")


def test_few_descriptors_suffice() -> None:
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 64)
    done = subprocess.run(
        command_line("doctor"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard)),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert b"which a mount raises to the hard limit: 64" in done.stdout


def test_a_small_control_group_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    host = _machine.examine_host()
    finding = host_with(monkeypatch, memory_limit_bytes=host.memory_bytes // 4)["host.memory"]
    assert finding.level == "warn"
    assert "pinned" in finding.advice
    assert (
        host_with(monkeypatch, memory_limit_bytes=host.memory_bytes // 4 * 3)["host.memory"].level
        == "ok"
    )


def test_no_space_for_the_test_file_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(doctor.Path, "write_bytes", full)
    report = doctor.examine()
    (finding,) = [finding for finding in report.findings if finding.check == "mount.self_test"]
    assert finding.level == "warn"
    assert report.usable


def test_file_systems_are_known() -> None:
    assert _machine.file_system_of("/proc/self") == "proc"
    # In a chroot the list of mounts may have nothing that holds its root.
    listed = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    assert (_machine.file_system_of("/") == "unknown") == ("/" not in listed)

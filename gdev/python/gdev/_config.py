"""A file that says which virtual GPUs there are, and what programs may have: ``gdev apply``.

[gpu]                     # what is not named stays as it is
memory = "70GiB"          # most of each GPU for all programs together; "none"
spare = "2GiB"
host_memory = "128GiB"
swap_files = "500GiB"     # most in files, beside that

[vgpu.a]                  # what is not named has its default
memory = "60GiB"          # must be named; "none"
reserve = "20GiB"         # 0
priority = 10             # 0
when_full = "swap"        # or "wait", "fail"
end_after = 60            # 0; seconds, as of gdev vgpu set --end-after
users = "everybody"       # who may use it: a user, or all; else who adds it
"""

from __future__ import annotations

import errno
import os
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from gpufs.sizes import Size, format_size, parse_size

from gdev import _daemon
from gdev._records import WHEN_FULL, Vgpu
from gdev._users import EVERYBODY, owner_of, user_name, users_of
from gdev._values import END_AFTER_MAX_S, NO_LIMIT, PRIORITY_MAX, format_limit, is_name, limit_of

VARIABLE: Final = "GDEV_CONFIG"
_UNIT: Final = 4096  # of what the daemon keeps
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """What programs may have of each GPU and of the host, in bytes. None: as it is."""

    memory: int | None = None
    spare: int | None = None
    host_memory: int | None = None
    swap_files: int | None = None


@dataclass(frozen=True, slots=True)
class VgpuConfig:
    """A virtual GPU. All amounts are bytes."""

    memory: int
    reserve: int = 0
    priority: int = 0
    when_full: str = "swap"
    end_after: int = 0  # seconds
    users: str = ""  # none named: as they are, or who adds it

    @classmethod
    def of(cls, one: Vgpu) -> VgpuConfig:
        """Returns what a file would say of a virtual GPU that is there."""
        return cls(
            one.limit,
            one.reserve,
            one.priority,
            one.when_full,
            one.end_after_s,
            users_of(one.owner),
        )

    def texts(self) -> dict[str, str]:
        """Returns the values as people write them."""
        return {
            "memory": format_limit(self.memory, "none"),
            "reserve": format_size(self.reserve),
            "priority": str(self.priority),
            "when_full": self.when_full,
            "end_after": str(self.end_after),
            "users": self.users,
        }


@dataclass(frozen=True, slots=True)
class Config:
    """All that a file says."""

    path: str
    gpu: GpuConfig
    vgpus: dict[str, VgpuConfig]


def load(path: Path) -> Config:
    """Reads a file.

    Raises:
        OSError: it cannot be read.
        ValueError: the text names the file and the key.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also of bytes that are no text
        raise ValueError(f"{path}: {error}") from None
    reader = _Reader(str(path))
    gpu = reader.table(content.pop("gpu", {}), "gpu")
    vgpus = reader.table(content.pop("vgpu", {}), "vgpu")
    reader.end(content, "")
    made_gpu = GpuConfig(
        memory=reader.take(gpu, "gpu.memory", _limit, None),
        spare=reader.take(gpu, "gpu.spare", _size, None),
        host_memory=reader.take(gpu, "gpu.host_memory", _size, None),
        swap_files=reader.take(gpu, "gpu.swap_files", _size, None),
    )
    reader.end(gpu, "gpu.")
    made = {name: _vgpu(reader, name, content) for name, content in vgpus.items()}
    if made_gpu.memory is not None and (made_gpu.spare or 0) >= made_gpu.memory:
        raise reader.error("gpu.spare", "is less than gpu.memory")
    return Config(str(path), made_gpu, made)


def _vgpu(reader: _Reader, name: str, content: object) -> VgpuConfig:
    key = f"vgpu.{name}"
    if not is_name(name):
        raise reader.error(key, _daemon.NAME_RULE)
    table = reader.table(content, key)
    if "memory" not in table:
        raise reader.error(f"{key}.memory", "is missing")
    made = VgpuConfig(
        memory=reader.take(table, f"{key}.memory", _limit, 0),
        reserve=reader.take(table, f"{key}.reserve", _size, 0),
        priority=reader.take(table, f"{key}.priority", _priority, 0),
        when_full=reader.take(table, f"{key}.when_full", _when_full, "swap"),
        end_after=reader.take(table, f"{key}.end_after", _end_after, 0),
        users=reader.take(table, f"{key}.users", _users, ""),
    )
    reader.end(table, f"{key}.")
    if made.reserve > made.memory:
        raise reader.error(f"{key}.reserve", "is at most its memory")
    return made


@dataclass(frozen=True, slots=True)
class _Reader:
    """Takes values out of tables. Its errors name the file and the key."""

    path: str

    def error(self, key: str, text: str) -> ValueError:
        return ValueError(f"{self.path}: {key}: {text}")

    def table(self, value: object, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(key, f"is a table, not {value!r}")
        return dict(value)

    def take(
        self, table: dict[str, Any], key: str, read: Callable[[Any], _Value], absent: _Value
    ) -> _Value:
        name = key.rpartition(".")[2]
        if name not in table:
            return absent
        try:
            return read(table.pop(name))
        except (TypeError, ValueError) as error:
            raise self.error(key, str(error)) from None

    def end(self, table: dict[str, Any], prefix: str) -> None:
        for name in table:
            raise self.error(f"{prefix}{name}", "there is no such key")


def _in_units(size: int) -> int:
    """Returns a size as the daemon keeps it."""
    return min(-(-size // _UNIT) * _UNIT, NO_LIMIT)


def _limit(value: object) -> int:
    return _in_units(limit_of(_written(value)))


def _size(value: object) -> int:
    return _in_units(parse_size(_written(value)))


def _written(value: object) -> Size:
    """Returns a size as it may be written. Raises TypeError."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        return value
    raise TypeError(f'a size is a number of bytes, or text such as "8GiB": {value!r}')


def _priority(value: object) -> int:
    return _number(value, "a priority", -PRIORITY_MAX, PRIORITY_MAX)


def _end_after(value: object) -> int:
    return _number(value, "a number of seconds", 0, END_AFTER_MAX_S)


def _number(value: object, what: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{what} is {least} to {most}: {value!r}")
    return value


def _when_full(value: object) -> str:
    if value not in WHEN_FULL:
        raise ValueError(f"is one of {', '.join(WHEN_FULL)}: {value!r}")
    return str(value)


def _users(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f'is a user, or "everybody": {value!r}')
    return users_of(owner_of(value))


def apply(daemon: _daemon.Daemon, config: Config, *, prune: bool = False) -> Iterator[str]:
    """Makes the daemon's state as the file says. Yields a line for each change.

    Args:
        daemon: the daemon.
        config: what the file says.
        prune: remove virtual GPUs that the file does not name and that are not in use.

    Raises:
        OSError: the daemon refuses a change; those before it are made.
        ValueError: the file does not fit what the daemon has; nothing has changed.
    """
    there = {one.name: one for one in daemon.vgpus()}
    yield from _apply_gpu(daemon, config)
    for name, named in config.vgpus.items():
        before = VgpuConfig.of(there[name]) if name in there else None
        users = named.users or _owner(before)
        wanted = replace(named, users=users)
        if before == wanted:
            continue
        daemon.ask(
            _daemon.SET if before else _daemon.ADD,
            name,
            wanted.memory,
            owner_of(wanted.users),
            wanted.reserve,
            wanted.priority % 2**64,
            WHEN_FULL.index(wanted.when_full),
            wanted.end_after,
        )
        yield (
            f"changed {name}: {_difference(before, wanted)}"
            if before
            else (f"added {name}: {_difference(None, wanted)}")
        )
    for name in there if prune else ():
        if name not in config.vgpus:
            yield _removed(daemon, name)


def _owner(before: VgpuConfig | None) -> str:
    """Returns whose a virtual GPU is, if the file does not say it."""
    if before is None or before.users == EVERYBODY:
        return user_name(os.getuid())
    return before.users


def _apply_gpu(daemon: _daemon.Daemon, config: Config) -> Iterator[str]:
    wanted = config.gpu
    if wanted == GpuConfig():
        return
    before = GpuConfig(*daemon.settings())
    after = GpuConfig(
        *(
            getattr(before if getattr(wanted, one.name) is None else wanted, one.name)
            for one in fields(wanted)
        )
    )
    if (after.spare or 0) >= (after.memory or 0):
        raise ValueError(f"{config.path}: gpu.spare: is less than the memory for programs")
    if before == after:
        return
    daemon.settings(after.memory, after.spare, after.host_memory, after.swap_files)
    yield "changed gpu: " + ", ".join(
        f"{one.name} {format_limit(old, 'none')} -> {format_limit(new, 'none')}"
        for one in fields(wanted)
        if (old := getattr(before, one.name)) != (new := getattr(after, one.name))
    )


def _difference(before: VgpuConfig | None, after: VgpuConfig) -> str:
    new = after.texts()
    if before is None:
        return ", ".join(f"{key} {text}" for key, text in new.items())
    old = before.texts()
    return ", ".join(
        f"{one.name} {old[one.name]} -> {new[one.name]}"
        for one in fields(after)
        if getattr(before, one.name) != getattr(after, one.name)
    )


def _removed(daemon: _daemon.Daemon, name: str) -> str:
    try:
        daemon.ask(_daemon.REMOVE, name)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return f"kept {name}: {error.strerror}"
    return f"removed {name}"


def of_environment() -> Config | None:
    """Returns what the file of ``GDEV_CONFIG`` says, or None. Raises as :func:`load`."""
    path = os.environ.get(VARIABLE)
    return load(Path(path)) if path else None

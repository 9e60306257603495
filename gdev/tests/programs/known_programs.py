"""What the daemon knows of programs, for those that did not end in time."""

from __future__ import annotations

from gdev import _daemon, _files


def programs() -> list[dict[str, object]]:
    """Returns the programs that the daemon knows."""
    with _daemon.Daemon(_files.socket_path()) as daemon:
        return [
            {
                "process": one.process,
                "gpu": f"{one.gpu:x}",
                "phase": one.phase,
                "phase_s": round(one.phase_ns / 1e9, 1),
                "stays": one.stays,
                "used_mib": one.used >> 20,
                "turns": one.counts["turns"],
            }
            for one in daemon.clients()
        ]

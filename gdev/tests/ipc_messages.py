"""Handles of shared memory, and the messages between its programs (ipc_exporter.hpp)."""

from __future__ import annotations

import socket
import struct

from .simulated_gpu import TIMEOUT_S

HANDLE = struct.Struct("=8Q")  # magic, socket, token, token, id, bytes, pid, unused
REQUEST = struct.Struct("=5Q")  # magic, token, token, id, first
ANSWER = struct.Struct("=QIIQ64Q")  # magic, error, count, chunks, bytes of each


def connect(handle: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(f"\0gdev-ipc-{HANDLE.unpack(bytes.fromhex(handle))[1]:016x}")
    made.settimeout(TIMEOUT_S)
    return made


def request(handle: str, first: int = 0) -> bytes:
    magic, _, low, high, number, *_ = HANDLE.unpack(bytes.fromhex(handle))
    return REQUEST.pack(magic, low, high, number, first)


def changed(handle: str, place: int, value: int) -> str:
    """The handle with another number in a place."""
    numbers = list(HANDLE.unpack(bytes.fromhex(handle)))
    numbers[place] = value
    return HANDLE.pack(*numbers).hex()

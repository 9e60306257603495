"""The names that a library exports, out of its file: it is not loaded."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr
_SYMBOL: Final = struct.Struct("<IBBHQQ")  # Elf64_Sym
_DYNAMIC_SYMBOLS: Final = 11  # SHT_DYNSYM


def exported_names(path: Path) -> set[str]:
    """Returns the names that an ELF library of 64 bits defines for others.

    Raises OSError; ValueError: it is no such file, or it has no table of its sections.
    """
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        try:
            return _names(content)
        except (struct.error, UnicodeDecodeError):
            raise ValueError(f"{path}: no library that can be read") from None


def _names(content: mmap.mmap) -> set[str]:
    header = _HEADER.unpack_from(content)
    if header[0][:6] != b"\x7fELF\x02\x01":
        raise ValueError("not an ELF file of 64 bits")
    begin, entry_bytes, count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(content, begin + i * entry_bytes) for i in range(count)]
    found: set[str] = set()
    for section in sections:
        kind, offset, size, link = section[1], section[4], section[5], section[6]
        if kind != _DYNAMIC_SYMBOLS:
            continue
        texts = sections[link][4] if link < len(sections) else 0
        for at in range(offset, offset + size, _SYMBOL.size):
            name, _, _, defined_in, _, _ = _SYMBOL.unpack_from(content, at)
            if defined_in != 0 and name != 0:
                end = content.find(b"\0", texts + name)
                found.add(content[texts + name : end].decode())
    return found

"""The layers of the package: imports form no cycle, and no module is too long."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import gpufs
import pytest

LINES_MAX = 500

ROOT = Path(gpufs.__file__).parent


def modules_in(root: Path) -> dict[str, Path]:
    """Returns the files of a package by the names of their modules."""
    return {
        ".".join((root.name, *file.relative_to(root).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): file
        for suffix in ("py", "pyi")
        for file in sorted(root.rglob(f"*.{suffix}"))
    }


def is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a module, also of its functions, but not those for type checkers."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for node in child.orelse:
                yield node
                yield from statements(node)
        else:
            yield child
            yield from statements(child)


def imports_of(name: str, source: str, known: set[str], *, is_package: bool = False) -> set[str]:
    """Returns the modules of the package that a module imports anywhere.

    ``from a import b`` means ``a.b`` if that is a module, and ``a`` otherwise. The import of the
    packages that contain a module is not counted.
    """
    found: set[str] = set()
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level > 0:
                parts = name.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in known else base)
    return found & known - {name}


def cycle_in(imports: dict[str, set[str]]) -> list[str]:
    """Returns the modules of a cycle, each imported by the next; none if there is no cycle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_imports_form_no_cycle() -> None:
    files = modules_in(ROOT)
    imports = {
        name: imports_of(
            name,
            file.read_text(encoding="utf-8"),
            set(files),
            is_package=file.stem == "__init__",
        )
        for name, file in files.items()
    }
    assert imports["gpufs.metrics"]  # the files were read
    assert cycle_in(imports) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import p.b", {"p.b"}),
        ("from p import b", {"p.b"}),
        ("from p.b import name", {"p.b"}),
        ("from . import b", {"p.b"}),
        ("from .b import name", {"p.b"}),
        ("def f():\n    if x:\n        from p import b", {"p.b"}),
        ("try:\n    import p.b\nexcept ImportError:\n    pass", {"p.b"}),
        ("if TYPE_CHECKING:\n    import p.b", set()),
        ("if typing.TYPE_CHECKING:\n    import p.b\nelse:\n    import p.c", {"p.c"}),
        ("import os\nfrom numpy import b", set()),
    ],
)
def test_every_kind_of_import_is_found(source: str, expected: set[str]) -> None:
    assert imports_of("p.a", source, {"p", "p.a", "p.b", "p.c"}) == expected


def test_a_cycle_is_found() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert set(cycle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}


def test_no_module_is_too_long() -> None:
    lengths = {
        str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines())
        for file in modules_in(ROOT).values()
    }
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}

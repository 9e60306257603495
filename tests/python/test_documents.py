"""The code in the documents compiles, Python's also runs, and their links lead somewhere."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import gpufs
import pytest
from gpufs import _core

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("models/*.md"),
    ]
)


def cpp_blocks() -> list[tuple[str, str]]:
    blocks = []
    for document in DOCUMENTS:
        for number, code in enumerate(
            re.findall(r"^```cpp\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
        ):
            blocks.append((f"{document.name}-{number}", code))
    return blocks


def test_readme_shows_a_kernel() -> None:
    assert any(name.startswith("README") for name, _ in cpp_blocks())


@pytest.mark.parametrize(("name", "code"), cpp_blocks(), ids=[name for name, _ in cpp_blocks()])
def test_code_in_documents_compiles(name: str, code: str, tmp_path: Path) -> None:
    source = tmp_path / f"{name}.cpp"
    # A functor that nothing calls is still compiled when it is instantiated by a launch. A whole
    # program launches its own.
    kernels = [] if "int main(" in code else re.findall(r"^struct (\w+) \{", code, re.MULTILINE)
    uses = "".join(
        f"void use(gpufs::mount& m, const {k}& kernel) {{ gpufs::launch(m, {{}}, kernel); }}\n"
        for k in kernels
    )
    source.write_text(code + uses)
    subprocess.run(
        [
            "g++",
            "-std=c++20",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            f"-I{ROOT / 'include'}",
            str(source),
        ],
        check=True,
        timeout=120,
    )


def test_the_tutorial_shows_the_programs_that_are_built() -> None:
    folder = ROOT / "examples" / "tutorial"
    shown = [code for name, code in cpp_blocks() if name.startswith("tutorial.md")]
    programs = re.findall(r"foreach\(program (.*)\)", (folder / "CMakeLists.txt").read_text())[0]
    assert shown == [(folder / f"{name}.cpp").read_text() for name in programs.split()]


def test_each_row_of_what_is_durable_names_a_test() -> None:
    section = (
        (ROOT / "docs" / "api.md")
        .read_text()
        .partition("### What is durable when")[2]
        .partition("\n### ")[0]
    )
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    listed = section.partition("The rows, with their tests:\n\n")[2].partition("\n\n")[0]
    items = re.split(r"^\d+\. ", listed, flags=re.MULTILINE)[1:]
    sources = "".join(source.read_text() for source in ROOT.glob("tests/*/*.cpp"))
    assert len(rows) == len(items) >= 8
    for row, item in zip(rows, items, strict=True):
        named = re.findall(r"`(\w+)\.(\w+)`", item)
        assert named, row
        for suite, test in named:
            assert re.search(rf"^TEST(_P|_F)?\({suite}, {test}\)", sources, re.MULTILINE), (
                f"{suite}.{test}"
            )


# --- Python ---

RUN = [ROOT / "README.md", ROOT / "docs" / "python.md"]  # the blocks of each in one namespace


@dataclass(frozen=True)
class PythonBlock:
    """A block of a document; those that say so are for machines with a GPU only."""

    document: Path
    line: int  # of its first line of code, in the document
    code: str
    for_gpu: bool

    def __str__(self) -> str:
        return f"{self.document.name}-{self.line}"

    def compile(self) -> CodeType:
        """What went wrong in it is told with the line of the document."""
        return compile("\n" * (self.line - 1) + self.code, str(self.document), "exec")

    def libraries(self) -> set[str]:
        """What it imports."""
        modules: set[str] = set()
        for node in ast.walk(ast.parse(self.code)):
            if isinstance(node, ast.Import):
                modules.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                modules.add(str(node.module).partition(".")[0])
        return modules


def python_blocks(document: Path) -> list[PythonBlock]:
    text = document.read_text()
    found = re.finditer(r"^( *)```python( gpu)?\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [
        PythonBlock(
            document,
            text[: block.start(3)].count("\n") + 1,
            textwrap.dedent(block[3]),
            block[2] is not None,
        )
        for block in found
    ]


GPU_BLOCKS = [block for document in RUN for block in python_blocks(document) if block.for_gpu]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def namespace() -> Iterator[dict[str, Any]]:
    """What blocks define; their mounts are closed afterwards."""
    made: dict[str, Any] = {"__name__": "__main__"}
    yield made
    for value in made.values():
        if isinstance(value, gpufs.Mount):
            value.close()


@pytest.mark.parametrize("document", DOCUMENTS, ids=[d.name for d in DOCUMENTS])
def test_every_python_block_is_found_and_compiles(document: Path) -> None:
    blocks = python_blocks(document)
    assert len(blocks) == len(re.findall(r"^ *```py", document.read_text(), re.MULTILINE))
    for block in blocks:
        block.compile()


@pytest.mark.parametrize("document", RUN, ids=[d.name for d in RUN])
def test_python_in_documents_runs_on_the_cpu(
    document: Path, folder: Path, namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpufs, "mount", functools.partial(gpufs.Mount, device="cpu"))
    blocks = [block for block in python_blocks(document) if not block.for_gpu]
    assert blocks
    for block in blocks:
        exec(block.compile(), namespace)


def test_the_guide_shows_each_library() -> None:
    assert set.union(*(block.libraries() for block in GPU_BLOCKS)) == {
        "cupy",
        "gpufs",
        "numba",
        "torch",
    }


@pytest.mark.skipif(not _core.examine_cuda()["gpus"], reason="no GPU here")
@pytest.mark.parametrize("document", RUN, ids=[d.name for d in RUN])
def test_python_in_documents_runs_on_a_gpu(
    document: Path, folder: Path, namespace: dict[str, Any]
) -> None:
    for block in python_blocks(document):
        if not block.for_gpu:
            exec(block.compile(), namespace)


@pytest.mark.skipif(not _core.examine_cuda()["gpus"], reason="no GPU here")
@pytest.mark.parametrize("wanted", GPU_BLOCKS, ids=map(str, GPU_BLOCKS))
def test_python_for_gpus_runs_on_a_gpu(
    wanted: PythonBlock, folder: Path, namespace: dict[str, Any]
) -> None:
    for library in wanted.libraries():
        pytest.importorskip(library, reason=f"no {library} here")
    for block in python_blocks(wanted.document):
        if block == wanted:
            break
        if not block.for_gpu:
            exec(block.compile(), namespace)
    exec(wanted.compile(), namespace)


# --- Links ---


@pytest.mark.parametrize("document", DOCUMENTS, ids=[d.name for d in DOCUMENTS])
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name}: {target}"

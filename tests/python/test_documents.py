"""The code in the documents compiles, and their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("models/*.md")]
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
    # A functor that nothing calls is still compiled when it is instantiated by a launch.
    kernels = re.findall(r"^struct (\w+) \{", code, re.MULTILINE)
    uses = "".join(
        f"void use(const gpufs::mount& m, const {k}& kernel) {{ gpufs::launch(m, {{}}, kernel); }}\n" for k in kernels
    )
    source.write_text(code + uses)
    subprocess.run(
        ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{ROOT / 'include'}", str(source)],
        check=True,
        timeout=120,
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=[d.name for d in DOCUMENTS])
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name}: {target}"

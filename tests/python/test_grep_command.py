"""Arguments and output of ``gpufs grep``; test_command_line.py tests what all commands share."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from .conftest import TIMEOUT_S, Command, command_line, tree_lines


def special_path(kind: str, folder: Path) -> Path:
    """Something that is no regular file."""
    path = folder / kind
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    elif kind == "device":
        return Path("/dev/zero")
    else:
        path = Path("/proc/self", "status" if kind == "pseudo file" else "")
        if not path.exists():
            pytest.skip("no /proc here")
    return path


@pytest.mark.parametrize("kind", ["FIFO", "socket", "device", "pseudo file", "pseudo folder"])
def test_what_cannot_be_searched_is_one_line_and_the_rest_is_done(
    run: Command,
    words: Path,
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    path = special_path(kind, Path())
    done = run("grep", "--device", "cpu", "-f", words, path, tree / "b")
    assert done.stdout == b"".join(tree_lines(tree).splitlines(keepends=True)[1:3])
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"gpufs grep: {path}: is ")
    assert kind.partition(" ")[0] in line
    assert done.returncode == 2


def test_what_is_special_below_a_folder_is_passed_over(
    run: Command, words: Path, tree: Path
) -> None:
    os.mkfifo(tree / "fifo")
    (tree / "link").symlink_to("a")
    done = run("grep", "--device", "cpu", "-f", words, tree)
    assert (done.stdout, done.stderr, done.returncode) == (tree_lines(tree), b"", 0)


# --- The timeline ---


def names_of_input(tmp_path: Path, words: Path, tree: Path) -> dict[str, Path]:
    """Names of files that are read, which a timeline must not overwrite."""
    (tmp_path / "symbolic").symlink_to(tree / "b")
    (tmp_path / "hard").hardlink_to(tree / "below" / "c")
    (tmp_path / "folder").symlink_to(tree / "below")
    return {
        "a file": tree / "b",
        "a file below a folder": tree / "below" / "c",
        "a symbolic link": tmp_path / "symbolic",
        "a hard link": tmp_path / "hard",
        "a linked folder": tmp_path / "folder" / "c",
        "the words": words,
    }


KINDS = (
    "a file",
    "a file below a folder",
    "a symbolic link",
    "a hard link",
    "a linked folder",
    "the words",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_timeline_overwrites_no_input(
    run: Command, words: Path, tree: Path, tmp_path: Path, kind: str
) -> None:
    output = names_of_input(tmp_path, words, tree)[kind]
    before = output.read_bytes()
    done = run(
        "grep", "--device", "cpu", "--timeline", output, "-f", words, tree / "b", tree / "below"
    )
    assert output.read_bytes() == before
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"gpufs grep: {output}: would be lost: ")
    assert (done.stdout, done.returncode) == (b"", 2)


def test_a_timeline_overwrites_no_input_that_an_empty_list_leaves_unread(
    run: Command, tree: Path
) -> None:
    before = (tree / "b").read_bytes()
    done = run("grep", "--device", "cpu", "--timeline", tree / "b", "-f", os.devnull, tree)
    assert (tree / "b").read_bytes() == before
    assert done.stderr.startswith(f"gpufs grep: {tree}/b: would be lost: ".encode())
    assert (done.stdout, done.returncode) == (b"", 2)


def test_a_timeline_does_not_overwrite_words_on_standard_input(words: Path, tree: Path) -> None:
    before = words.read_bytes()
    arguments = command_line("grep", "--device", "cpu", "--timeline", words, "-f", "-", tree)
    with words.open("rb") as stdin:
        done = subprocess.run(
            arguments, stdin=stdin, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    assert words.read_bytes() == before
    assert done.stderr == f"gpufs grep: {words}: would be lost: it is a list of words\n".encode()
    assert done.returncode == 2


def test_a_timeline_may_replace_another_file(
    run: Command, words: Path, tree: Path, tmp_path: Path
) -> None:
    output = tmp_path / "timeline"
    for before in (None, "old"):
        if before is not None:
            output.write_text(before)
        done = run("grep", "--device", "cpu", "--timeline", output, "-f", words, tree)
        assert (done.stdout, done.stderr, done.returncode) == (tree_lines(tree), b"", 0)
        assert json.loads(output.read_text())["traceEvents"]


def test_a_timeline_may_go_where_nothing_is_kept(run: Command, words: Path, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "--timeline", "/dev/null", "-f", words, tree)
    assert (done.stdout, done.stderr, done.returncode) == (tree_lines(tree), b"", 0)


def test_a_timeline_that_cannot_be_written_is_one_line(
    run: Command, words: Path, tree: Path
) -> None:
    done = run("grep", "--device", "cpu", "--timeline", tree / "no" / "folder", "-f", words, tree)
    assert done.stderr == f"gpufs grep: {tree}/no/folder: No such file or directory\n".encode()
    assert (done.stdout, done.returncode) == (b"", 2)


# --- Words on the command line ---


def lines_of(tree: Path, *words: str) -> bytes:
    """The output of a search of `tree` for some of its words."""
    wanted = {word.encode() for word in words}
    return b"".join(
        line
        for line in tree_lines(tree).splitlines(keepends=True)
        if line.split(b"\t")[1] in wanted
    )


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["beta", "TREE"], ["beta"]),
        (["-r", "beta", "TREE"], ["beta"]),
        (["beta", "TREE", "-r"], ["beta"]),
        (["-e", "beta", "TREE"], ["beta"]),
        (["--word", "beta", "TREE"], ["beta"]),
        (["-e", "beta", "-e", "alpha", "TREE"], ["alpha", "beta"]),
        (["-ebeta", "TREE", "-ealpha"], ["alpha", "beta"]),
        (["-e", "beta\nalpha\n", "TREE"], ["alpha", "beta"]),
        (["beta\n\nalpha", "TREE"], ["alpha", "beta"]),
        (["-f", "LIST", "TREE"], ["alpha", "gamma"]),
        (["-f", "LIST", "-e", "beta", "TREE"], ["alpha", "beta", "gamma"]),
        (["-f", "LIST", "-f", "OTHER", "TREE"], ["alpha", "beta", "gamma"]),
        (["-rf", "LIST", "TREE"], ["alpha", "gamma"]),
        (["--", "beta", "TREE"], ["beta"]),
        (["bet", "TREE"], []),
        (["be.a", "TREE"], []),
    ],
)
def test_words_stand_on_the_command_line(
    run: Command, tree: Path, tmp_path: Path, arguments: list[str], found: list[str]
) -> None:
    (tmp_path / "list").write_text("alpha\ngamma\n")
    (tmp_path / "other").write_text("beta\n")
    paths = {"TREE": tree, "LIST": tmp_path / "list", "OTHER": tmp_path / "other"}
    done = run(
        "grep", "--device", "cpu", *(paths.get(argument, argument) for argument in arguments)
    )
    assert (done.stdout, done.stderr, done.returncode) == (
        lines_of(tree, *found),
        b"",
        0 if found else 1,
    )


def test_with_a_word_of_e_or_f_all_operands_are_paths(
    run: Command, words: Path, tree: Path
) -> None:
    for option in (["-e", "beta"], ["-f", words]):
        done = run("grep", "--device", "cpu", *option, "alpha", tree / "nothing")
        assert done.stderr == b"gpufs grep: alpha: No such file or directory\n"
        assert (done.stdout, done.returncode) == (b"", 2)


@pytest.mark.parametrize("word", ["-x", "--device", "-e", "-"])
def test_a_word_may_begin_with_a_dash(run: Command, tmp_path: Path, word: str) -> None:
    (tmp_path / "file").write_text(f"a {word} b {word}")
    for arguments in (["-e", word, tmp_path / "file"], ["--", word, tmp_path / "file"]):
        done = run("grep", "--device", "cpu", *arguments)
        assert done.stdout == f"{tmp_path}/file\t{word}\t2\n".encode()
        assert (done.stderr, done.returncode) == (b"", 0)


def test_a_word_may_be_any_bytes(run: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"- caf\xe9 \xff -")
    for word in (b"caf\xe9", b"\xff"):
        done = run("grep", "--device", "cpu", word, tmp_path / "file")
        assert done.stdout == b"%s/file\t%s\t1\n" % (bytes(tmp_path), word)
        assert (done.stderr, done.returncode) == (b"", 0)


def test_r_without_a_path_searches_the_working_folder(run: Command, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "-r", "alpha", cwd=tree)
    assert (done.stdout, done.stderr, done.returncode) == (b"./b\talpha\t2\n", b"", 0)
    done = run("grep", "--device", "cpu", "-re", "alpha", cwd=tree)
    assert (done.stdout, done.stderr, done.returncode) == (b"./b\talpha\t2\n", b"", 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "WORD and PATH are missing"),
        (["-r"], "WORD and PATH are missing"),
        (["alpha"], "PATH is missing"),
        (["-e", "alpha"], "PATH is missing"),
        (["-f", os.devnull], "PATH is missing"),
        (["", "."], "empty"),
        (["-e", "alpha", "-e", "", "."], "empty"),
        (["x" * 256, "."], "longer than 255 bytes"),
        (["-f", os.devnull, "-e", "x" * 256, "."], "longer than 255 bytes"),
    ],
)
def test_wrong_use_is_one_line(
    run: Command, tmp_path: Path, arguments: list[str], text: str
) -> None:
    done = run("grep", "--device", "cpu", *arguments, cwd=tmp_path)
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("gpufs grep: ")
    assert text in line
    assert (done.stdout, done.returncode) == (b"", 2)


def test_a_list_without_words_reads_nothing(run: Command, tree: Path) -> None:
    """As with grep, which does not open its files then."""
    done = run("grep", "--device", "cpu", "-f", os.devnull, tree, tree / "missing")
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 1)


# --- Ignoring the case ---


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["error"], ["error\t4"]),
        (["ERROR"], ["ERROR\t4"]),
        (["ERROR", "error", "Error"], ["ERROR\t4"]),
        (["x", "error"], ["error\t4", "x\t2"]),
        (["X-x"], ["X-x\t1"]),
        (["caf\N{LATIN SMALL LETTER E WITH ACUTE}"], ["caf\N{LATIN SMALL LETTER E WITH ACUTE}\t1"]),
        (["errors"], []),
    ],
)
def test_the_case_of_ascii_letters_is_ignored(
    run: Command, tmp_path: Path, words: list[str], lines: list[str]
) -> None:
    file = tmp_path / "file"
    text = "error Error ERROR,eRRoR error_ x-X \N{LATIN SMALL LETTER E WITH ACUTE}"
    cafes = "CAF\N{LATIN SMALL LETTER E WITH ACUTE} caf\N{LATIN CAPITAL LETTER E WITH ACUTE}"
    file.write_text(f"{text} {cafes}", encoding="utf-8")
    options = [option for word in words for option in ("-e", word)]
    for option in ("-i", "--ignore-case"):
        done = run("grep", "--device", "cpu", option, *options, file)
        assert done.stdout.decode() == "".join(f"{file}\t{line}\n" for line in lines)
        assert (done.stderr, done.returncode) == (b"", 0 if lines else 1)


def test_without_i_the_case_matters(run: Command, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("error Error ERROR")
    done = run("grep", "--device", "cpu", "Error", file)
    assert done.stdout == f"{file}\tError\t1\n".encode()


def test_a_list_is_read_ignoring_the_case(run: Command, words: Path, tree: Path) -> None:
    (tree / "capitals").write_text("ALPHA\n")
    done = run("grep", "--device", "cpu", "-if", words, tree / "capitals")
    assert (done.stdout, done.returncode) == (f"{tree}/capitals\talpha\t1\n".encode(), 0)


def test_the_spelling_of_the_command_line_comes_before_that_of_a_list(
    run: Command, words: Path, tree: Path
) -> None:
    done = run(
        "grep", "--device", "cpu", "-i", "-f", words, "-e", "Gamma", "-e", "gaMMA", tree / "a"
    )
    assert (done.stdout, done.returncode) == (f"{tree}/a\tGamma\t2\n".encode(), 0)


# --- Counting lines ---


def test_c_counts_lines_of_each_file(run: Command, words: Path, tree: Path) -> None:
    (tree / "b").write_text("alpha beta alpha\nnone\nbeta\n")
    expected = f"{tree}/a:1\n{tree}/b:2\n{tree}/below/c:10\n{tree}/nothing:0\n".encode()
    for option in ("-c", "--count", "-rc"):
        done = run("grep", "--device", "cpu", option, "-f", words, tree)
        assert (done.stdout, done.stderr, done.returncode) == (expected, b"", 0)


def test_c_of_one_file_prints_no_path(run: Command, tree: Path) -> None:
    for path, found in ((tree / "below" / "c", 10), (tree / "nothing", 0)):
        done = run("grep", "--device", "cpu", "-c", "beta", path)
        assert (done.stdout, done.stderr) == (b"%d\n" % found, b"")
        assert done.returncode == (0 if found else 1)


def test_c_and_i_go_together(run: Command, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "-ci", "BETA", tree / "below" / "c")
    assert (done.stdout, done.stderr, done.returncode) == (b"10\n", b"", 0)


def test_c_reports_what_cannot_be_read(run: Command, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "-c", "beta", tree / "missing", tree / "b")
    assert done.stdout == f"{tree}/b:1\n".encode()
    assert done.stderr == f"gpufs grep: {tree}/missing: No such file or directory\n".encode()
    assert done.returncode == 2


def test_c_of_a_list_without_words_prints_nothing(run: Command, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "-c", "-f", os.devnull, tree)
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 1)


def test_c_as_json_and_summary(run: Command, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "-c", "--json", "--summary", "beta", tree)
    found = json.loads(done.stdout)
    assert found["matches"] == [
        {"path": f"{tree}/a", "lines": 0},
        {"path": f"{tree}/b", "lines": 1},
        {"path": f"{tree}/below/c", "lines": 10},
        {"path": f"{tree}/nothing", "lines": 0},
    ]
    assert (found["lines"], found["files"], found["failures"]) == (11, 4, [])
    assert "binary" not in found
    assert "found     11 lines with a match" in done.stderr.decode().splitlines()
    assert done.returncode == 0

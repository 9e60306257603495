from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpufs
import pytest

from .conftest import TIMEOUT_S, Command, command_line, tree_lines


def on_terminal(arguments: list[bytes], *, interrupt_at: bytes = b"") -> tuple[int, bytes, bytes]:
    """Runs a command whose standard error is a terminal. Returns status, output and its text.

    Sends SIGINT once the terminal has shown `interrupt_at`.
    """
    ours, theirs = pty.openpty()
    environment = dict(os.environ) | {"TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                piece = os.read(ours, 65536)
            except OSError:  # EIO: the other side is closed
                break
            shown += piece
            if interrupt_at and interrupt_at in shown:
                process.send_signal(signal.SIGINT)
                interrupt_at = b""
        assert process.stdout is not None
        output = process.stdout.read()
        process.wait(TIMEOUT_S)
    os.close(ours)
    return process.returncode, output, shown


def test_lines_are_path_word_count(run: Command, words: Path, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "-f", words, tree)
    assert (done.stdout, done.stderr, done.returncode) == (tree_lines(tree), b"", 0)


def test_the_default_device_works(run: Command, words: Path, tree: Path) -> None:
    done = run("grep", "-f", words, tree)
    assert (done.stdout, done.returncode) == (tree_lines(tree), 0)


def test_status_is_1_when_nothing_is_found(run: Command, words: Path, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "-f", words, tree / "nothing")
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 1)


def test_an_empty_dictionary_finds_nothing(run: Command, tmp_path: Path, tree: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    done = run("grep", "--device", "cpu", "-f", empty, tree)
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 1)


def test_an_empty_folder_finds_nothing(run: Command, words: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    done = run("grep", "--device", "cpu", "-f", words, folder)
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 1)


def test_the_dictionary_may_come_from_standard_input(run: Command, words: Path, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "-f", "-", tree, stdin=words.read_bytes())
    assert (done.stdout, done.stderr, done.returncode) == (tree_lines(tree), b"", 0)


def test_what_cannot_be_read_is_one_line_and_the_rest_is_done(
    run: Command, words: Path, tree: Path
) -> None:
    (tree / "dangling").symlink_to("nowhere")
    done = run("grep", "--device", "cpu", "-f", words, tree / "missing", tree, tree / "dangling")
    assert done.stdout == tree_lines(tree)
    assert sorted(done.stderr.decode().splitlines()) == [
        f"gpufs grep: {tree}/dangling: No such file or directory",
        f"gpufs grep: {tree}/missing: No such file or directory",
    ]
    assert done.returncode == 2


def test_files_without_permission_are_reported(run: Command, words: Path, tree: Path) -> None:
    prefix: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may read everything, and setpriv is not here to become somebody else")
        prefix = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
        capabilities = subprocess.run(
            [*prefix, "grep", "CapEff", "/proc/self/status"], capture_output=True, check=False
        )
        if capabilities.returncode != 0 or int(capabilities.stdout.split()[1], 16) != 0:
            pytest.skip("root may read everything, and may not drop its capabilities here")
    (tree / "a").chmod(0)
    (tree / "below").chmod(0)
    try:
        done = run("grep", "--device", "cpu", "-f", words, tree, prefix=prefix)
    finally:
        (tree / "below").chmod(0o755)
    assert done.stdout == b"".join(tree_lines(tree).splitlines(keepends=True)[1:3])
    assert sorted(done.stderr.decode().splitlines()) == [
        f"gpufs grep: {tree}/a: Permission denied",
        f"gpufs grep: {tree}/below: Permission denied",
    ]
    assert done.returncode == 2


@pytest.mark.parametrize(
    "name", [b"caf\xc3\xa9", b"caf\xe9", b"with space", b"line\nend", b"-f", b"tab\there"]
)
def test_paths_are_bytes(run: Command, words: Path, tmp_path: Path, name: bytes) -> None:
    folder = os.fsencode(tmp_path) + b"/folder"
    Path(os.fsdecode(folder)).mkdir()
    path = folder + b"/" + name
    Path(os.fsdecode(path)).write_text("alpha")
    for root in (path, folder):
        done = run("grep", "--device", "cpu", "-f", words, root)
        assert (done.stdout, done.stderr, done.returncode) == (path + b"\talpha\t1\n", b"", 0)
    done = run("grep", "--device", "cpu", "-f", words, path + b"-missing")
    assert done.stderr == b"gpufs grep: " + path + b"-missing: No such file or directory\n"
    done = run("grep", "--device", "cpu", "--json", "-f", words, path)
    assert os.fsencode(json.loads(done.stdout)["matches"][0]["path"]) == path


def test_paths_are_bytes_in_any_locale(run: Command, words: Path, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xc3\xa9\xff"
    Path(os.fsdecode(path)).write_text("alpha")
    done = run(
        "grep",
        "--device",
        "cpu",
        "-f",
        words,
        path,
        env=dict(os.environ) | {"LC_ALL": "C", "PYTHONUTF8": "0"},
    )
    assert (done.stdout, done.stderr, done.returncode) == (path + b"\talpha\t1\n", b"", 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["grep"], "PATH"),
        (["grep", "PATH"], "PATH"),
        (["grep", "-f", "WORDS"], "PATH"),
        (
            ["grep", "-f", "WORDS", "--device", "gpu", "PATH"],
            "'gpu' is not one of auto, cpu and cuda",
        ),
        (["grep", "-f", "WORDS", "--cache", "much", "PATH"], "'much'"),
        (["grep", "-f", "WORDS", "--page", "-1", "PATH"], "'-1'"),
        (["grep", "-f", "WORDS", "--page", "1000", "--device", "cpu", "PATH"], "1000"),
        (["grep", "-f", "WORDS", "--cache", "1KiB", "--device", "cpu", "PATH"], "cache"),
        (["grep", "-f", "WORDS", "--no-such-option", "PATH"], "--no-such-option"),
        (["grep", "-f", "missing", "PATH"], "missing: No such file or directory"),
        (["grep", "-f"], "-f"),
        (["doctor", "more"], "more"),
        (["no-such-command"], "no-such-command"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(
    run: Command, words: Path, tree: Path, arguments: list[str], text: str
) -> None:
    names = {"WORDS": str(words), "PATH": str(tree)}
    done = run(*(names.get(argument, argument) for argument in arguments))
    lines = done.stderr.decode().splitlines()
    assert done.stdout == b""
    assert len(lines) == 1
    assert lines[0].startswith(("gpufs: ", "gpufs grep: "))
    assert text in lines[0]
    assert done.returncode == 2


def test_a_dictionary_with_an_impossible_word_is_one_line(
    run: Command, tmp_path: Path, tree: Path
) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"good\nx\0y\n")
    done = run("grep", "--device", "cpu", "-f", bad, tree)
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"gpufs grep: {bad}: ")
    assert "line 2" in line
    assert (done.stdout, done.returncode) == (b"", 2)


def test_help_is_shown(run: Command) -> None:
    for arguments in (["--help"], ["grep", "-h"], ["doctor", "--help"], ["top", "-h"]):
        done = run(*arguments)
        assert b"Usage: gpufs" in done.stdout
        assert (done.stderr, done.returncode) == (b"", 0)


@pytest.mark.parametrize("command", ["grep", "stat", "cat"])
def test_a_terminal_gets_no_control_characters_of_names(
    tmp_path: Path, words: Path, command: str
) -> None:
    name = tmp_path / "missing\x1b]0;owned\x07\x9b2J\nfake"
    more = ("--no-progress", "-f", words) if command == "grep" else ()
    status, _, shown = on_terminal(command_line(command, "--device", "cpu", *more, name))
    assert status != 0
    assert b"missing\\x1b]0;owned\\x07\\x9b2J\\nfake: No such file or directory\r\n" in shown
    assert not set(shown) & (set(range(32)) - set(b"\r\n"))


def test_the_version_is_shown(run: Command) -> None:
    done = run("--version")
    assert done.stdout.startswith(f"gpufs {gpufs.__version__} (".encode())
    assert (done.stderr, done.returncode) == (b"", 0)


# --- Completion ---


def completed(script: bytes, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    call = (
        'eval "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gpufs; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [
            b"bash",
            b"--norc",
            b"-u",
            b"-c",
            os.fsencode(call),
            b"bash",
            script,
            *map(os.fsencode, words),
        ],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.stderr, done.returncode) == (b"", 0)
    return done.stdout.decode().split()


@pytest.fixture(scope="module")
def bash_script() -> bytes:
    done = subprocess.run(
        command_line("completion", "bash"), capture_output=True, timeout=60, check=False
    )
    assert (done.stderr, done.returncode) == (b"", 0)
    return done.stdout


COMMANDS = [
    "grep",
    "cat",
    "matvec",
    "matmul",
    "search",
    "collage",
    "stat",
    "doctor",
    "bench",
    "top",
    "completion",
]


def test_bash_completes_commands_and_words(bash_script: bytes) -> None:
    assert sorted(completed(bash_script, "gpufs", "")) == sorted(
        [*COMMANDS, "--help", "-h", "--version"]
    )
    for words, offered in (
        (["gr"], ["grep"]),
        (["--v"], ["--version"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["grep", "--device", ""], ["auto", "cpu", "cuda"]),
        (["grep", "--device", "cu"], ["cuda"]),
        (["grep", "--device", "="], ["auto", "cpu", "cuda"]),  # as bash splits --device=
        (["grep", "--device", "=", "a"], ["auto"]),
        (["bench", "--device", "cuda", "small"], ["small_files"]),
        (["bench", "com"], ["compare"]),
        (["collage", "b"], ["build"]),
        (["grep", "-f", ""], []),  # paths, which bash itself completes
        (["grep", "--file", "--"], []),
        (["grep", "READ"], []),
        (["no-such-command", ""], []),
    ):
        assert completed(bash_script, "gpufs", *words) == offered, words


@pytest.mark.parametrize("command", COMMANDS)
def test_bash_completes_the_options_that_the_help_shows(
    run: Command, bash_script: bytes, command: str
) -> None:
    options = set()
    for below in ([], ["build"], ["make"]) if command == "collage" else ([],):
        shown = run(
            command, *below, "--help", env=dict(os.environ) | {"COLUMNS": "200"}
        ).stdout.decode()
        table = shown[shown.index("Options") :]
        options |= {
            word
            for line in table.splitlines()
            for word in line[:50].split()
            if word.startswith("-")
        }
    assert len(options) >= 2
    assert set(completed(bash_script, "gpufs", command, "-")) == options


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_for_other_shells_name_all(run: Command, bash_script: bytes, shell: str) -> None:
    done = run("completion", shell)
    assert (done.stderr, done.returncode) == (b"", 0)
    if shell == "zsh":
        assert done.stdout.endswith(bash_script)
        assert b"bashcompinit" in done.stdout
    else:
        lines = done.stdout.decode().splitlines()
        for line in lines:  # quoted as fish wants it
            assert re.fullmatch(r"complete -c gpufs(?: -\w| [\w-]+| '(?:[^'\\]|\\')*')+", line), (
                line
            )
        assert [
            name for name in COMMANDS if any(f"-a '{name}' -d" in line for line in lines)
        ] == COMMANDS
        for option in ("device -x -a 'auto cpu cuda'", "no-progress", "interval -r"):
            assert any(f"-l {option}" in line for line in lines)
    if (found := shutil.which(shell)) is not None:
        assert (
            subprocess.run([found, "-n"], input=done.stdout, timeout=60, check=False).returncode
            == 0
        )


def test_an_unknown_shell_is_wrong_use(run: Command) -> None:
    done = run("completion", "csh")
    assert done.stderr == b"gpufs: Invalid value: 'csh' is not one of bash, zsh and fish\n"
    assert (done.stdout, done.returncode) == (b"", 2)


def test_json_is_one_object(run: Command, words: Path, tree: Path) -> None:
    (tree / "binary").write_bytes(b"\0" * 100)
    done = run("grep", "--device", "cpu", "--json", "-f", words, tree, tree / "missing")
    found = json.loads(done.stdout)
    assert found["matches"] == [
        {"path": f"{tree}/a", "word": "gamma", "count": 2},
        {"path": f"{tree}/b", "word": "alpha", "count": 2},
        {"path": f"{tree}/b", "word": "beta", "count": 1},
        {"path": f"{tree}/below/c", "word": "beta", "count": 10},
    ]
    assert found["failures"] == [
        {"path": f"{tree}/missing", "errno": 2, "error": "No such file or directory"}
    ]
    assert found["binary"] == [f"{tree}/binary"]
    assert (found["version"], found["device"], found["files"]) == (gpufs.__version__, "cpu", 5)
    assert found["bytes"] == sum(file.stat().st_size for file in tree.rglob("*") if file.is_file())
    assert (found["words_found"], found["occurrences"]) == (3, 15)
    assert found["seconds"] > 0
    assert found["gb_per_s"] == pytest.approx(found["bytes"] / found["seconds"] / 1e9)
    assert set(found["statistics"]) == set(gpufs.Statistics.__annotations__)
    assert set(found) == {
        *(
            "version",
            "device",
            "device_name",
            "direct_path",
            "files",
            "bytes",
            "seconds",
            "gb_per_s",
            "words_found",
        ),
        *("occurrences", "binary", "failures", "statistics", "matches"),
    }
    assert done.stderr == f"gpufs grep: {tree}/missing: No such file or directory\n".encode()
    assert done.returncode == 2


def test_json_without_matches_is_valid(run: Command, words: Path, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "--json", "-f", words, tree / "nothing")
    assert json.loads(done.stdout)["matches"] == []
    assert (done.stderr, done.returncode) == (b"", 1)


def test_a_summary_tells_what_was_done(run: Command, words: Path, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "--summary", "-f", words, tree)
    assert done.stdout == tree_lines(tree)
    text = done.stderr.decode()
    for part in (
        "CPU device",
        "4 files",
        "3 words",
        "15 times",
        "4 lines",
        "GB/s",
        "hits",
        "staged",
        "direct",
    ):
        assert part in text
    assert "\x1b" not in text
    assert done.returncode == 0


def test_cache_and_page_sizes_reach_the_mount(run: Command, words: Path, tree: Path) -> None:
    done = run("grep", "--device", "cpu", "--cache", "64KiB", "--page", "512", "-f", words, tree)
    assert (done.stdout, done.stderr, done.returncode) == (tree_lines(tree), b"", 0)


def test_progress_is_for_terminals_only(words: Path, tree: Path) -> None:
    arguments = command_line("grep", "--device", "cpu", "-f", words, tree)
    status, output, shown = on_terminal(arguments)
    assert (status, output) == (0, tree_lines(tree))
    assert b"files" in shown or b"listing" in shown
    assert shown.rstrip().endswith((b"\x1b[?25h", b"\x1b[2K"))  # the cursor is back, the bar gone
    status, output, shown = on_terminal([*arguments, b"--no-progress"])
    assert (status, output, shown) == (0, tree_lines(tree), b"")


def endless(folder: Path) -> list[bytes]:
    """A command that searches for a long time."""
    file = folder / "much"
    with file.open("wb") as out:
        out.truncate(64 << 20)  # a hole: one file for all
        out.seek(0)
        out.write(b"alpha beta gamma delta\n" * 1_000_000)
    names = []
    for number in range(2000):
        link = folder / f"much{number}"
        link.hardlink_to(file)
        names.append(link)
    words = folder / "alpha"
    words.write_text("alpha\nbeta\n")
    return command_line("grep", "--device", "cpu", "--cache", "1MiB", "-f", words, *names)


def test_an_interrupt_ends_it_at_once_with_status_130(tmp_path: Path) -> None:
    status, output, shown = on_terminal(endless(tmp_path), interrupt_at=b"of 2,000 files")
    assert (status, output) == (130, b"")
    assert b"Traceback" not in shown
    assert b"\x1b[?25h" in shown  # the cursor is back


def test_an_interrupt_without_a_terminal_is_quiet(tmp_path: Path) -> None:
    with subprocess.Popen(
        endless(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while (
            len(list(Path(f"/proc/{process.pid}/task").iterdir())) < 3
            and time.monotonic() < deadline
        ):
            time.sleep(0.05)  # the mount's threads are not there yet
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert (output, errors, process.returncode) == (b"", b"", 130)


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("".join(f"word{number:04}\n" for number in range(5000)))
    (tmp_path / "files").mkdir()
    for number in range(20):
        shutil.copy(words, tmp_path / "files" / str(number))
    arguments = command_line("grep", "--device", "cpu", "-f", words, tmp_path / "files")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith(b"\tword0000\t1\n")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) == -signal.SIGPIPE


@pytest.mark.parametrize(
    "arguments", [["grep"], ["grep", "--json"], ["doctor"], ["doctor", "--json"], ["--version"]]
)
def test_output_that_cannot_be_written_is_an_error(
    words: Path, tree: Path, arguments: list[str]
) -> None:
    if arguments[0] == "grep":
        arguments = [*arguments, "--device", "cpu", "-f", str(words), str(tree)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command_line(*arguments), stdout=full, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert done.stderr == b"gpufs: standard output: No space left on device\n"
    assert done.returncode == 2


def test_a_closed_standard_output_is_an_error(words: Path, tree: Path) -> None:
    arguments = command_line("grep", "--device", "cpu", "-f", words, tree)
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *arguments], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"gpufs: standard output")


def test_the_installed_command_is_the_module(run: Command) -> None:
    installed = Path(sys.executable).with_name("gpufs")
    if not installed.exists():
        pytest.skip("the package is not installed, only importable")
    done = subprocess.run([installed, "--version"], capture_output=True, timeout=60, check=False)
    assert done.stdout == run("--version").stdout

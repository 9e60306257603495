"""Shell completion scripts for the command line: the output of ``gpufs completion``.

They are made from the commands and their options, and contain all of them, so a completion does not
start Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

# an object of click's classes or of typer's own, depending on typer's version
Made: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command."""

    names: list[str]  # including their dashes
    takes_value: bool
    choices: list[str]  # possible values; empty: any value, such as a path
    help: str


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its options, and the words that its arguments may be, apart from paths."""

    name: str
    help: str
    options: list[Option]
    words: list[str]


def describe(group: Made, words: Mapping[str, Sequence[str]]) -> tuple[list[Option], list[Command]]:
    """Returns the global options, and the commands.

    Args:
        group: the object that typer makes of an application.
        words: possible arguments, by command.
    """
    commands = [
        Command(
            name,
            command.get_short_help_str(80),
            _options_of_all(command),
            list(words.get(name, ())),
        )
        for name, command in group.commands.items()
        if not command.hidden
    ]
    return _options(group), commands


def _options_of_all(command: Made) -> list[Option]:
    """Returns the options of a command and of its subcommands, without duplicates."""
    options = _options(command)
    for below in getattr(command, "commands", {}).values():
        known = {name for option in options for name in option.names}
        options += [option for option in _options(below) if known.isdisjoint(option.names)]
    return options


def _options(command: Made) -> list[Option]:
    options = [
        Option(
            [*parameter.opts, *parameter.secondary_opts],
            not parameter.is_flag,
            parameter.metavar.split("|") if "|" in (parameter.metavar or "") else [],
            parameter.help or "",
        )
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.hidden
    ]
    if all("--help" not in option.names for option in options):
        options.append(Option(["--help", "-h"], False, [], "Show this message and exit."))
    return options


def bash(options: list[Option], commands: list[Command]) -> str:
    """Returns a script for bash. If the script offers nothing, bash completes paths."""
    names = [command.name for command in commands]
    lines = [
        "_gpufs() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" '
        'command="" offered="" index',
        "  # Of --option=value, the sign is a word of its own.",
        '  if [ "$word" = "=" ]; then',
        '    word=""',
        '  elif [ "$before" = "=" ]; then',
        '    before="${COMP_WORDS[COMP_CWORD-2]}"',
        "  fi",
        "  for ((index = 1; index < COMP_CWORD; index++)); do",
        '    case "${COMP_WORDS[index]}" in',
        "      -*) ;;",
        '      *) command="${COMP_WORDS[index]}"; break ;;',
        "    esac",
        "  done",
        "  COMPREPLY=()",
        '  case "$command $before" in',
    ]
    for command in commands:
        for option in command.options:
            if option.takes_value:
                patterns = " | ".join(f'"{command.name} {name}"' for name in option.names)
                lines.append(f'    {patterns}) offered="{" ".join(option.choices)}" ;;')
    lines += [
        "    *)",
        '      case "$command $word" in',
        f'        " "*) offered="{_all(options, names)}" ;;',
    ]
    for command in commands:
        lines.append(f'        "{command.name} -"*) offered="{_all(command.options, [])}" ;;')
        if command.words:
            lines.append(f'        "{command.name} "*) offered="{" ".join(command.words)}" ;;')
    lines += [
        "      esac",
        "      ;;",
        "  esac",
        '  [ -z "$offered" ] || COMPREPLY=($(compgen -W "$offered" -- "$word"))',
        "}",
        "complete -o bashdefault -o default -F _gpufs gpufs",
    ]
    return "\n".join(lines) + "\n"


def _all(options: list[Option], words: list[str]) -> str:
    return " ".join([*words, *(name for option in options for name in option.names)])


def zsh(options: list[Option], commands: list[Command]) -> str:
    """Returns a script for zsh: that of bash, which zsh can run."""
    return (
        "(( $+functions[compdef] )) || { autoload -U compinit && compinit }\n"
        "autoload -U +X bashcompinit && bashcompinit\n" + bash(options, commands)
    )


def fish(options: list[Option], commands: list[Command]) -> str:
    """Returns a script for fish."""
    lines = [_fish_option(option, "__fish_use_subcommand") for option in options]
    for command in commands:
        seen = f"__fish_seen_subcommand_from {command.name}"
        name, text = _fish_quote(command.name), _fish_quote(command.help)
        lines.append(f"complete -c gpufs -f -n __fish_use_subcommand -a {name} -d {text}")
        if command.words:
            lines.append(f"complete -c gpufs -n '{seen}' -a {_fish_quote(' '.join(command.words))}")
        lines += [_fish_option(option, seen) for option in command.options]
    return "\n".join(lines) + "\n"


def _fish_option(option: Option, condition: str) -> str:
    names = (
        f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
    )
    value = (
        f" -x -a {_fish_quote(' '.join(option.choices))}"
        if option.choices
        else " -r"
        if option.takes_value
        else ""
    )
    return (
        f"complete -c gpufs -n '{condition}' {' '.join(names)}{value} -d {_fish_quote(option.help)}"
    )


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: Final[dict[str, Callable[[list[Option], list[Command]], str]]] = {
    "bash": bash,
    "zsh": zsh,
    "fish": fish,
}

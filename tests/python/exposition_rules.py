"""The rules of the text format 0.0.4, in which metrics are served."""

from __future__ import annotations

import math
import re

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def validate(text: str) -> Series:
    """Checks every rule of the text format 0.0.4 by itself; returns all series. No timestamps."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    finished: set[str] = set()
    current = ""
    series: Series = {}
    for line in text[:-1].split("\n"):
        if line.startswith("# "):
            _, word, name, rest = line.split(" ", 3)
            assert NAME.fullmatch(name)
            if word == "HELP":
                assert name not in helped
                assert re.fullmatch(r"(?:[^\\]|\\\\|\\n)*", rest)
                helped.add(name)
            else:
                assert word == "TYPE"
                assert name not in kinds
                assert rest in ("counter", "gauge", "histogram")
                kinds[name] = rest
            family = name
        else:
            name, labels, value = split_sample(line)
            family = re.sub(r"_(bucket|count|sum)$", "", name) if name not in kinds else name
            assert family in kinds, "a TYPE comes before the first sample"
            assert family in helped
            key = (name, tuple(sorted(labels)))
            assert key not in series, "two lines with the same name and labels"
            series[key] = value
            if kinds[family] == "counter":
                assert name.endswith("_total")
            if kinds[family] != "gauge":
                assert math.isfinite(value)
                assert value >= 0
        if family != current:
            assert family not in finished, "the lines of a metric are one group"
            finished.add(current)
            current = family
    check_histograms(series, [name for name, kind in kinds.items() if kind == "histogram"])
    return series


def split_sample(line: str) -> tuple[str, list[tuple[str, str]], float]:
    """Reads a sample letter by letter."""
    match = NAME.match(line)
    assert match is not None
    at = match.end()
    labels: list[tuple[str, str]] = []
    if line[at] == "{":
        at += 1
        while line[at] != "}":
            label = LABEL_NAME.match(line, at)
            assert label is not None
            at = label.end()
            assert line[at : at + 2] == '="'
            at += 2
            value = ""
            while line[at] != '"':
                if line[at] == "\\":
                    value += {"\\": "\\", '"': '"', "n": "\n"}[line[at + 1]]
                    at += 2
                else:
                    value += line[at]
                    at += 1
            at += 1
            labels.append((label[0], value))
            if line[at] == ",":
                at += 1
                assert line[at] != "}"
        at += 1
    assert len({name for name, _ in labels}) == len(labels)
    assert line[at] == " "
    assert re.fullmatch(r"[0-9]+(\.[0-9]+)?(e-?[0-9]+)?", line[at + 1 :])
    return match[0], labels, float(line[at + 1 :])


def check_histograms(series: Series, names: list[str]) -> None:
    for name in names:
        found: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
        for (sample, labels), value in series.items():
            assert sample != f"{name}_sum", "not known"
            if sample == f"{name}_bucket":
                bound = float(dict(labels)["le"])
                found.setdefault(tuple(label for label in labels if label[0] != "le"), []).append(
                    (bound, value)
                )
        assert len(found) == sum(sample == f"{name}_count" for sample, _ in series)
        for labels, buckets in found.items():
            assert buckets == sorted(buckets), "bounds grow, and cumulative counts do not shrink"
            assert [value for _, value in buckets] == sorted(value for _, value in buckets)
            assert math.isinf(buckets[-1][0])
            assert buckets[-1][1] == series[f"{name}_count", labels]

"""The page of all results, as Markdown: one file that needs no other, to send to the project."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hvdgan.diagnostics.speed import report

Facts = Mapping[str, Any]


def make(facts: Facts) -> str:
    """Make the page.

    Args:
        facts: contents of result.json.
    """
    return "\n".join(_lines(facts)) + "\n"


def sentence(facts: Facts) -> str:
    """Say in one sentence how the checks have ended."""
    checks = [check for part in facts["parts"] for check in part["checks"]]
    counts = {verdict: sum(check["verdict"] == verdict for check in checks) for verdict in ("failed", "not run")}
    ran = len(checks) - counts["not run"]
    words = f"{counts['failed']} of {ran} checks failed" if counts["failed"] else f"All {ran} checks passed"
    words += f"; {counts['not run']} did not run" if counts["not run"] else ""
    words += "; this ran on the CPU, and says nothing about GPUs" if facts["settings"]["cpu"] else ""
    return words if facts["complete"] else f"{words}; the rest has not run"


def _lines(facts: Facts) -> Iterator[str]:
    parts = facts["parts"]
    checks = [(part, check) for part in parts for check in part["checks"]]
    yield from ["# hvdgan on GPUs", "", f"{sentence(facts)}.", ""]
    yield from _table(["what", "value"], _machine(facts))
    for part, check in checks:
        if check["verdict"] == "failed":
            yield from [f"## Failed: {part['title']}: {check['name']}", ""]
            yield from _block([check["command"], *check["errors"]])
    left_out = [(part["title"], check) for part, check in checks if check["verdict"] == "not run"]
    if left_out:
        lines = [f"- {title}: {check['name']}: {check['found']}" for title, check in left_out]
        yield from ["## What did not run", "", *lines, ""]
    if goals := [_goal(check) for _, check in checks if check.get("goal") and "reached" in check["goal"]]:
        yield from ["## Goals", "", "Ratios of images/s. A goal that is missed is no failure of a check.", ""]
        yield from _table(["what", "ratio", "at least", "goal"], goals)
    for part in parts:
        yield from [f"## {part['title']}", ""]
        yield from _table(["check", "verdict", "found", "s"], [_row(check) for check in part["checks"]])
    for _, check in checks:
        if measured := check["figures"].get("bench"):
            yield from [f"## hvdgan.bench in {check['name']}", ""]
            yield from _block("\n\n".join(map(str, report.tables(measured))).split("\n"))
    rows = [[row["check"], row["verdict"], row["found"], row["hint"]] for row in facts["doctor"]["rows"]]
    yield from ["## Installation", "", *_table(["check", "verdict", "found", "hint"], rows)]
    yield from _block([facts["command"], *facts["machine"]["links"]])


def _machine(facts: Facts) -> list[Sequence[str]]:
    machine, settings = facts["machine"], facts["settings"]
    gpus = [f"{gpu['name']}, {gpu['memory.total']}" for gpu in machine["gpus"]]
    named = "; ".join(f"{gpus.count(gpu)} x {gpu}" for gpu in dict.fromkeys(gpus))
    return [
        ("begun", machine["when"][:16].replace("T", " ")),
        ("took", f"{facts['seconds'] / 60:.0f} min"),
        ("host", machine["host"] + (f" of {machine['hosts']}" if machine["hosts"] > 1 else "")),
        ("GPUs of this host", named or "none used"),
        ("driver", machine["gpus"][0]["driver_version"] if machine["gpus"] else ""),
        ("ranks", ", ".join(map(str, settings["ranks"]))),
        ("processor", f"{machine['cpu']}, {machine['cores']} cores"),
        ("system", machine["system"]),
        ("code", machine["code"]),
        *machine["versions"].items(),
    ]


def _row(check: Facts) -> list[str]:
    return [check["name"], check["verdict"], check["found"] or " ".join(check["errors"][:1]), f"{check['seconds']:.0f}"]


def _goal(check: Facts) -> list[str]:
    goal = check["goal"]
    verdict = "reached" if goal["reached"] else "missed"
    return [check["name"], f"{goal['ratio']:.3f}", f"{goal['bound']:.2f}", verdict]


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """A table in Markdown; what a cell would break it with is left out or escaped."""
    for cells in (heads, ["---"] * len(heads), *rows):
        yield "| " + " | ".join(str(cell).replace("|", r"\|").replace("\n", " ") for cell in cells) + " |"
    yield ""


def _block(lines: Sequence[str]) -> list[str]:
    """Lines as they are."""
    return [*(f"    {line}" for text in lines for line in text.splitlines() or [""]), ""]

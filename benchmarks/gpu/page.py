"""The page of all results: one file that needs no other, to send to the project."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdgan.diagnostics.speed import report
from hvdgan.pages import bench_page
from hvdgan.pages.template import fill

Facts = Mapping[str, Any]
_HERE = Path(__file__).parent


def make(facts: Facts) -> str:
    """Make the page.

    Args:
        facts: contents of result.json.
    """
    parts = facts["parts"]
    checks = [(part, check) for part in parts for check in part["checks"]]
    failed = [(part, check) for part, check in checks if check["verdict"] == "failed"]
    not_run = [(part, check) for part, check in checks if check["verdict"] == "not run"]
    return fill(
        "gpu.html.j2",
        templates=_HERE,
        state="failed" if failed else "finished" if facts["complete"] else "stopped",
        sentence=sentence(facts),
        failed=[(f"{part['title']}: {check['name']}", check["errors"], check["command"]) for part, check in failed],
        not_run=[f"{part['title']}: {check['name']}: {check['found']}" for part, check in not_run],
        facts=_machine(facts),
        links=facts["machine"]["links"],
        goals=[_goal(check) for _, check in checks if check.get("goal") and "reached" in check["goal"]],
        installation=[[row["check"], row["verdict"], row["found"], row["hint"]] for row in facts["doctor"]["rows"]],
        parts=[(part["name"], part["title"], [_row(check) for check in part["checks"]]) for part in parts],
        benches=[bench for _, check in checks if (bench := _bench(check))],
        command=facts["command"],
    )


def sentence(facts: Facts) -> str:
    """Say in one sentence how the checks have ended."""
    checks = [check for part in facts["parts"] for check in part["checks"]]
    counts = {verdict: sum(check["verdict"] == verdict for check in checks) for verdict in ("failed", "not run")}
    ran = len(checks) - counts["not run"]
    words = f"{counts['failed']} of {ran} checks failed" if counts["failed"] else f"All {ran} checks passed"
    words += f"; {counts['not run']} did not run" if counts["not run"] else ""
    words += "; this ran on the CPU, and says nothing about GPUs" if facts["settings"]["cpu"] else ""
    return words if facts["complete"] else f"{words}; the rest has not run"


def _machine(facts: Facts) -> list[tuple[str, str]]:
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


def _bench(check: Facts) -> tuple[str, Sequence[Any], Sequence[Any]] | None:
    """Return the title, the pictures and the tables of a measurement of hvdgan.bench; None for other checks."""
    measured = check["figures"].get("bench")
    if measured is None:
        return None
    prefix = re.sub(r"\W+", "-", check["name"])
    pictures = bench_page.pictures(measured, report.NAMES, prefix=f"{prefix}-")
    return f"hvdgan.bench in {check['name']}", pictures, report.tables(measured)

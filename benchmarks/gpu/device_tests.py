"""Runs the tests that need a GPU (marker gpu), or with --cpu the same tests on the CPU."""

import sys
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path

from gpu.check import Check
from gpu.setting import GROWING, ROOT, Setting

_LONGEST = 400
_MOST_LINES = 12


def checks(setting: Setting) -> Iterator[Check]:
    """Run pytest, and yield a check for each test."""
    report = setting.out / "tests.xml"
    words = ["-m", "not gpu" if setting.cpu else "gpu", "-p", "no:cacheprovider", f"--junitxml={report}", "-v"]
    words += ["-o", "addopts=--strict-markers --strict-config", str(ROOT / "tests" / "gpu")]
    done = setting.run("tests/pytest", [sys.executable, "-m", "pytest", *words], **GROWING)
    found = list(read(report)) if report.exists() else []
    yield from found
    # Exit code 1: some tests failed, which the checks above say.
    if not found or done.code not in (0, 1):
        yield Check(
            name="pytest",
            verdict="failed",
            errors=done.errors or ("no test was found",),
            command=done.words,
            seconds=done.seconds,
        )


def read(report: Path) -> Iterator[Check]:
    """Read the report of pytest.

    Args:
        report: file that --junitxml has written.
    """
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        skipped = case.find("skipped")
        lines = [] if bad is None else [line for line in (bad.text or "").splitlines() if line.startswith("E ")]
        if bad is not None:
            lines = [*lines[:_MOST_LINES], bad.get("message", "")] if lines else [bad.get("message", "")]
        yield Check(
            name=case.get("name", ""),
            verdict="failed" if bad is not None else "not run" if skipped is not None else "passed",
            found="" if skipped is None else skipped.get("message", ""),
            errors=tuple(line[:_LONGEST] for line in lines),
            seconds=float(case.get("time", 0)),
        )

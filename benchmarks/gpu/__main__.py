"""Runs all parts one after another; writes a line of results.jsonl and page.md after each check.

benchmarks/gpu.sh starts it.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu.parts import PARTS
from gpu.setting import ROOT, Check, Setting, TimeIsUp, in_slurm
from hvdgan.launching.programs import git_state, output_of
from hvdgan.launching.starters import count_gpus

RECIPES = sorted(path.stem for path in (ROOT / "hvdgan" / "recipes").glob("[a-z]*.py"))
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
NEEDED = ("build", "arithmetic")
"""parts without which the later ones are not worth their time"""


def main(words: Sequence[str]) -> int:
    """Check and measure; returns 0 if all that ran passed, 1 if something failed."""
    parser = arguments()
    given = parser.parse_args(words)
    for flag, known in (("only", PARTS), ("precision", PRECISIONS), ("recipe", RECIPES)):
        for word in getattr(given, flag):
            if word not in known:
                parser.error(f"--{flag} {word}: expected some of {', '.join(known)}")
    if given.out.exists():
        parser.error(f"--out {given.out}: exists already; name a new folder")
    here = 2 if given.cpu else count_gpus()
    if not here:
        parser.error("there is no GPU here (nvidia-smi names none, or CUDA_VISIBLE_DEVICES hides it); --cpu tests it")
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) if in_slurm() else 1
    setting = Setting(
        out=given.out.absolute(),
        cpu=given.cpu,
        quick=given.quick,
        here=max(1, here // nodes) if given.cpu else here,
        nodes=nodes,
        recipes=given.recipe,
        precisions=given.precision,
        timeout=given.timeout,
        deadline=time.monotonic() + given.time_budget,
    )
    setting.out.mkdir(parents=True)
    # The end of a Slurm job is a SIGTERM: the running command is ended with its ranks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    return run(setting, [name for name in PARTS if name in given.only])


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line; the comment in benchmarks/gpu.sh is its help."""
    parser = argparse.ArgumentParser("benchmarks/gpu.sh", usage="see --help", add_help=False, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path(time.strftime("gpu-%Y%m%d-%H%M%S")))
    for name, default in (("only", PARTS), ("recipe", RECIPES), ("precision", PRECISIONS)):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=list(default))
    parser.add_argument("--timeout", type=float, default=3600.0)
    parser.add_argument("--time-budget", type=float, default=math.inf)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--quick", action="store_true")
    return parser


def run(setting: Setting, parts: Sequence[str]) -> int:
    """Run the parts; what is there is written after each check."""
    begin, rows = time.monotonic(), []
    facts = machine()
    with (setting.out / "results.jsonl").open("w", encoding="utf-8") as results:
        print(json.dumps({"machine": facts, "parts": parts}), file=results, flush=True)
        for part in parts:
            for check in checks(part, setting):
                why = check.errors[-1] if check.errors else check.found
                print(f"{part}: {check.name}: {check.verdict} ({why}), {check.seconds:.0f} s", flush=True)
                rows.append((part, check))
                print(json.dumps({"part": part, **check._asdict()}), file=results, flush=True)
                minutes = (time.monotonic() - begin) / 60
                (setting.out / "page.md").write_text(page(facts, rows, minutes, setting), encoding="utf-8")
            failed = [name for name, check in rows if check.verdict == "failed"]
            if part in NEEDED and part in failed:
                print(f"{part} failed: the later parts are not run", flush=True)
                break
    print(f"{sentence(rows)}: {setting.out / 'page.md'}", flush=True)
    return int(bool(failed))


def checks(part: str, setting: Setting) -> Iterator[Check]:
    """Yield the checks of a part; an error of the part itself is a failed check, and the time's end one not run."""
    try:
        yield from PARTS[part](setting)
    except TimeIsUp as up:
        found = f"the time budget was spent; --only {part} runs it"
        yield Check(name=f"from {up} on", verdict="not run", found=found)
    except Exception as error:  # the later parts must run
        lines = [line for text in traceback.format_exception(error)[-3:] for line in text.splitlines()]
        yield Check(name="the part itself", verdict="failed", errors=lines)


def machine() -> dict[str, Any]:
    """Describe the machine; the figures of the part build name its software."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]
    return {
        "begun": time.strftime("%Y-%m-%d %H:%M"),
        "host": os.uname().nodename,
        "GPUs": "; ".join(output_of(query).splitlines()),
        "code": git_state(ROOT) or "no git repository",
        "links": output_of(["nvidia-smi", "topo", "-m"]),
    }


def sentence(rows: Sequence[tuple[str, Check]]) -> str:
    """Say in one sentence how the checks have ended."""
    verdicts = [check.verdict for _, check in rows]
    failed, left_out = verdicts.count("failed"), verdicts.count("not run")
    ran = len(verdicts) - left_out
    return f"{failed} of {ran} checks failed" + (f", {left_out} did not run" if left_out else "")


def page(facts: dict[str, Any], rows: Sequence[tuple[str, Check]], minutes: float, setting: Setting) -> str:
    """Make the page of all results, as Markdown: one file that needs no other, to send to the project."""
    lines = ["# hvdgan on GPUs", "", f"{sentence(rows)}, after {minutes:.0f} minutes."]
    lines += ["This ran on the CPU, and says nothing about GPUs."] if setting.cpu else []
    lines += ["", *(f"- {name}: {value}" for name, value in facts.items() if name != "links")]
    lines += ["", *table(["part", "check", "verdict", "found", "s"])]
    for part, check in rows:
        lines += table([part, check.name, check.verdict, check.found, f"{check.seconds:.0f}"])[:1]
    for part, check in rows:
        if block := [*([check.command, *check.errors] if check.verdict == "failed" else []), *check.table]:
            lines += ["", f"## {part}: {check.name}", "", *(f"    {line}" for line in block)]
    return "\n".join([*lines, "", *(f"    {line}" for line in facts["links"].expandtabs(6).splitlines())]) + "\n"


def table(cells: Sequence[str]) -> list[str]:
    """Return a row of a table in Markdown, and the line that makes it the head of one."""
    row = " | ".join(cell.replace("|", r"\|").replace("\n", " ") for cell in cells)
    return [f"| {row} |", "|---" * len(cells) + "|"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

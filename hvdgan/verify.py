"""The command hvdgan verify: proves hvdgan's promises for a GAN and its data, by short runs on this machine's CPUs."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from hvdgan.checkpoints.contents import difference
from hvdgan.checkpoints.files import newest_first, step_of
from hvdgan.cli.app import command
from hvdgan.diagnostics.agreement import are_alike, compare_samples, compare_steps
from hvdgan.diagnostics.children import complaint, started
from hvdgan.diagnostics.table import Row, table, worst
from hvdgan.errors import RunError, UserError
from hvdgan.files import outputs
from hvdgan.launching.launched import unlaunched
from hvdgan.launching.starters import built_with
from hvdgan.settings.types import Positive
from hvdgan.training.command import check_flags

_HELP = """Prove hvdgan's promises for your own GAN and data, by five short runs on this machine's CPUs.

  hvdgan verify --recipe my_gan:MyGAN --data photos --image-size 64
  hvdgan verify runs/photos

All other flags are those of hvdgan train. A run folder has the settings of its run. Each stage takes the few steps in
which all of its updates run, from new weights. The exit code is 1 if a promise does not hold."""
Facts = dict[str, Any]
_TRIAL = "hvdgan.diagnostics.trial"
_CLAIMS = {
    "ownership": "an update changed the networks that it owns and no bit of anything else",
    "ranks": "two ranks computed the weights of one up to rounding (float32, SGD)",
    "resume": "a stopped and resumed run had the bits of an uninterrupted one",
    "samples": "samples did not depend on the number of ranks",
    "exports": "exported networks computed the same",
    "non-finite": "no update applied a gradient of data that are not finite",
}
"""what each check shows"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """How to verify; the fields are the flags."""

    json: Path = Path("verify.json")
    """file for the results as JSON, also an existing one"""
    timeout: Positive = 600.0
    """time limit of each short run (seconds)"""


@command(name="verify", help_text=_HELP)
def main(
    *training: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    request: Annotated[Request, Parameter(name="*")] = Request(),
) -> int:
    outputs.check_new(request.json, overwrite=True, flag="--json")
    words = [*training]
    if words and not words[0].startswith("-"):
        if not (settings := Path(words[0]) / "config.json").is_file():
            raise UserError(f"{words[0]}: no run folder; expected one with a config.json, or flags of hvdgan.train")
        words[:1] = ["--config", str(settings)]
    check_flags(words)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hvdgan-verify-", ignore_cleanup_errors=True) as folder:
        rows, facts = _Proof(Path(folder), request.timeout).rows(words)
    sentence, verdict = _sentence(rows, facts), worst(rows)
    print(table(("check", "verdict", "found"), [(row.check, row.verdict, row.found) for row in rows]))
    print(*(f"{row.check}: {row.hint}" for row in rows if row.hint), f"\n{sentence}", sep="\n", flush=True)
    results: dict[str, Any] = {"verdict": verdict, "sentence": sentence, "when": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    results |= {"seconds": round(time.monotonic() - begin, 1), "rows": [dataclasses.asdict(row) for row in rows]}
    results |= {name: facts[name] for name in ("settings", "versions", "code")}
    outputs.write_json(request.json, results)
    return int(verdict == "fail")


class _Proof:
    """Short runs with their files in a folder, each with a time limit (seconds)."""

    def __init__(self, folder: Path, timeout: float) -> None:
        self._folder, self._timeout = folder, timeout

    def rows(self, words: Sequence[str]) -> tuple[list[Row], Facts]:
        """The result of each check, and the facts about the GAN; raises what the first run raises."""
        trial = [_TRIAL, str(self._folder), *words]
        self._run("one rank", *trial)
        facts: Facts = json.loads((self._folder / "1.json").read_text())
        rows = [_ownership(facts), _non_finite(facts)]
        try:
            built_with()
            rows += self._rows("ranks", lambda: self._of_two(trial, facts))
        except UserError as error:
            rows += [Row(check, "not checked", "warn", str(error)) for check in ("ranks", "samples")]
        rows += self._rows("resume", lambda: self._of_resumed(facts["train"]))
        rows += self._rows("exports", lambda: self._of_exports(facts["settings"]["recipe"]))
        return sorted(rows, key=lambda row: [*_CLAIMS].index(row.check)), facts

    def _rows(self, check: str, work: Callable[[], list[Row]]) -> list[Row]:
        """The rows of a check, or one with what a run that has failed has printed."""
        try:
            return work()
        except RunError as error:
            return [Row(check, str(error), "fail")]

    def _run(self, what: str, module: str, *words: str) -> None:
        """Start a program and wait for its end; raises what it has printed if it fails."""
        print(f"running {what}", file=sys.stderr, flush=True)
        # Not the hosts of a Slurm job, nor GPUs, on which not every sum has the same order each time.
        variables = {name: value for name, value in unlaunched().items() if not name.startswith("SLURM_")}
        variables["CUDA_VISIBLE_DEVICES"] = ""
        said = self._folder / f"{what}.txt"
        with started([sys.executable, "-m", module, *words], said, variables) as process:
            try:
                code = process.wait(self._timeout)
            except subprocess.TimeoutExpired:
                raise RunError(f"{what}: not done after {self._timeout:g} s; --timeout gives more") from None
        if code:
            raise (UserError if code == UserError.exit_code else RunError)(f"{what}: {complaint(said, code)}")

    def _of_two(self, trial: Sequence[str], facts: Facts) -> list[Row]:
        self._run("two ranks", "hvdgan.launch", "-np", "2", "-m", *trial)
        largest, first, cause = compare_steps(self._folder, facts)
        unlike = compare_samples(self._folder)
        within = f"{len(facts['steps'])} steps; weights differ by at most {largest:.0e} of their norm"
        found = f"{facts['settings']['global_batch_size']} samples"
        wrong = f"{', '.join(unlike)} of two ranks are not those of one" if unlike else ""
        hint = "let sample() and draw() depend on the batch and its random numbers alone"
        return [_row("ranks", within, first, cause), _row("samples", found, wrong, hint)]

    def _of_resumed(self, train: Sequence[str]) -> list[Row]:
        """Train to the end, remove the later checkpoints, and let the same command resume."""
        self._run("an uninterrupted run", "hvdgan.train", *train)
        last, *others = newest_first(self._folder / "run" / "checkpoints")
        whole = last.rename(self._folder / last.name)
        for path in others[:-1]:
            path.unlink()
        self._run("a resumed run", "hvdgan.train", *train)
        found = difference(whole, last)
        wrong = [*(each["name"] for each in found["changed"] + found["unlike"]), *found["only_in_first"]]
        what = f"step {step_of(last)}: {wrong[0]} differs, and {len(wrong) - 1} more" if wrong else ""
        hint = "the recipe keeps something that no checkpoint holds; keep it in a network or in state()"
        return [_row("resume", f"step {step_of(last)}: {found['identical']} tensors have equal bits", what, hint)]

    def _of_exports(self, recipe: str) -> list[Row]:
        path = self._folder / "exported.npz"
        self._run("exports", "hvdgan.inference.exported", str(self._folder / "run"), recipe, str(path))
        with np.load(path) as found:
            names = sorted({name.rpartition("/")[0] for name in found})
            unlike = [name for name in names if not are_alike(found[f"{name}/0"], found[f"{name}/1"])]
        wrong = f"{', '.join(unlike)} differ from what hvdgan sample draws" if unlike else ""
        return [_row("exports", f"{', '.join(names)} of SavedModels", wrong)]


def _row(check: str, found: str, wrong: str, hint: str = "") -> Row:
    return Row(check, wrong, "fail", hint) if wrong else Row(check, found)


def _ownership(facts: Facts) -> Row:
    wrong, found = list[str](), list[str]()
    for each in facts["updates"]:
        wrong += [f"update {each['update']} changes {name}, which it does not own" for name in each["strays"]]
        wrong += [f"update {each['update']} changes no weight"] if each["is_idle"] else []
        found.append(f"{each['update']} {each['changed']}")
    hint = "let a loss change nothing itself, and let its gradient reach what its update owns"
    return _row("ownership", f"tensors changed by each update: {', '.join(found)}", "".join(wrong[:1]), hint)


def _non_finite(facts: Facts) -> Row:
    taken = [(each["update"], name) for each in facts["updates"] for name in each["taken"]]
    wrong = "".join(f"update {update} of a sample of NaN changes {name}" for update, name in taken[:1])
    hint = "the loss hides numbers that are not finite; let it become NaN, too"
    return _row("non-finite", "a sample of NaN is refused, and nothing has changed", wrong, hint)


def _sentence(rows: Sequence[Row], facts: Facts) -> str:
    """What holds, for the appendix of a paper, and what does not."""
    settings, versions = facts["settings"], facts["versions"]
    of = f"{settings['recipe']} on {settings['data']}, for {len(facts['steps'])} steps on CPUs"
    by = f"hvdgan {versions['hvdgan']} (TensorFlow {versions['tensorflow']}, Keras {versions['keras']})"
    words = {"ok": "that", "fail": "not that"}
    shown = [f"{words[row.verdict]} {_CLAIMS[row.check]}" for row in rows if row.verdict in words]
    return f"We checked with {by}, for {of}: {'; '.join(shown)}."


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, which ends the runs that it has started
    sys.exit(main())

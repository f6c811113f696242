"""The command hvdgan verify: proves hvdgan's promises for a GAN and its data, by short runs on this machine's CPUs."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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

  python -m hvdgan.verify --recipe my_gan:MyGAN --data photos --image-size 64
  python -m hvdgan.verify runs/photos

All other flags are those of hvdgan.train; a run folder stands for the settings of its run. Each stage takes the few
steps in which all of its updates run, from new weights. The exit code is 1 if a promise does not hold."""
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

    def rows(self, words: Sequence[str]) -> tuple[list[Row], dict[str, Any]]:
        """The result of each check, and the facts about the GAN; raises what the first run raises."""
        self._run("one rank", _TRIAL, str(self._folder), *words)
        facts: dict[str, Any] = json.loads((self._folder / "1.json").read_text())
        rows = [_ownership(facts), _non_finite(facts)]
        try:
            built_with()
        except UserError as error:
            rows += [Row(check, "not checked", "warn", str(error)) for check in ("ranks", "samples")]
        else:
            launch = ["hvdgan.launch", "-np", "2", "-m", _TRIAL, str(self._folder), *words]
            rows += self._checked("ranks", lambda: self._run("two ranks", *launch), lambda: self._of_two(facts))
        rows += self._checked("resume", lambda: self._stop_and_resume(facts), self._of_resumed)
        arguments = str(self._folder / "run"), facts["settings"]["recipe"], str(self._folder / "exported.npz")
        export = lambda: self._run("exports", "hvdgan.inference.exported", *arguments)  # noqa: E731
        rows += self._checked("exports", export, self._of_exports)
        return sorted(rows, key=lambda row: [*_CLAIMS].index(row.check)), facts

    def _checked(self, check: str, runs: Callable[[], None], compare: Callable[[], list[Row]]) -> list[Row]:
        """The rows of a comparison, or one that says why a run before it has failed."""
        try:
            runs()
        except RunError as error:
            return [Row(check, str(error).splitlines()[-1], "fail", "a run has failed; its output is above")]
        return compare()

    def _run(self, what: str, module: str, *words: str) -> None:
        """Start a program and wait for its end; print what one that fails has printed."""
        print(f"running {what}", file=sys.stderr, flush=True)
        # Not the hosts of a Slurm job, nor GPUs, on which not every sum has the same order each time.
        variables = {name: value for name, value in unlaunched().items() if not name.startswith("SLURM_")}
        said = self._folder / f"{what}.txt"
        with started(
            [sys.executable, "-m", module, *words], said, {**variables, "CUDA_VISIBLE_DEVICES": ""}
        ) as process:
            try:
                code = process.wait(self._timeout)
            except subprocess.TimeoutExpired:
                raise RunError(f"{what}: not done after {self._timeout:g} s; --timeout gives more") from None
        if code:
            raise (UserError if code == UserError.exit_code else RunError)(f"{what}: {complaint(said, code)}")

    def _of_two(self, facts: Mapping[str, Any]) -> list[Row]:
        steps, unlike = compare_steps(self._folder, facts), compare_samples(self._folder)
        within = f"{len(facts['steps'])} steps; weights differ by at most {steps.largest:.0e} of their norm"
        ranks = Row("ranks", steps.first, "fail", steps.cause) if steps.first else Row("ranks", within)
        if not unlike:
            return [ranks, Row("samples", f"{facts['settings']['global_batch_size']} samples")]
        hint = "let sample() and draw() depend on the batch and its random numbers alone"
        return [ranks, Row("samples", f"{', '.join(unlike)} of two ranks are others than of one", "fail", hint)]

    def _stop_and_resume(self, facts: Mapping[str, Any]) -> None:
        """Train to the end, remove the later checkpoints, and let the same command resume."""
        self._run("an uninterrupted run", "hvdgan.train", *facts["train"])
        paths = newest_first(self._folder / "run" / "checkpoints")
        paths[0].rename(self._folder / paths[0].name)
        for path in paths[1:-1]:
            path.unlink()
        self._run("a resumed run", "hvdgan.train", *facts["train"])

    def _of_resumed(self) -> list[Row]:
        (whole,) = newest_first(self._folder)
        found = difference(whole, self._folder / "run" / "checkpoints" / whole.name)
        wrong = [each["name"] for each in found["changed"] + found["unlike"]]
        wrong += found["only_in_first"] + found["only_in_second"]
        last = f"step {step_of(whole)}"
        if not wrong:
            return [Row("resume", f"{last}: {found['identical']} tensors have equal bits")]
        hint = "the recipe keeps something that no checkpoint holds; keep it in a network or in state()"
        return [Row("resume", f"{last}: {wrong[0]} differs, and {len(wrong) - 1} more", "fail", hint)]

    def _of_exports(self) -> list[Row]:
        with np.load(self._folder / "exported.npz") as found:
            names = sorted({name.rpartition("/")[0] for name in found})
            unlike = [name for name in names if not are_alike(found[f"{name}/0"], found[f"{name}/1"])]
        if unlike:
            return [Row("exports", f"{', '.join(unlike)} differ from those of hvdgan.sample", "fail")]
        return [Row("exports", f"{', '.join(names)} as SavedModel")]


def _ownership(facts: Mapping[str, Any]) -> Row:
    strays = [(each["update"], name) for each in facts["updates"] for name in each["strays"]]
    if strays:
        found = (
            f"update {strays[0][0]} changes {strays[0][1]}, which it does not own; {len(strays)} such tensors in all"
        )
        return Row("ownership", found, "fail", "let a loss change nothing, and name what an update trains in owns")
    if idle := [each["update"] for each in facts["updates"] if each["is_idle"]]:
        return Row("ownership", f"update {idle[0]} changes nothing", "fail", "its gradients are 0; look at its loss")
    updates = ", ".join(f"{each['update']} {each['changed']}" for each in facts["updates"])
    return Row("ownership", f"tensors changed by each update: {updates}")


def _non_finite(facts: Mapping[str, Any]) -> Row:
    taken = [(each["update"], name) for each in facts["updates"] for name in each["taken"]]
    if not taken:
        return Row("non-finite", "a sample of NaN is refused, and nothing has changed")
    hint = "the loss hides numbers that are not finite; let it become NaN, too"
    return Row("non-finite", f"update {taken[0][0]} changes {taken[0][1]} by a sample of NaN", "fail", hint)


def _sentence(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """What holds, for the appendix of a paper."""
    settings, versions = facts["settings"], facts["versions"]
    shown = [_CLAIMS[row.check] for row in rows if row.verdict == "ok"]
    with_ = f"hvdgan {versions['hvdgan']} (TensorFlow {versions['tensorflow']}, Keras {versions['keras']})"
    of = f"{settings['recipe']} on {settings['data']}, for {len(facts['steps'])} steps on CPUs"
    failed = [_CLAIMS[row.check] for row in rows if row.verdict == "fail"]
    what = [f"that {each}" for each in shown] + [f"it does not hold that {each}" for each in failed]
    return f"We checked with {with_}, for {of}: {'; '.join(what)}."


if __name__ == "__main__":
    sys.exit(main())

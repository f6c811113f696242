"""Checks that an interrupted run and an uninterrupted one end with the same bits, with --deterministic."""

from collections.abc import Iterator
from typing import Any

from gpu.check import Check
from gpu.processes import Done
from gpu.setting import Setting
from hvdgan.checkpoints.contents import difference
from hvdgan.checkpoints.files import find

STEPS, STOP = 40, 17
_FLAGS = "--recipe dcgan --nf 8 --deterministic --log-every 10 --report never".split()


def checks(setting: Setting) -> Iterator[Check]:
    """Compare the two runs, on one rank and on the most."""
    for ranks in dict.fromkeys((1, setting.most)):
        yield _check(setting, ranks)


def _check(setting: Setting, ranks: int) -> Check:
    name = f"{ranks} rank{'s' * (ranks > 1)}: {STEPS} steps at once, and {STOP} and then the rest"
    whole, parts = (setting.out / "runs" / f"resume-{ranks}-{what}" for what in ("whole", "parts"))
    begun: list[Done] = []
    for number, (run_dir, steps) in enumerate(((whole, STEPS), (parts, STOP), (parts, STEPS))):
        words = [*_FLAGS, "--global-batch-size", str(setting.batch_of_all(16))]
        words += ["--max-steps", str(steps), "--run-dir", str(run_dir)]
        begun.append(setting.launch(f"resume/{run_dir.name}-{number}", "hvdgan.train", words, ranks))
        if begun[-1].code != 0:
            return Check(name=name, verdict="failed", errors=begun[-1].errors, command=begun[-1].words)
    found = difference(find(whole), find(parts))
    differing = names_that_differ(found)
    resumed = f"resuming at step {STOP} of {STEPS}" in begun[-1].text
    is_same = resumed and not differing and found["identical"] > 0
    errors = [f"{len(differing)} tensors differ: {', '.join(differing[:5])}"] if differing else []
    errors += [] if resumed else ["the second command did not resume the run"]
    return Check(
        name=name,
        verdict="passed" if is_same else "failed",
        found=f"{found['identical']} tensors have the same bits" if is_same else "",
        figures={"identical": found["identical"], "differing": differing},
        errors=tuple(errors),
        command=begun[-1].words,
        seconds=sum(done.seconds for done in begun),
    )


def names_that_differ(found: dict[str, Any]) -> list[str]:
    """List the tensors that are not the same in both checkpoints.

    Args:
        found: facts of difference(), which hvdgan.inspect --diff prints.
    """
    apart = [each["name"] for kind in ("changed", "unlike") for each in found[kind]]
    return [*apart, *found["only_in_first"], *found["only_in_second"]]

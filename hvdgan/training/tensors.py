"""Gives a run's variables the values of a checkpoint, or of another run's networks."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.checkpoints import checkpoint
from hvdgan.checkpoints.files import find, read_manifest
from hvdgan.cli.errors import UserError
from hvdgan.training.run import Run

# For each setting that adds tensors to a checkpoint: their kind, its name in messages, and their first values in a run
# whose checkpoint lacks them.
_TENSORS_OF = {
    "ema_decay": ("ema", "averages", "the weights"),
    "precision": ("loss_scales", "loss scales", "their first value"),
}


def restore_tensors(
    run: Run, source: Path, manifest: dict[str, Any], allow_changed: Iterable[str]
) -> tuple[np.ndarray | None, list[str]]:
    """Restore all tensors, except for kinds that only the checkpoint or only the run has, where that is allowed."""
    tensors = run.state.tensors()
    theirs, own = ({name.split("/")[0] for name in names} for names in (manifest["tensors"], tensors))
    skipped, remarks = set(), []
    for setting, (kind, what, first) in _TENSORS_OF.items():
        if setting in allow_changed and kind in theirs ^ own:
            skipped.add(kind)
            then = "are dropped" if kind in theirs else f"are not there, and begin at {first}"
            remarks.append(f"warning: the {what} of {source} {then}")
    if "ema" in skipped:
        skipped.add("ranks")  # averages are among the statistics of each rank, so all ranks resume with the means
    only = tuple(f"{kind}/" for kind in sorted((theirs | own) - skipped))
    wanted = {name: variable for name, variable in tensors.items() if name.startswith(only)}
    saved = checkpoint.restore(source, manifest, wanted, only)
    statistics = None if saved is None else run.state.statistics.select(saved)
    if saved is not None and statistics is None:
        remarks.append(
            f"warning: {source} was made with other statistics of each rank; all ranks resume with their means"
        )
    if "ema" in skipped:
        _begin_averages(run, run.state.ema)
    return statistics, remarks


def take_networks(run: Run, source: Path, names: tuple[str, ...]) -> str:
    """Give networks of a new run, and their averages, the values of another run's networks."""
    where = f"--init-from {source}"
    try:
        source = find(source)
    except UserError as error:
        raise UserError(f"--init-from {error}") from error
    manifest = read_manifest(source)
    theirs = {name.split("/")[1] for name in manifest["tensors"] if name.startswith("networks/")}
    chosen = set(names) or theirs & run.state.networks.keys()
    if not chosen or chosen - (theirs & run.state.networks.keys()):
        raise UserError(
            f"{where}, --init-networks {','.join(names)}: it has {', '.join(sorted(theirs))}, and this run "
            f"{', '.join(run.state.networks)}; name some that both have"
        )
    own = run.state.tensors()
    for kind in ("networks", "ema"):
        prefixes = tuple(f"{kind}/{name}/" for name in sorted(chosen))
        wanted = {name: variable for name, variable in own.items() if name.startswith(prefixes)}
        if kind == "ema" and wanted.keys() - manifest["tensors"].keys():
            _begin_averages(run, chosen & run.state.ema.keys())  # the other run has no averages
        elif wanted:
            checkpoint.restore(source, manifest, wanted, only=prefixes)
    run.state.reset_optimizers(run.recipe, chosen)  # some keep a copy of the weights, as ScheduleFreeAdamW
    return f"{', '.join(sorted(chosen))} taken from {source}"


def _begin_averages(run: Run, networks: Iterable[str]) -> None:
    """Set the averages of these networks to their weights, as in a new run."""
    pairs = run.state.sampling_values()
    for variable, average in (pair for name in networks for pair in pairs[name]):
        average.assign(variable)

"""The command hvdgan evaluate: measures the networks of a run, after or beside its training."""

from hvdgan.cli import start

start.begin(__name__)

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from hvdgan.checkpoints.files import refuse_missing
from hvdgan.cli.app import command, leave
from hvdgan.errors import LostPeer, RankFailed, RunError, UserError
from hvdgan.settings.evaluation import EvaluationRequest
from hvdgan.settings.types import NonNegative

_HELP = """Measure the networks of a run: distances between samples that they generate and real ones, and the recipe's
measures of held-out samples.

RUN_DIR is a run folder, whose newest checkpoint is measured, or a checkpoint file. Start it alone, or under
horovodrun, mpirun or srun. The figures are shown as a table; their records go to RUN_DIR/evaluation.jsonl."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request(EvaluationRequest):
    """What to evaluate; the fields are the flags."""

    all_checkpoints: bool = False
    """measure every checkpoint, the oldest first"""
    watch: bool = False
    """measure every checkpoint, then each new one, until the last step of the run is measured"""
    json: bool = False
    """print the records of evaluation.jsonl, one a line"""
    share_gpu: bool = False
    """let several ranks compute on one GPU"""
    peer_timeout: NonNegative = 120.0
    """silence of a rank after which all ranks end (seconds); 0: no limit"""


@command(name="evaluate", help_text=_HELP, first=refuse_missing, one_process=False)
def main(run_dir: Path, /, *, request: Annotated[Request, Parameter(name="*")] = Request()) -> None:
    # The devices are claimed first, because the recipe's file may run operations.
    joining.claim()
    if request.images is not None:
        _check_images(request)
    with joining.joined(request.peer_timeout, share_gpu=request.share_gpu) as ranks:
        _evaluate(run_dir, request, ranks)


# Here, so that help and a wrong command line need no TensorFlow.
from hvdgan.distributed import joining
from hvdgan.distributed.ranks import Ranks
from hvdgan.inference.evaluating import CheckpointDeleted, Evaluating, checkpoints_of, follow, refuse_checkpoint


def _evaluate(path: Path, request: Request, ranks: Ranks) -> None:
    say = _say if ranks.is_root else lambda line: None
    if request.axes is not None and request.data is None and request.images is None:
        raise UserError(f"--axes {request.axes}: they are those of other data, with --data or --images; leave them out")
    if request.members is not None and not request.whole:
        raise UserError(f"--members {request.members}: they are those of whole fields; add --whole, or leave them out")
    if request.watch:
        refuse_checkpoint(path, ranks)
    folder, chosen = (path, []) if request.watch else checkpoints_of(path, ranks, every=request.all_checkpoints)
    failed, gone = list[Path](), 0
    with contextlib.closing(Evaluating(folder, request, ranks, say)) as evaluating:
        for checkpoint in follow(path, ranks, say) if request.watch else chosen:
            try:
                record = evaluating(checkpoint)
            except (UserError, LostPeer, RankFailed):
                raise
            except RunError as error:  # the next checkpoint may be whole, and its networks may not have diverged
                if len(chosen) == 1:
                    raise
                is_gone = isinstance(error, CheckpointDeleted)
                say(f"{error}; skipped" if is_gone else f"{checkpoint}: {error}; skipped")
                gone += is_gone
                failed += [] if is_gone else [checkpoint]
                continue
            if ranks.is_root:
                print(json.dumps(record) if request.json else _table(checkpoint, record), flush=True)
    if gone and gone == len(chosen):
        raise RunError(f"all {gone} checkpoints of {folder} were deleted before any was measured; repeat the command")
    if failed:
        raise RunError(f"checkpoints that could not be evaluated: {', '.join(map(str, failed))}")


def _table(checkpoint: Path, record: dict[str, Any]) -> str:
    """The figures of a record below each other."""
    figures = {name: value for name, value in record.items() if name.startswith("eval/")}
    counts = f"{record['samples']:,} generated and {record['real_samples']:,} real samples"
    width = max(map(len, figures), default=0)
    rows = (f"  {name:{width}}  {'undefined' if value is None else f'{value:.6g}'}" for name, value in figures.items())
    return "\n".join([f"{checkpoint}: {counts}, features: {record['features']}", *rows])


def _check_images(request: Request) -> None:
    """Refuse flags that say how samples are generated, or that name several checkpoints."""
    default = Request()
    for name in ("watch", "all_checkpoints", "weights", "seed", "truncation", "standing_statistics"):
        if getattr(request, name) != getattr(default, name):
            raise UserError(
                f"--images {request.images}: these samples are not generated by a checkpoint; leave out "
                f"--{name.replace('_', '-')}"
            )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if code := main():
        leave(code)

"""The command python -m hvdgan.evaluate: measures the networks of a run, after or beside its training."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hvdgan.cli.app import command, leave
from hvdgan.cli.errors import LostPeer, RankFailed, RunError, UserError
from hvdgan.cli.types import Count, CountOrNever, Fraction, NonNegative, Seed
from hvdgan.distributed import joining
from hvdgan.distributed.collective_errors import failures_in_words
from hvdgan.distributed.liveness import heartbeat
from hvdgan.distributed.ranks import Ranks
from hvdgan.inference.evaluating import (
    CheckpointDeleted,
    Evaluating,
    EvaluationRequest,
    checkpoints_of,
    follow,
    refuse_checkpoint,
)
from hvdgan.inference.trained import Weights

_HELP = """Measure the networks of a run: distances between samples that they generate and real ones, and the recipe's
measures of held-out samples.

RUN_DIR is a run folder, whose newest checkpoint is measured, or a checkpoint folder. Start it alone, or under
horovodrun, mpirun or srun. The records go to RUN_DIR/evaluation.jsonl, and to the standard output."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to evaluate; the fields are the flags."""

    all_checkpoints: bool = False
    """measure every checkpoint of the run folder, the oldest first"""
    watch: bool = False
    """measure every checkpoint, then each new one, until the last step of the run is measured"""
    num: Annotated[Count, Parameter(name=("--num", "--samples"))] = 50_000
    """number of samples; under horovodrun, which takes --num for one of its own flags, write --samples"""
    real_samples: CountOrNever | None = None
    """number of real samples to compare with, each with the run's --flip also mirrored; default: as --num; 0: all"""
    eval_features: str | None = None
    """features in which the samples are compared, as for hvdgan.train; default: those of the run's settings"""
    inception: Path | None = None
    """classify_image_graph_def.pb for --eval-features inception; default: the run's, or what HVDGAN_INCEPTION names"""
    eval_resize: Literal["clean", "legacy"] | None = None
    """how pictures are resized for the features; default: as the run's settings say"""
    weights: Weights = "averaged"
    """averaged: moving averages of the weights, if the run has any; trained: the weights themselves"""
    seed: Seed | None = None
    """seed of the samples; default: that of the run"""
    truncation: Fraction | None = None
    """factor that pulls styles towards their mean, from 0 to 1, for recipes that truncate"""
    standing_statistics: Count | None = None
    """number of generated batches of --batch-size whose BatchNorm statistics replace the moving ones, such as 100"""
    batch_size: Count = 64
    """samples computed at a time on each rank; fewer need less memory"""
    data: str | None = None
    """data to compare with; default: those that the run was trained on"""
    images: str | None = None
    """samples of another program to measure in place of generated ones: a folder, or an array, as --data names data"""
    share_gpu: bool = False
    """let several ranks compute on one GPU"""
    peer_timeout: NonNegative = 120.0
    """silence of a rank after which all ranks end (seconds); 0: no limit"""


@command(name="evaluate", help_text=_HELP, one_process=False)
def main(run_dir: Path, /, *, request: Annotated[Request, Parameter(name="*")] = Request()) -> None:
    # The devices are claimed first, because the recipe's file may run operations.
    joining.claim()
    if request.images is not None:
        _check_images(request)
    with failures_in_words(lambda: None):
        ranks = joining.start(share_gpu=request.share_gpu)
        heart = heartbeat.start(ranks.rank, ranks.gather, request.peer_timeout, None, activity=ranks.activity)
    with heart, failures_in_words(heart.explanation):
        _evaluate(run_dir, request, ranks)
        ranks.shutdown()


def _evaluate(path: Path, request: Request, ranks: Ranks) -> None:
    say = _say if ranks.is_root else lambda line: None
    if request.watch:
        refuse_checkpoint(path, ranks)
    folder, chosen = (path, []) if request.watch else checkpoints_of(path, ranks, every=request.all_checkpoints)
    evaluating, failed, gone = Evaluating(folder, _asked(request), ranks, say), list[Path](), 0
    for checkpoint in follow(path, ranks, say) if request.watch else chosen:
        try:
            record = evaluating(checkpoint)
        except (UserError, LostPeer, RankFailed):
            raise
        except CheckpointDeleted as error:
            if len(chosen) == 1:
                raise
            say(f"{error}; skipped")
            gone += 1
            continue
        except RunError as error:  # the next checkpoint may be whole, and its networks may not have diverged
            if len(chosen) == 1:
                raise
            failed.append(checkpoint)
            say(f"{checkpoint}: {error}; skipped")
            continue
        if ranks.is_root:
            print(json.dumps(record), flush=True)
    if gone and gone == len(chosen):
        raise RunError(f"all {gone} checkpoints of {folder} were deleted before any was measured; repeat the command")
    if failed:
        raise RunError(f"checkpoints that could not be evaluated: {', '.join(map(str, failed))}")


def _check_images(request: Request) -> None:
    """Refuse flags that say how samples are generated, or that name several checkpoints."""
    default = Request()
    for name in ("watch", "all_checkpoints", "weights", "seed", "truncation", "standing_statistics"):
        if getattr(request, name) != getattr(default, name):
            raise UserError(
                f"--images {request.images}: these samples are not generated by a checkpoint; leave out "
                f"--{name.replace('_', '-')}"
            )


def _asked(request: Request) -> EvaluationRequest:
    features = {name: getattr(request, name) for name in ("eval_features", "inception", "eval_resize")}
    return EvaluationRequest(
        num=request.num,
        real_samples=request.real_samples,
        weights=request.weights,
        seed=request.seed,
        truncation=1.0 if request.truncation is None else request.truncation,
        batch_size=request.batch_size,
        standing_statistics=request.standing_statistics,
        data=request.data,
        images=request.images,
        features={name: value for name, value in features.items() if value is not None},
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if code := main():
        leave(code)

"""The configuration: typed, frozen, and the same words in Python, on the command line and in config.json."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from hvdgan.cli.errors import UserError
from hvdgan.cli.types import (
    Count,
    CountOrNever,
    Decay,
    Fraction,
    Kind,
    NonNegative,
    Precision,
    Seed,
    Words,
    read_kinds,
)

_RUN = Parameter(group=Group("Run", sort_key=1))
_DATA = Parameter(group=Group("Data", sort_key=2))
_TRAINING = Parameter(group=Group("Training", sort_key=3))
_OUTPUT = Parameter(group=Group("Output", sort_key=4))
_PIPELINE = Parameter(group=Group("Pipeline", sort_key=6))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """How batches are prepared; nothing here changes what they hold."""

    threads: CountOrNever = 0
    """threads per rank that read and decode; 0: one per core the rank owns"""
    prefetch: Count = 2
    """batches prepared ahead of the step"""
    cache: Annotated[Literal["none", "memory", "disk"], Parameter(name=("--pipeline.cache", "--cache"))] = "none"
    """decode each image once: keep it in each rank's memory, or on each host in a file of the run folder"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TFRecordConfig:
    """Features of the TFRecords that --data names."""

    image: Annotated[str | None, Parameter(name="--tfrecord-image"), _DATA] = None
    """feature of a TFRecord that holds the encoded image; default: image"""
    label: Annotated[str | None, Parameter(name="--tfrecord-label"), _DATA] = None
    """feature of a TFRecord that holds the class, an integer; default: no classes"""
    input: Annotated[str | None, Parameter(name="--tfrecord-input"), _DATA] = None
    """feature of a TFRecord that holds the input of a pair; default: the left half of the image"""
    shape: Annotated[str | None, Parameter(name="--tfrecord-shape"), _DATA] = None
    """height,width,channels (or channels first) of images that are raw bytes; default: they are encoded"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a run is made of, apart from the recipe's own options."""

    recipe: Annotated[str, _RUN] = "dcgan"
    """a recipe of hvdgan, or your own as package.module:Attribute"""
    run_dir: Annotated[Path | None, _RUN] = None
    """folder that receives everything the run writes; default: runs/ and the name of the recipe"""
    seed: Annotated[Seed, _RUN] = 0
    """decides the initial weights, the order of the data, the latents"""
    peer_timeout: Annotated[NonNegative, _RUN] = 120.0
    """seconds of silence from a rank (dead, frozen, cut off) until all ranks end; 0: never, nor by --stall-timeout"""
    stall_timeout: Annotated[NonNegative, _RUN] = 600.0
    """seconds (above the longest step) without progress of a living rank until all end; 0, --peer-timeout 0: never"""

    data: Annotated[str, _DATA] = "digits"
    """digits, synthetic, a folder of images, an .npy/.npz array (N, H, W, C), 'x*.tfrecord', keras:mnist, tfds:NAME"""
    image_size: Annotated[Count, _DATA] = 32
    """height and width in pixels; images are centre-cropped and resized to it"""
    channels: Annotated[Literal[1, 3] | None, _DATA] = None
    """1 (grey) or 3 (RGB); default: 1 for digits, what an array has, 3 for everything else"""
    max_bad_fraction: Annotated[Fraction, _DATA] = 0.01
    """stop when more than this fraction of the files cannot be read"""
    tfrecord: Annotated[TFRecordConfig, Parameter(name="*"), _DATA] = TFRecordConfig()

    global_batch_size: Annotated[Count, _TRAINING] = 64
    """images per step over all ranks together; the number of ranks must divide it"""
    max_steps: Annotated[Count | None, _TRAINING] = None
    """stop after so many steps in all; default: the end of the last stage"""
    stages: Annotated[str | None, _TRAINING] = None
    """stages to run, as NAME=STEPS,NAME=STEPS: skips, shortens, reorders or repeats those of the recipe"""
    sync_batch_norm: Annotated[bool, _TRAINING] = False
    """BatchNorm over the whole global batch instead of each rank's part; costs a small all-reduce per layer and call"""
    accumulate: Annotated[Count, _TRAINING] = 1
    """micro-batches in which a rank computes its part of the batch, to need less memory; they are reduced once"""
    precision: Annotated[Precision, _TRAINING] = "float32"
    """in which networks compute; weights stay float32, and mixed_float16 has a dynamic loss scale"""
    compression: Annotated[Literal["none", "fp16"], _TRAINING] = "none"
    """how gradients travel between ranks: fp16 halves the bytes, sums in float16, and rounds or loses the smallest"""
    lr_scaling: Annotated[Literal["none", "linear", "sqrt"], _TRAINING] = "none"
    """how learning rates grow with the global batch: not at all, with its ratio to the base batch, or the root of it"""
    lr_base_batch_size: Annotated[Count, _TRAINING] = 64
    """global batch for which the learning rates are meant; used by --lr-scaling"""
    holdout: Annotated[Decay | None, _DATA] = None
    """part of the images kept out of training and evaluated; default: 0.05 where the recipe evaluates, else 0"""
    flip: Annotated[bool, _DATA] = False
    """mirror half of the images left to right, other ones at each step"""
    diff_augment: Annotated[tuple[Kind, ...], _TRAINING, Parameter(converter=read_kinds, n_tokens=1)] = ()
    """differentiable augmentation of all that the discriminator sees: any of color,translation,cutout"""
    ema_decay: Annotated[Decay, _TRAINING] = 0.995
    """decay per step of the moving average of the weights that draws the samples; 0: off"""

    deterministic: Annotated[bool, _TRAINING] = False
    """only operations that give the same bits every time, also on GPUs, where that costs speed; CPUs need no flag"""
    max_bad_steps: Annotated[Count, _TRAINING] = 10
    """stop where an update's gradients or loss were not finite so often in a row; such an update changes nothing"""
    check_ranks_every: Annotated[CountOrNever, _TRAINING] = 1000
    """steps between two comparisons of the ranks' weights; 0: never"""

    log_every: Annotated[Count, _OUTPUT] = 50
    """steps between two lines of metrics"""
    sample_every: Annotated[CountOrNever, _OUTPUT] = 500
    """steps between two sample grids; 0: only at the end"""
    eval_every: Annotated[CountOrNever, _OUTPUT] = 500
    """steps between two evaluations on the images held out; 0: only at the end"""
    eval_images: Annotated[CountOrNever, _OUTPUT] = 5000
    """images that an evaluation looks at, the same ones each time, where more are held out; 0: all"""
    checkpoint_every: Annotated[CountOrNever, _OUTPUT] = 500
    """steps between two checkpoints; 0: only at the end of a stage"""
    keep: Annotated[CountOrNever, _OUTPUT] = 3
    """newest checkpoints that stay, beside the best and the last of each stage; 0: all"""
    best_metric: Annotated[str | None, _OUTPUT] = None
    """metric by its name in metrics.jsonl, such as eval/hole_psnr, whose best checkpoint stays"""
    best_mode: Annotated[Literal["min", "max"], _OUTPUT] = "min"
    """whether the smallest or the largest is best"""

    pipeline: Annotated[PipelineConfig, _PIPELINE] = PipelineConfig()

    @property
    def rate_factor(self) -> float:
        """What learning rates are multiplied with.

        Reference: Goyal et al. 2017, section 2.1 (linear); Krizhevsky 2014, section 5 (root).
        """
        ratio = self.global_batch_size / self.lr_base_batch_size
        return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.lr_scaling]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resume:
    """Where a run begins; not saved with its settings."""

    resume: str = "auto"
    """auto (resume the folder's run), never (refuse a folder with a run; see docs/checkpoints.md), or a checkpoint"""
    allow_changed: Words = ()
    """settings that may differ from those of the checkpoint, with commas between: what they mean is yours to know"""
    init_from: Path | None = None
    """run folder or checkpoint from which a new run takes networks; a run that goes on does not look at it"""
    init_networks: Words = ()
    """which networks to take, with commas between; default: all that both have"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elastic:
    """What a run does that goes on when ranks are lost; not saved with its settings."""

    commit_every: Count = 50
    """steps between two copies of everything in memory, to which an elastic run goes back when a rank is lost"""


def to_json(config: Config, options: Any) -> dict[str, Any]:
    """One flat object: the words of the command line, the recipe's options among them.

    Args:
        config: the run's configuration.
        options: the recipe's options, a dataclass instance.
    """
    values: dict[str, Any] = {}
    for name, value in dataclasses.asdict(config).items():
        values |= {f"tfrecord_{key}": each for key, each in value.items()} if name == "tfrecord" else {name: value}
    return json.loads(json.dumps({**values, **dataclasses.asdict(options)}, default=str))


def read_json(path: Path) -> dict[str, Any]:
    """Read a saved config.json.

    Raises:
        UserError: the file is missing, unreadable or not a JSON object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"--config {path}: cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"--config {path}: expected a JSON object of settings, found {type(values).__name__}")
    if not isinstance(values.get("pipeline", {}), dict):
        raise UserError(f"--config {path}: pipeline is {values['pipeline']!r}; expected a JSON object of its settings")
    return values

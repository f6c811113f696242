"""The settings of a run, with the same names in Python, on the command line and in config.json."""

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
    """Settings of the input pipeline, which change the speed and not the batches."""

    threads: CountOrNever = 0
    """threads per rank that read and decode images; 0: one for each core of the rank"""
    prefetch: Count = 2
    """batches that are prepared ahead of the step"""
    cache: Annotated[Literal["none", "memory", "disk"], Parameter(name=("--pipeline.cache", "--cache"))] = "none"
    """where decoded images are kept: not at all, in the memory of each rank, or in a file of the run folder per host"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TFRecordConfig:
    """Names of the features in the TFRecords that --data names."""

    image: Annotated[str | None, Parameter(name="--tfrecord-image"), _DATA] = None
    """feature that holds the encoded image of a TFRecord; default: image"""
    label: Annotated[str | None, Parameter(name="--tfrecord-label"), _DATA] = None
    """feature that holds the class of a TFRecord, an integer; default: no classes"""
    input: Annotated[str | None, Parameter(name="--tfrecord-input"), _DATA] = None
    """feature that holds the input of a pair in a TFRecord; default: the left half of the image"""
    shape: Annotated[str | None, Parameter(name="--tfrecord-shape"), _DATA] = None
    """height,width,channels or channels,height,width of images that are raw bytes; default: images are encoded"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run except the recipe's own options."""

    recipe: Annotated[str, _RUN] = "dcgan"
    """name of a recipe of hvdgan, or your own as package.module:Attribute"""
    run_dir: Annotated[Path | None, _RUN] = None
    """folder that receives everything that the run writes; default: runs/ and the recipe's name"""
    seed: Annotated[Seed, _RUN] = 0
    """seed of the initial weights, the order of the data, and all random draws"""
    peer_timeout: Annotated[NonNegative, _RUN] = 120.0
    """silence of a dead, frozen or cut-off rank until all ranks end (seconds); 0: never, nor by --stall-timeout"""
    stall_timeout: Annotated[NonNegative, _RUN] = 600.0
    """time without progress, beyond the longest step, until all ranks end (seconds); 0: never"""

    data: Annotated[str, _DATA] = "digits"
    """digits, synthetic, a folder of images, an .npy/.npz array (N, H, W, C), 'x*.tfrecord', keras:mnist, tfds:NAME"""
    image_size: Annotated[Count, _DATA] = 32
    """height and width of the images (pixels); images are cropped at the centre and resized"""
    channels: Annotated[Literal[1, 3] | None, _DATA] = None
    """channels of the images: 1 (grey) or 3 (RGB); default: 1 for digits, those of an array, else 3"""
    max_bad_fraction: Annotated[Fraction, _DATA] = 0.01
    """largest fraction of files that may be unreadable; above it the run stops"""
    tfrecord: Annotated[TFRecordConfig, Parameter(name="*"), _DATA] = TFRecordConfig()

    global_batch_size: Annotated[Count, _TRAINING] = 64
    """images per step of all ranks together; the number of ranks must divide it"""
    max_steps: Annotated[Count | None, _TRAINING] = None
    """step after which the run ends, counted over all stages; default: the end of the last stage"""
    stages: Annotated[str | None, _TRAINING] = None
    """stages to run, as NAME=STEPS,NAME=STEPS, in any order, also more than once; default: those of the recipe"""
    sync_batch_norm: Annotated[bool, _TRAINING] = False
    """normalise over the global batch instead of each rank's part; costs a small all-reduce per layer and call"""
    accumulate: Annotated[Count, _TRAINING] = 1
    """micro-batches into which a rank splits its part of the batch, to save memory; all-reduced once"""
    precision: Annotated[Precision, _TRAINING] = "float32"
    """number format in which networks compute; weights stay float32; mixed_float16 has a dynamic loss scale"""
    compression: Annotated[Literal["none", "fp16"], _TRAINING] = "none"
    """format in which gradients are all-reduced: fp16 halves the bytes, but rounds, and may lose the smallest"""
    lr_scaling: Annotated[Literal["none", "linear", "sqrt"], _TRAINING] = "none"
    """factor of the learning rates: 1 (none), global batch / base batch (linear), or the root of that (sqrt)"""
    lr_base_batch_size: Annotated[Count, _TRAINING] = 64
    """global batch size for which the learning rates of the recipe are meant (images)"""
    holdout: Annotated[Decay | None, _DATA] = None
    """fraction of the images kept out of training, for evaluation; default: 0.05 if the recipe evaluates, else 0"""
    flip: Annotated[bool, _DATA] = False
    """mirror a random half of the images left to right in each step"""
    diff_augment: Annotated[tuple[Kind, ...], _TRAINING, Parameter(converter=read_kinds, n_tokens=1)] = ()
    """differentiable augmentations of all images that the discriminator sees, comma-separated"""
    ema_decay: Annotated[Decay, _TRAINING] = 0.995
    """decay per step of the weights' moving average, with which samples are drawn; 0: no average"""

    deterministic: Annotated[bool, _TRAINING] = False
    """use only operations that give the same bits every time; slower on GPUs, not needed on CPUs"""
    max_bad_steps: Annotated[Count, _TRAINING] = 10
    """consecutive updates whose loss or gradients are not finite, which are skipped, until the run stops"""
    check_ranks_every: Annotated[CountOrNever, _TRAINING] = 1000
    """steps between two checks that the ranks' weights are equal; 0: never"""

    log_every: Annotated[Count, _OUTPUT] = 50
    """steps between two lines of metrics in the log"""
    sample_every: Annotated[CountOrNever, _OUTPUT] = 500
    """steps between two grids of samples; 0: only at the end"""
    eval_every: Annotated[CountOrNever, _OUTPUT] = 500
    """steps between two evaluations on the held-out images; 0: only at the end"""
    eval_images: Annotated[CountOrNever, _OUTPUT] = 5000
    """number of held-out images per evaluation, always the same ones; 0: all"""
    checkpoint_every: Annotated[CountOrNever, _OUTPUT] = 500
    """steps between two checkpoints; 0: only at the end of a stage"""
    keep: Annotated[CountOrNever, _OUTPUT] = 3
    """number of newest checkpoints to keep, besides the best one and the last of each stage; 0: all"""
    best_metric: Annotated[str | None, _OUTPUT] = None
    """name of a metric in metrics.jsonl, such as eval/hole_psnr, whose best checkpoint is kept"""
    best_mode: Annotated[Literal["min", "max"], _OUTPUT] = "min"
    """min if the smallest value of --best-metric is the best, max if the largest"""

    pipeline: Annotated[PipelineConfig, _PIPELINE] = PipelineConfig()

    @property
    def rate_factor(self) -> float:
        """Factor of the learning rates.

        Reference: Goyal et al. 2017, section 2.1 (linear); Krizhevsky 2014, section 5 (root).
        """
        ratio = self.global_batch_size / self.lr_base_batch_size
        return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[self.lr_scaling]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resume:
    """Settings for the start of a run, which are not saved in config.json."""

    resume: str = "auto"
    """auto (resume the run in the folder), never (refuse a folder that holds a run), or the path of a checkpoint"""
    allow_changed: Words = ()
    """settings that may differ from the checkpoint's, comma-separated; at your own risk"""
    init_from: Path | None = None
    """run folder or checkpoint whose networks a new run starts with; ignored when a run is resumed"""
    init_networks: Words = ()
    """names of the networks to take from --init-from, comma-separated; default: all that both have"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elastic:
    """Settings of an elastic run, which are not saved in config.json."""

    commit_every: Count = 50
    """steps between two copies of the state in memory, from which an elastic run resumes when a rank is lost"""


def to_json(config: Config, options: Any) -> dict[str, Any]:
    """Make one flat object of all settings, by their names on the command line.

    Args:
        config: settings of the run.
        options: options of the recipe, a dataclass instance.
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

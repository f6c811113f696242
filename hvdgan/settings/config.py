"""The settings of a run, with the same names in Python, on the command line and in config.json."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from hvdgan.errors import UserError
from hvdgan.settings.data import DATA, ArrayConfig, TFRecordConfig
from hvdgan.settings.evaluation import EvaluationConfig
from hvdgan.settings.types import (
    Count,
    CountOrNever,
    Decay,
    Fit,
    Fraction,
    ImageSize,
    Kind,
    NonNegative,
    Positive,
    Precision,
    Seed,
    Words,
    read_kinds,
)

_RUN = Parameter(group=Group("Run", sort_key=1))
_TRAINING = Parameter(group=Group("Training", sort_key=5))
_OUTPUT = Parameter(group=Group("Output", sort_key=7))
_PIPELINE = Parameter(group=Group("Pipeline", sort_key=8))
_RESUME = Parameter(group=Group("Resume", sort_key=9))
EMA_DECAY = 0.995


@dataclasses.dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """Settings of the input pipeline, which change the speed and not the batches."""

    threads: CountOrNever = 0
    """threads per rank that read and decode images; 0: one for each core of the rank"""
    prefetch: Count = 2
    """batches that are prepared ahead of the step"""
    cache: Annotated[Literal["none", "memory"], Parameter(name=("--pipeline.cache", "--cache"))] = "none"
    """memory: keep decoded images in the memory of each rank; none: decode them in every epoch"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of a run except the recipe's own options."""

    recipe: Annotated[str, _RUN] = "dcgan"
    """name, or module:Class of your own"""
    run_dir: Annotated[Path | None, _RUN] = None
    """folder of the run; default: runs/ and the recipe's name"""
    seed: Annotated[Seed, _RUN] = 0
    """seed of weights, order of the data, and all draws"""
    peer_timeout: Annotated[NonNegative, _RUN] = 120.0
    """silence of a rank after which all ranks end (seconds); 0: no limit, and --stall-timeout is off too"""
    stall_timeout: Annotated[NonNegative, _RUN] = 600.0
    """time without progress after which a hung rank ends the run (seconds); longer than the longest step; 0: never"""

    data: Annotated[str, DATA] = "digits"
    """digits, synthetic, a folder or zip of images, arrays (.npy, .npz, FILE:NAME), 'x*.tfrecord', keras:mnist, or
    your own as my_module:source"""
    other_data: Annotated[Words, DATA] = ()
    """data of the second and each further domain, for recipes with domains; a second --data does the same. By default
    --data holds all domains, each under its name"""
    data_options: Annotated[Words, DATA] = ()
    """arguments of your own source in --data, if it is a class or a function: KEY=VALUE,KEY=VALUE"""
    image_size: Annotated[ImageSize, DATA] = None
    """height and width of 8-bit pictures (pixels), one number or HEIGHT,WIDTH; default: the size of an array, or 32"""
    fit: Annotated[Fit | None, DATA] = None
    """what to do with pictures of another aspect ratio: crop (at the centre), pad (black borders) or stretch"""
    channels: Annotated[Literal[1, 3] | None, DATA] = None
    """channels of the images: 1 (grey) or 3 (RGB); default: those of an array, 1 for digits, or 3"""
    max_bad_fraction: Annotated[Fraction, DATA] = 0.01
    """largest fraction of files that may be unreadable; above it the run stops"""
    tfrecord: Annotated[TFRecordConfig, Parameter(name="*"), DATA] = TFRecordConfig()  # noqa: RUF009
    arrays: Annotated[ArrayConfig, Parameter(name="*")] = ArrayConfig()  # noqa: RUF009

    ema_decay: Annotated[Decay | None, _TRAINING] = None
    """decay per step t of the weights' moving average, which samples use, at first (1 + t) / (10 + t); 0: no average;
    default: 0.995, if there is no --ema-half-life"""
    ema_half_life: Annotated[Positive | None, _TRAINING] = None
    """half-life of this average (images), in place of --ema-decay; at first shorter, 0.05 times the images seen"""
    global_batch_size: Annotated[Count, _TRAINING] = 64
    """images per step of all ranks together; the number of ranks must divide it"""
    max_steps: Annotated[Count | None, _TRAINING] = None
    """step at which the run stops, counted over all stages"""
    stages: Annotated[str | None, _TRAINING] = None
    """stages to run, NAME=STEPS,NAME=STEPS, in any order; one may occur twice; default: those of the recipe"""
    freeze: Annotated[Words, _TRAINING] = ()
    """layers that keep their values, as NETWORK/PATTERN in which * stands for any text: discriminator/block_*"""
    sync_batch_norm: Annotated[bool, _TRAINING] = False
    """normalise over the global batch instead of each rank's part; costs a small all-reduce per layer and call"""
    accumulate: Annotated[Count, _TRAINING] = 1
    """micro-batches per rank and step, to save memory; the mean of their gradients is all-reduced once"""
    precision: Annotated[Precision, _TRAINING] = "float32"
    """number format: float32, mixed_bfloat16 or bf16, mixed_float16 or fp16 (with a dynamic loss scale); weights stay
    float32"""
    gpu_memory_limit: Annotated[Count | None, _TRAINING] = None
    """GPU memory of a rank, all taken at its start (MiB); default: a rank takes more when it needs more"""
    share_gpu: Annotated[bool, _TRAINING] = False
    """let several ranks compute on one GPU, for debugging: they share its memory, and reduce in the host's memory"""
    compression: Annotated[Literal["none", "fp16"], _TRAINING] = "none"
    """format in which gradients are all-reduced: fp16 halves the bytes, but rounds, and may lose the smallest ones"""
    lr_scaling: Annotated[Literal["none", "linear", "sqrt"], _TRAINING] = "none"
    """factor of the learning rates: 1 (none), global batch / base batch (linear), or the root of that (sqrt)"""
    lr_base_batch_size: Annotated[Count, _TRAINING] = 64
    """global batch size for which the learning rates of the recipe are meant (images)"""
    holdout: Annotated[Decay | None, DATA] = None
    """fraction of the images kept out of training, for evaluation; default: 0.05 if the recipe evaluates, else 0"""
    balance: Annotated[str | None, DATA] = None
    """labels: train on every class equally often; or a .npy file with the relative frequency of each sample, in the
    order of the data; default: all samples equally often"""
    flip: Annotated[bool, DATA] = False
    """mirror images left to right with probability 1/2"""
    diff_augment: Annotated[tuple[Kind, ...], _TRAINING, Parameter(converter=read_kinds, n_tokens=1)] = ()
    """differentiable augmentations of all images that the discriminator sees: color,translation,cutout"""

    ada: Annotated[Fraction | None, _TRAINING] = None
    """target of adaptive augmentation of pictures (Karras et al. 2020), 0.6 in the paper: while the mean sign of the
    discriminator's logits of real pictures is above it, more pictures are augmented; default: no augmentation"""
    ada_images: Annotated[Count, _TRAINING] = 500_000
    """number of images in which the probability of --ada can grow from 0 to 1"""

    deterministic: Annotated[bool, _TRAINING] = False
    """use only operations that give the same bits every time; slower; only GPUs need it"""
    max_bad_steps: Annotated[Count, _TRAINING] = 10
    """number of non-finite updates in a row after which the run stops; each of them is skipped"""
    check_ranks_every: Annotated[CountOrNever, _TRAINING] = 1000
    """steps between two checks that the ranks' weights are equal; 0: never"""

    logger: Annotated[Words, _OUTPUT] = ("tensorboard",)
    """trackers for rank 0's metrics and samples: tensorboard, wandb, mlflow, my_module:MyLogger, or none;
    several are separated by commas"""
    log_every: Annotated[Count, _OUTPUT] = 50
    """steps between two lines of metrics in the log"""
    sample_every: Annotated[CountOrNever, _OUTPUT] = 500
    """steps between two grids of samples, also at steps 0, 100 and 200; 0: only at the end"""
    checkpoint_every: Annotated[CountOrNever, _OUTPUT] = 500
    """steps between two checkpoints; 0: only at the end of a stage"""
    keep: Annotated[CountOrNever, _OUTPUT] = 3
    """number of newest checkpoints to keep, besides the best one and the last of each stage; 0: all"""
    report: Annotated[Literal["never", "end", "checkpoints"], _OUTPUT] = "checkpoints"
    """times at which rank 0 writes report.html, a page about the run: at its end, or also after checkpoints"""
    best_metric: Annotated[str | None, _OUTPUT] = None
    """name of a metric in metrics.jsonl, such as eval/hole_psnr, whose best checkpoint is kept; default:
    eval/sliced_wasserstein, if samples are compared without features"""
    best_mode: Annotated[Literal["min", "max"] | None, _OUTPUT] = None
    """min if the smallest value of --best-metric is the best, max if the largest; default: max if its name ends in
    psnr, ssim, precision, recall, density, coverage, accuracy, inception_score, modes or mode_good, else min"""

    init_from: Annotated[str | None, _RESUME] = None
    """run folder or checkpoint whose networks a new run starts with, or weights of other programs, NETWORK=FILE
    (.keras, .weights.h5, .npz, .safetensors), several separated by commas; ignored when a run is resumed"""
    init_networks: Annotated[Words, _RESUME] = ()
    """names of the networks to take from the run of --init-from, comma-separated; default: all that both have"""
    init_map: Annotated[str | None, _RESUME] = None
    """file (.toml) that says which tensor of --init-from is which variable; print: write a proposal, and end"""

    evaluation: Annotated[EvaluationConfig, Parameter(name="*")] = EvaluationConfig()  # noqa: RUF009
    pipeline: Annotated[PipelineConfig, _PIPELINE] = PipelineConfig()

    def __post_init__(self) -> None:
        if self.ema_decay is not None and self.ema_half_life is not None:
            raise UserError(
                f"--ema-half-life {self.ema_half_life:.12g}, --ema-decay {self.ema_decay:.12g}: both set the same "
                "average; give one of them"
            )
        if self.ema_half_life is None and self.ema_decay is None:
            object.__setattr__(self, "ema_decay", EMA_DECAY)

    @property
    def mirrored_axes(self) -> tuple[str, ...]:
        """The names of the axes along which samples are mirrored."""
        return self.arrays.flip_axes or (("width",) if self.flip else ())


def to_json(config: Config, options: Any = None) -> dict[str, Any]:
    """Make one flat object of all settings, by their names on the command line, as config.json has them."""
    values: dict[str, Any] = {}
    for name, value in dataclasses.asdict(config).items():
        if name == "tfrecord":
            values |= {f"tfrecord_{key}": each for key, each in value.items()}
        else:
            values |= value if name in ("arrays", "evaluation") else {name: value}
    return json.loads(json.dumps({**values, **(dataclasses.asdict(options) if options else {})}, default=str))


def without_replaced(saved: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Leave a saved average, of which a config.json holds one kind, out if the command line has a flag for either."""
    replaced = any(argument.startswith(("--ema-decay", "--ema-half-life")) for argument in arguments)
    return {name: value for name, value in saved.items() if not (replaced and name in ("ema_decay", "ema_half_life"))}

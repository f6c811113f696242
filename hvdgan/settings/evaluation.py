"""Settings of evaluations: how often, on what, and with which features."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from hvdgan.settings.types import Count, CountOrNever, Fraction, NamedRecipe, Seed, Weights

# The makers of the graph have published no checksum that could be found. One public program lists the archive with this
# size of the file; another states size and MD5 of OpenAI's copy, which guided-diffusion measures with; none a SHA-256.
INCEPTION_BYTES = 95_673_916
INCEPTION_MD5 = "e6bb154e85f5d4331c22abcddb5dcf31"
PLAIN_MEASURE = "eval/sliced_wasserstein"
"""metric of the best checkpoint, if no other is named and samples are compared without features"""
EVALUATION = Parameter(group=Group("Evaluation", sort_key=6))


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """Features in which sets of samples are compared."""

    eval_features: Annotated[str, EVALUATION] = "none"
    """features in which generated and real samples are compared: none (distances without a network), inception,
    recipe (its features()), or FILE.keras"""
    inception: Annotated[Path | None, EVALUATION] = None
    """classify_image_graph_def.pb for --eval-features inception; default: the file that HVDGAN_INCEPTION names"""
    eval_resize: Annotated[Literal["clean", "legacy"], EVALUATION] = "clean"
    """how pictures are resized for the features: clean (antialiased bicubic) or legacy (bilinear, as FID in 2017)"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(FeatureConfig):
    """Settings of the evaluations of a run."""

    eval_every: Annotated[CountOrNever, EVALUATION] = 500
    """steps between two evaluations, on held-out samples or of --eval-samples; 0: only at the end"""
    eval_held_out: Annotated[CountOrNever, EVALUATION] = 5000
    """number of held-out samples per evaluation, always the same ones; 0: all"""
    eval_samples: Annotated[CountOrNever | None, EVALUATION] = None
    """samples to compare with real ones; 0: none; default: 512 at each checkpoint, in at most 2 % of the time"""
    eval_real_samples: Annotated[CountOrNever | None, EVALUATION] = None
    """number of these real ones, each with --flip also mirrored; default: as --eval-samples; 0: all"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationRequest(NamedRecipe):
    """What is evaluated, and how; the fields are flags of hvdgan evaluate."""

    samples: Count = 50_000
    """number of samples"""
    real_samples: CountOrNever | None = None
    """number of real samples, each with the run's --flip also mirrored; default: as --samples; 0: all"""
    eval_features: str | None = None
    """features in which the samples are compared, as for hvdgan train; default: those of the run's settings"""
    inception: Path | None = None
    """classify_image_graph_def.pb; default: the run's, or what HVDGAN_INCEPTION names"""
    eval_resize: Literal["clean", "legacy"] | None = None
    """how pictures are resized for the features; default: as the run's settings say"""
    weights: Weights = "averaged"
    """averaged: moving averages of the weights, if the run has any; trained: the weights themselves"""
    seed: Seed | None = None
    """seed of the samples; default: that of the run"""
    truncation: Fraction = 1.0
    """factor that pulls styles towards their mean, from 0 to 1, for recipes that truncate"""
    standing_statistics: Count | None = None
    """number of generated batches of --batch-size whose BatchNorm statistics replace the moving ones, such as 100"""
    batch_size: Count = 64
    """samples computed at a time on each rank; fewer need less memory"""
    data: str | None = None
    """data to compare with; default: those that the run was trained on"""
    images: str | None = None
    """samples of another program in place of generated ones: a folder, or an array, as --data names data"""
    axes: str | None = None
    """axes of a sample in the arrays of --data and --images, as for hvdgan train; default: as the run's settings say"""
    whole: bool = False
    """compare ensembles of whole fields of any size with the truth, as hvdgan sample --whole draws them"""
    members: Count | None = None
    """members of the ensemble of each whole field; default: 8"""
    tile: Count = 512
    """height and width of their tiles (pixels), which changes no figure"""

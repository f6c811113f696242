"""Opens what --eval-features names: a function of samples that returns their features and class probabilities."""

import dataclasses
import os
import random
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hvdgan.errors import UserError, in_one_line
from hvdgan.evaluation.inception import SIZE, Method, is_published, load_inception, resize
from hvdgan.evaluation.sets import SampleBatch
from hvdgan.recipe import DataSpec, Recipe
from hvdgan.recipe.batch import Batch
from hvdgan.recipe.display import shown
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.outputs import features_of
from hvdgan.recipe.recipe_errors import described
from hvdgan.recipe.sampling import SampleRandom
from hvdgan.settings.own_code import sha256_of

Network = Callable[[tf.Tensor], Any]
"""a function of samples (B, ...) float32"""
Rows = tuple[np.ndarray, np.ndarray | None]
"""features (N, d) float32 of N samples, and their class probabilities (N, c), or None"""
_RETURNS = "expected features (B, d), or a pair or dict of `features` and `probabilities` (or `logits`)"
_VARIABLE = "HVDGAN_INCEPTION"
_LONGEST = 300
_MOST_FEATURES = 16_384
"""features of a sample, at most: their covariance takes 2 GB, and an evaluation needs several of these"""


@dataclasses.dataclass(frozen=True)
class Features:
    """A function of samples that returns their features, with the facts that a record of a figure needs.

    Args:
        name: value of --eval-features.
        digest: SHA-256 of the file; none: there are no features; None: they may change with the networks.
        dimension: number of features of a sample.
        classes: number of class probabilities of a sample; 0: there are none.
        extract: function of samples; None: samples are compared without features.
        resize: clean or legacy, as pictures are resized; none: they are not.
        published: True if the Inception file is the one that published FIDs use; None: the features are others.
        probe: text that tells features that may change with the networks from those of other weights, or None.
    """

    name: str = "none"
    digest: str | None = "none"
    dimension: int = 0
    classes: int = 0
    extract: Callable[[SampleBatch], Rows] | None = dataclasses.field(default=None, repr=False, compare=False)
    resize: str = "none"
    published: bool | None = None
    probe: str | None = None

    @property
    def frechet(self) -> str:
        """Name of the Fréchet distance: only that of the Inception network may be called FID."""
        return "fid" if self.name == "inception" else "frechet"

    @property
    def has_modes(self) -> bool:
        """Whether the classes are modes of the data: those of the Inception network are another data set's."""
        return self.classes > 0 and self.name != "inception"


def open_features(text: str, spec: DataSpec, *, inception: Path | None, resize: Method, batch_size: int) -> Features:
    """Load the network of a value of --eval-features (but recipe), and call it once, so that a misfit is refused."""
    who = f"--eval-features {text}"
    if text == "none":
        return Features()
    if text == "inception":
        if not spec.is_pictures:
            raise UserError(
                f"{who}: takes pictures of 1 or 3 channels, and the data are arrays of shape {spec.shape}; name a "
                "network of your own for these, FILE.keras or recipe (its features()), or give none"
            )
        path = _inception_file(inception)
        how = resize if spec.shape[:2] != SIZE else "none"
        found = _checked(text, load_inception(path, resize), spec, sha256_of(path), how, batch_size)
        return dataclasses.replace(found, published=is_published(path))
    if not text.endswith(".keras"):
        raise UserError(
            f"{who}: expected none, inception, recipe or FILE.keras; a SavedModel or a function of your own is called "
            "by features() of a recipe: see docs/evaluation.md, Features"
        )
    network, shape = _load_keras(Path(text), who)
    network, resized = _fitted(network, shape, spec, resize, who)
    return _checked(text, network, spec, sha256_of(Path(text)), resize if resized else "none", batch_size)


def recipe_features(recipe: Recipe, nets: Nets, spec: DataSpec, *, batch_size: int) -> Features:
    """The recipe's own features, which may change with the networks; a Mistake if features() is missing or wrong."""

    def compute(
        images: tf.Tensor, labels: tf.Tensor | None, conditions: tf.Tensor | None, arrays: dict[str, tf.Tensor]
    ) -> Any:
        random = SampleRandom(0, tf.zeros((batch_size,), tf.int64))
        return features_of(recipe, nets, Batch(images, labels, random, {}, conditions=conditions, arrays=arrays))

    function = tf.function(compute, autograph=False)

    def extract(some: SampleBatch) -> Rows:
        labels, conditions = some.labels if spec.num_classes else None, some.conditions if spec.conditions else None
        parts = some.samples, labels, conditions, {name: some.arrays[name] for name in spec.array_shapes}
        whole = tf.nest.map_structure(
            lambda part: part if part is None else tf.constant(_filled(part, batch_size)), parts
        )
        (features, probabilities), count = function(*whole), len(some.numbers)
        return _first(features, count), None if probabilities is None else _first(probabilities, count)

    fixed = {name: _fixed_samples(shape) for name, shape in spec.array_shapes.items()}

    def first(place: int, sample: np.ndarray) -> Rows:
        conditions = np.zeros((1, len(spec.conditions)), np.float32)
        arrays = {name: each[place : place + 1] for name, each in fixed.items()}
        return extract(SampleBatch(np.zeros(1, np.int64), sample[None], np.zeros(1, np.int32), conditions, arrays))

    (one, classes), (other, _) = (first(*each) for each in enumerate(_fixed_samples(spec.shape)))
    found = np.concatenate([one, other])
    count = _check("recipe", found, classes)
    return Features("recipe", None, found.shape[1], count, extract, probe=_probe(found))


def _fixed_samples(shape: Sequence[int]) -> np.ndarray:
    """Two samples of noise as networks see them, always the same: float32 in [-1, 1), (2, *shape)."""
    return np.random.default_rng(0).uniform(-1, 1, (2, *shape)).astype(np.float32)


def _probe(features: np.ndarray) -> str:
    """Lengths and difference of the features of two fixed samples, (2, d): other weights give others.

    Three digits: devices and numbers of threads round in other ways.
    """
    one, other = features.astype(np.float64)
    with np.errstate(invalid="ignore"):  # features may be infinite for noise
        return " ".join(f"{np.linalg.norm(each):.2e}" for each in (one, other, one - other))


def _filled(values: np.ndarray, count: int) -> np.ndarray:
    """Values (N, ...) with their last one repeated until there are `count`, so that one shape is traced."""
    return np.concatenate([values, np.repeat(values[-1:], count - len(values), axis=0)])


def _first(rows: tf.Tensor, count: int) -> np.ndarray:
    """The first rows of a tensor, as a matrix."""
    return rows.numpy().reshape(len(rows), -1)[:count]


def _inception_file(given: Path | None) -> Path:
    """Find the file of the Inception network, or say how to get it."""
    named = given or (Path(os.environ[_VARIABLE]) if os.environ.get(_VARIABLE) else None)
    if named is None or not named.is_file():
        found = "no file is named" if named is None else f"there is no file {named}"
        raise UserError(
            f"--eval-features inception: {found}; run hvdgan features fetch on a machine with internet, and "
            f"name its file with --inception FILE or the environment variable {_VARIABLE}"
        )
    return named


def _load_keras(path: Path, who: str) -> tuple[Network, tuple[int | None, ...]]:
    """Load a Keras file without running code that it holds; returns the network and the shape of its input."""
    if not path.is_file():
        raise UserError(f"{who}: there is no such file")
    if not zipfile.is_zipfile(path):
        raise UserError(f"{who}: is not a file that Keras 3 has saved, or is cut off")
    state = random.getstate()
    try:
        network = keras.saving.load_model(path, compile=False, safe_mode=True)
        inputs = network.inputs
    except Exception as error:
        said = in_one_line(error).partition(". ")[0][:_LONGEST]
        raise UserError(
            f"{who}: Keras cannot load it: {said}; call a network with Lambda layers or classes of its own in "
            "features() of a recipe"
        ) from error
    finally:
        random.setstate(state)  # Keras draws the seeds of layers from it, also those of the run's own networks
    if len(inputs) != 1:
        raise UserError(f"{who}: has {len(inputs)} inputs; expected one, for samples")
    kind, shape = tf.as_dtype(inputs[0].dtype), tf.TensorShape(inputs[0].shape)
    if not kind.is_floating or not shape.rank:
        raise UserError(f"{who}: its input is {kind.name} of shape {shape}; expected float32 with a known rank")
    return lambda samples: network(samples, training=False), tuple(shape.as_list())


def _fitted(
    network: Network, shape: tuple[int | None, ...], spec: DataSpec, method: Method, who: str
) -> tuple[Network, bool]:
    """Prepare samples for a network; returns what takes them as they are, and whether pictures are resized.

    Pictures become float32 in [-1, 1]. They are resized if the network has another height and width, and grey becomes
    RGB if it takes three channels. RGB never becomes grey, since there is more than one way to do it.
    """
    wanted = shape[1:]
    if not spec.is_pictures:
        if len(wanted) != len(spec.shape) or any(a not in (None, b) for a, b in zip(wanted, spec.shape, strict=True)):
            raise UserError(f"{who}: takes samples of shape {_shown(wanted)}, and the data have {_shown(spec.shape)}")
        return network, False
    channels = wanted[-1] if len(wanted) == 3 else 0
    is_grey = (channels, spec.channels) == (3, 1)
    if channels not in (None, spec.channels) and not is_grey:
        raise UserError(
            f"{who}: takes samples of shape {_shown(wanted)}, and the data have pictures {_shown(spec.shape)}; RGB is "
            "not made grey: --channels 1 converts the data"
        )
    size = (wanted[0] or spec.shape[0], wanted[1] or spec.shape[1])

    def prepared(pictures: tf.Tensor) -> Any:
        numbers = resize(tf.cast(pictures, tf.float32), size, method) / 127.5 - 1.0
        return network(tf.repeat(numbers, 3, axis=-1) if is_grey else numbers)

    return prepared, size != spec.shape[:2]


def _shown(shape: Sequence[int | None]) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in shape)})"


def _checked(text: str, network: Network, spec: DataSpec, digest: str, resize: str, batch_size: int) -> Features:
    """Call a network on two samples, of which one that ignores the batch returns one row; describe what it returns."""
    traced = tf.function(lambda samples: _pair(network(samples), text), autograph=False)

    def compute(samples: np.ndarray, count: int) -> Rows:
        features, probabilities = traced(shown(samples, spec) if spec.is_pictures else samples)
        if len(features.shape) < 2 or len(features) != len(samples) or 0 in features.shape:
            raise UserError(f"--eval-features {text}: returns {features.shape} for {len(samples)} samples; {_RETURNS}")
        return _first(features, count), None if probabilities is None else _first(probabilities, count)

    def extract(some: SampleBatch) -> Rows:
        return compute(_filled(some.samples, batch_size), len(some.numbers))

    try:
        features, probabilities = compute(_fixed_samples(spec.shape), 2)
    except UserError:
        raise
    except Exception as error:
        said = in_one_line(error).partition("Arguments received by")[0][:_LONGEST]
        raise UserError(f"--eval-features {text}: fails on samples of shape {spec.shape}: {said}") from error
    classes = _check(text, features, probabilities)
    return Features(text, digest, features.shape[1], classes, extract, resize)


def _check(text: str, features: np.ndarray, probabilities: np.ndarray | None) -> int:
    """Check features of some samples and their class probabilities; returns the number of classes."""
    if (dimension := features.shape[1]) > _MOST_FEATURES:
        raise UserError(
            f"--eval-features {text}: {dimension:,} features of a sample, whose covariance would take "
            f"{dimension**2 * 8 / 1e9:.0f} GB; expected at most {_MOST_FEATURES:,}; end the network with a global "
            "pooling, or name other features, which a resumed run may do, too"
        )
    if probabilities is None:
        return 0
    some = probabilities[np.isfinite(probabilities).all(axis=1)]
    sums = some[some.any(axis=1)].sum(axis=1)  # all 0 is no class
    if len(some) and (some.min() < 0 or np.abs(sums - 1).max(initial=0) > 1e-2):
        raise UserError(
            f"--eval-features {text}: the second output is not class probabilities, which are positive and whose sum "
            "is 1, or all 0 for a sample of no class; end with a softmax"
        )
    return probabilities.shape[1]


def _pair(value: Any, text: str) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Divide what a network returns into features and class probabilities."""
    if not isinstance(value, Mapping):
        parts = list(value) if isinstance(value, tuple | list) else [value]
    elif "logits" in value and "features" in value:
        parts = [value["features"], tf.nn.softmax(tf.cast(value["logits"], tf.float32))]
    else:
        parts = [value[name] for name in ("features", "probabilities") if name in value] or list(value.values())
    if len(parts) > 2 or (isinstance(value, Mapping) and len(parts) == 2 and "features" not in value):
        raise UserError(f"--eval-features {text}: returns {described(value)}; {_RETURNS}")
    features, probabilities = [*(tf.cast(part, tf.float32) for part in parts), None][:2]
    return features, probabilities

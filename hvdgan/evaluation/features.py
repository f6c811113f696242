"""Opens what --eval-features names, and turns samples into features and class probabilities."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from hvdgan.cli.errors import RunError, UserError, in_one_line
from hvdgan.cli.files.outputs import sha256_of
from hvdgan.evaluation.feature_networks import fitted, load_function, load_keras, load_saved_model
from hvdgan.evaluation.inception import SIZE, is_published, load_inception
from hvdgan.evaluation.resizing import Method
from hvdgan.recipe.data_spec import DataSpec
from hvdgan.recipe.mistakes import described

Pair = tuple[tf.Tensor, tf.Tensor | None]
Rows = tuple[np.ndarray, np.ndarray | None]
_RETURNS = "expected features (B, d), or a pair or dict of `features` and `probabilities` (or `logits`)"
_VARIABLE = "HVDGAN_INCEPTION"


@dataclasses.dataclass(frozen=True)
class Features:
    """A function of samples that returns their features, with the facts that a record of a figure needs.

    Args:
        name: value of --eval-features.
        digest: SHA-256 of the file, of all files of a SavedModel, or of a function's source file, name and probe().
        resize: way in which pictures are resized; none: they have the network's size already.
        is_inception: True for the network whose distance is named FID.
        dimension: number of features of a sample.
        classes: number of class probabilities of a sample; 0: there are none.
        published: True if the Inception file is the one that published FIDs use; None: the features are others.
    """

    name: str
    digest: str
    resize: Literal["clean", "legacy", "none"]
    is_inception: bool
    dimension: int
    classes: int
    _compute: Callable[[np.ndarray], Rows] = dataclasses.field(repr=False, compare=False)
    published: bool | None = None

    def __call__(self, samples: np.ndarray) -> Rows:
        """Compute the features of a batch. A new batch size is traced once, so that equal sizes are fast."""
        features, probabilities = self._compute(samples)
        for what, numbers in (("features", features), ("class probabilities", probabilities)):
            if numbers is not None and not np.isfinite(numbers).all():
                bad = int((~np.isfinite(numbers)).any(axis=1).sum())
                raise RunError(f"{_flag(self.name)}: the {what} of {bad} of {len(samples)} samples are not finite")
        return features, probabilities


def open_features(text: str, spec: DataSpec, *, inception: Path | None, resize: Method) -> Features | None:
    """Load the network or function that --eval-features names, and call it once."""
    who = _flag(text)
    if text == "none":
        return None
    if text == "inception":
        if not spec.is_pictures:
            raise UserError(
                f"{who}: takes pictures of 1 or 3 channels, and the data are arrays of shape {spec.shape}; name a "
                "network of your own for these, as FILE.keras, a SavedModel or module:function, or give none"
            )
        path = _inception_file(inception)
        digest = _digest_as_recorded(path)
        how = resize if spec.shape[:2] != SIZE else "none"
        found = _checked(text, load_inception(path, resize), spec, digest, how)
        return dataclasses.replace(found, published=is_published(path))
    if text.endswith(".keras"):
        network, shape = load_keras(Path(text), who)
        digest = sha256_of(Path(text))
    elif os.path.isdir(text):
        network, shape = load_saved_model(Path(text), who)
        digest = _digest_of_folder(Path(text))
    elif re.fullmatch(r"\w+(\.\w+)*:\w+", text):
        return _open_function(text, spec)
    else:
        raise UserError(
            f"{who}: expected none, inception, recipe, FILE.keras, the folder of a SavedModel, or module:function"
        )
    network, resized = fitted(network, shape, spec, resize, who)
    return _checked(text, network, spec, digest, resize if resized else "none")


def _open_function(text: str, spec: DataSpec) -> Features:
    who = _flag(text)
    function, module = load_function(text, who)
    network, _ = fitted(function, None, spec, "clean", who)
    found = _checked(text, network, spec, "", "none")
    features, _ = found._compute(_of_kind(fixed_samples(spec), spec))
    # Two functions of one file have other features, and one may have weights of another file.
    told_by = sha256_of(Path(str(module.__file__))), text.partition(":")[2], probe(features)
    return dataclasses.replace(found, digest=hashlib.sha256("  ".join(told_by).encode()).hexdigest())


def fixed_samples(spec: DataSpec) -> np.ndarray:
    """Two samples of noise as networks see them, always the same: float32 in [-1, 1), (2, ..., C)."""
    return np.random.default_rng(0).uniform(-1, 1, (2, *spec.shape)).astype(np.float32)


def _of_kind(samples: np.ndarray, spec: DataSpec) -> np.ndarray:
    """Samples in [-1, 1) as Features takes them: pictures uint8, arrays float32."""
    return ((samples + 1) * 127.5).astype(np.uint8) if spec.is_pictures else samples


def probe(features: np.ndarray) -> str:
    """Lengths and difference of the features of two fixed samples, (2, d): other weights give others.

    Three digits: devices and numbers of threads round in other ways.
    """
    one, other = features.astype(np.float64)
    with np.errstate(invalid="ignore"):  # features may be infinite for noise
        return " ".join(f"{np.linalg.norm(each):.2e}" for each in (one, other, one - other))


def _flag(text: str) -> str:
    return f"--eval-features {text}"


def _inception_file(given: Path | None) -> Path:
    """Find the file of the Inception network, or say how to get it."""
    named = given or (Path(os.environ[_VARIABLE]) if os.environ.get(_VARIABLE) else None)
    if named is None or not named.is_file():
        found = "no file is named" if named is None else f"there is no file {named}"
        raise UserError(
            f"--eval-features inception: {found}; run python -m hvdgan.features fetch on a machine with internet, and "
            f"name its file with --inception FILE or the environment variable {_VARIABLE}"
        )
    return named


def _digest_as_recorded(path: Path) -> str:
    """SHA-256 of a file, compared with the record that hvdgan.features has written next to it, if there is one."""
    digest, record = sha256_of(path), path.with_name(f"{path.name}.sha256")
    if record.is_file() and record.read_text(errors="replace").split()[:1] != [digest]:
        raise UserError(
            f"--inception {path}: its SHA-256 is {digest}, and {record.name} has another; run python -m "
            "hvdgan.features fetch --overwrite"
        )
    return digest


def _digest_of_folder(folder: Path) -> str:
    """SHA-256 of the names and contents of all files of a folder, in hex."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = (f"{sha256_of(path)}  {path.relative_to(folder).as_posix()}\n" for path in files)
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def _checked(
    text: str,
    network: Callable[[tf.Tensor], Any],
    spec: DataSpec,
    digest: str,
    resize: Literal["clean", "legacy", "none"],
) -> Features:
    """Call a network on two samples, of which one that ignores the batch returns one row; describe what it returns."""
    first = _of_kind(fixed_samples(spec), spec)
    traced = tf.function(lambda samples: _pair(network(samples), text), autograph=False)

    def compute(samples: np.ndarray) -> Rows:
        if (samples.shape[1:], samples.dtype) != (first.shape[1:], first.dtype):
            raise ValueError(f"samples are {described(samples)}; expected {first.dtype}, each of shape {spec.shape}")
        features, probabilities = traced(samples)
        count = len(samples)
        return _rows(features, count, text), None if probabilities is None else _rows(probabilities, count, text)

    try:
        features, probabilities = compute(first)
    except RunError:
        raise
    except Exception as error:
        said = in_one_line(error).partition("Arguments received by")[0][:300]
        raise UserError(f"{_flag(text)}: fails on {len(first)} samples of shape {spec.shape}: {said}") from error
    if probabilities is not None and _cannot_be_probabilities(probabilities):
        raise UserError(
            f"{_flag(text)}: the second output is not class probabilities, which are positive and whose sum is 1; "
            "return logits in a dict, as `logits`"
        )
    classes = 0 if probabilities is None else probabilities.shape[1]
    return Features(text, digest, resize, text == "inception", features.shape[1], classes, compute)


def _pair(value: Any, text: str) -> Pair:
    """Check what a network returns, and divide it into features and class probabilities."""
    parts = [part for part in _parts(value) if part is not None]
    try:
        tensors = [tf.cast(_number(part), tf.float32) for part in parts]
    except (TypeError, ValueError):
        tensors = []
    if not 1 <= len(tensors) <= 2:
        names = f" ({', '.join(map(str, value))})" if isinstance(value, Mapping) else ""
        raise UserError(f"{_flag(text)}: returns {described(value)}{names}; {_RETURNS}")
    return tensors[0], tensors[1] if len(tensors) == 2 else None


def _parts(value: Any) -> list[Any]:
    """The features and, if there are any, the probabilities; an empty list if it is not clear which is which."""
    if not isinstance(value, Mapping):
        return list(value) if isinstance(value, tuple | list) else [value]
    if len(value) == 1:
        return list(value.values())
    if set(value) == {"output_0", "output_1"}:  # Keras names a list of outputs so in a SavedModel
        return [value["output_0"], value["output_1"]]
    if "features" not in value:
        return []
    if "logits" in value:
        return [value["features"], tf.nn.softmax(tf.cast(value["logits"], tf.float32))]
    return [value["features"], value.get("probabilities")]


def _number(part: Any) -> tf.Tensor:
    tensor = tf.convert_to_tensor(part)
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        raise TypeError
    return tensor


def _rows(tensor: tf.Tensor, count: int, text: str) -> np.ndarray:
    """Bring a result to the host as a matrix with a row for each sample."""
    numbers = tensor.numpy()
    if numbers.ndim < 2 or len(numbers) != count or not numbers.size:
        raise UserError(f"{_flag(text)}: returns {numbers.shape} for {count} samples; {_RETURNS}")
    return numbers.reshape(count, -1)


def _cannot_be_probabilities(numbers: np.ndarray) -> bool:
    return bool(np.isfinite(numbers).all() and (numbers.min() < 0 or np.abs(numbers.sum(axis=1) - 1).max() > 1e-2))

"""Loads the networks that turn samples into features: Keras files, SavedModels, and functions of a user's module."""

import os
import random
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from hvdgan.cli.errors import UserError, in_one_line
from hvdgan.evaluation.resizing import Method, resize
from hvdgan.recipe.data_spec import DataSpec
from hvdgan.recipe.loading import imported
from hvdgan.recipe.mistakes import call, of_module, similar

Network = Callable[[tf.Tensor], Any]
"""a function of samples (B, ...) float32"""
_LONGEST = 300


def load_keras(path: Path, who: str) -> tuple[Network, tuple[int | None, ...]]:
    """Load a Keras file without running code that it holds."""
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
            f"{who}: Keras cannot load it: {said}; write a network with Lambda layers or classes of its own as a "
            "SavedModel, with network.export(FOLDER)"
        ) from error
    finally:
        random.setstate(state)  # Keras draws the seeds of layers from it, also those of the run's own networks
    return lambda samples: network(samples, training=False), _input_shape(inputs, who)


def load_saved_model(folder: Path, who: str) -> tuple[Network, tuple[int | None, ...]]:
    """Load the signature `serving_default` of a SavedModel."""
    if not (folder / "saved_model.pb").is_file():
        raise UserError(f"{who}: the folder has no saved_model.pb; expected a SavedModel, as network.export() writes")
    try:
        model = tf.saved_model.load(os.fspath(folder))
        signatures = model.signatures
    except Exception as error:
        raise UserError(f"{who}: TensorFlow cannot load it: {in_one_line(error)[:_LONGEST]}") from error
    if "serving_default" not in signatures:
        raise UserError(f"{who}: has no signature serving_default; it has {', '.join(signatures) or 'none'}")
    signature = signatures["serving_default"]
    specs = signature.structured_input_signature[1]
    shape = _input_shape(list(specs.values()), who)
    ((name, one),) = specs.items()

    def network(samples: tf.Tensor) -> Any:
        assert model  # the signature holds its variables weakly
        return signature(**{name: tf.cast(samples, one.dtype)})

    return network, shape


def _input_shape(inputs: Sequence[Any], who: str) -> tuple[int | None, ...]:
    if len(inputs) != 1:
        raise UserError(f"{who}: has {len(inputs)} inputs; expected one, for samples")
    kind, shape = tf.as_dtype(inputs[0].dtype), tf.TensorShape(inputs[0].shape)
    if not kind.is_floating or not shape.rank:
        raise UserError(f"{who}: its input is {kind.name} of shape {shape}; expected float32 with a known rank")
    return tuple(shape.as_list())


def load_function(text: str, who: str) -> tuple[Network, ModuleType]:
    """Import a function."""
    module_name, _, name = text.partition(":")
    with of_module(who, module_name):
        module = imported(who, module_name, "expected module:function, FILE.keras or the folder of a SavedModel")
    function = getattr(module, name, None)
    if not callable(function) or not getattr(module, "__file__", None):
        there = similar(name, [key for key, value in vars(module).items() if callable(value)])
        where = getattr(module, "__file__", "built in")
        raise UserError(f"{who}: {name} in {module_name} is not a function; the module is {where}{there}")

    def network(samples: tf.Tensor) -> Any:
        # Inside the trace, because TensorFlow cuts off the cause of an error, which has the line.
        with of_module(who, module_name):
            return call(function, samples, what=name, wanted="it must take one tensor of samples")

    return network, module


def fitted(
    network: Network, shape: tuple[int | None, ...] | None, spec: DataSpec, method: Method, who: str
) -> tuple[Network, bool]:
    """Prepare samples for a network.

    Pictures become float32 in [-1, 1]. They are resized if the network has another height and width, and grey becomes
    RGB if it takes three channels. RGB never becomes grey, since there is more than one way to do it.
    """
    wanted = spec.shape if shape is None else shape[1:]
    fits = len(wanted) == len(spec.shape) and all(
        size in (None, own) for size, own in zip(wanted, spec.shape, strict=True)
    )
    if not spec.is_pictures:
        if not fits:
            raise UserError(f"{who}: takes samples of shape {_shown(wanted)}, and the data have {_shown(spec.shape)}")
        return network, False
    channels = wanted[-1] if len(wanted) == 3 else 0
    if channels not in (None, spec.channels) and (channels, spec.channels) != (3, 1):
        advice = (
            "; RGB is not made grey: convert the data with --channels 1" if (channels, spec.channels) == (1, 3) else ""
        )
        raise UserError(
            f"{who}: takes samples of shape {_shown(wanted)}, and the data have pictures {_shown(spec.shape)}{advice}"
        )
    size = (wanted[0] or spec.shape[0], wanted[1] or spec.shape[1])

    def prepared(pictures: tf.Tensor) -> Any:
        numbers = resize(tf.cast(pictures, tf.float32), size, method) / 127.5 - 1.0
        return network(tf.repeat(numbers, 3, axis=-1) if (channels, spec.channels) == (3, 1) else numbers)

    return prepared, size != spec.shape[:2]


def _shown(shape: Sequence[int | None]) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in shape)})"

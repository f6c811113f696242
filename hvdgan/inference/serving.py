"""Networks and what sample() computes for programs without hvdgan: in the units of the data, with the maps as JSON."""

import json
import zipfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from hvdgan.errors import UserError
from hvdgan.recipe import Batch, DataSpec, Recipe
from hvdgan.recipe.contract import drawn_by, reads
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.outputs import Arrays, drawing, sampled, with_others
from hvdgan.recipe.recipe_errors import Mistake, call
from hvdgan.recipe.sampling import SampleRandom, are_classes, as_written
from hvdgan.values.sample_values import SampleValues
from hvdgan.values.value_map import ValueMap

MAPS = "value_maps.json"
_SEED = 0
"""seed of draw(), the default of hvdgan.sample"""
Tensors = Mapping[str, tf.Tensor]


class Serving:
    """Samples of sample(), or generate() if the recipe has one, as a SavedModel computes them, in any number.

    If `in_units`, they are in the units of the data and pictures uint8, else as networks see them.
    """

    def __init__(self, recipe: Recipe, nets: Nets, *, in_units: bool) -> None:
        self._recipe, self._nets, self._in_units = recipe, nets, in_units
        self.ends: dict[str, dict[int, str]] = defaultdict(dict)
        """for each network the numbers of those of its outputs that are arrays of the samples, and the arrays' names"""
        self.inputs: dict[str, tf.TensorSpec] = {}
        """specs of the tensors that the samples are computed of, by name"""
        self._drawn: dict[str, tf.TensorSpec] = {}
        self._draws_classes = False
        try:
            tf.function(self._look_at_draws, autograph=False).get_concrete_function(tf.TensorSpec((None,), tf.int64))
            specs = {**self._drawn, **self._specs()}
            tf.function(self._look, autograph=False).get_concrete_function(specs, tf.TensorSpec((), tf.int32))
        except Mistake as mistake:
            text = f"{mistake}; an export takes any number of samples: write tf.shape(x)[0], as x.shape[0] is None"
            raise Mistake(text, mistake.at) from mistake.__cause__
        self._serve = tf.function(self._served, autograph=False)
        self.outputs: dict[str, tf.TensorSpec] = self._serve.get_concrete_function(**self.inputs).structured_outputs
        """shapes and types of the samples, by name"""
        ends = {name: "images" if name == "samples" else name for name in self.outputs}
        found = [(name, self._map_of(name, each.shape)) for name, each in self.inputs.items()]
        found += [(name, self._map_of(ends[name], each.shape)) for name, each in self.outputs.items()]
        self.mapped = [f"{name} ({each})" for name, each in found if each is not None]
        """description of each input, and of the samples, that a map brings to the units of the data"""

    def save(self, path: Path) -> None:
        """Write the SavedModel: serve() takes `inputs`, draw() takes numbers of samples and returns the draws."""
        module, signatures, functions = tf.Module(), {}, {"serve": (self._serve, self.inputs)}
        if self._drawn.keys() & self.inputs.keys():
            draw = tf.function(lambda numbers: self._draws(numbers, self.inputs), autograph=False)
            functions["draw"] = draw, {"numbers": tf.TensorSpec((None,), tf.int64)}
        for name, (function, given) in functions.items():
            traced = function.get_concrete_function(**given)
            setattr(module, name, function)
            setattr(module, f"variables_of_{name}", list(traced.variables))
            signatures["serving_default" if name == "serve" else name] = traced
        tf.saved_model.save(module, path, signatures)

    def _draws(self, numbers: tf.Tensor, names: Collection[str] | None = None) -> dict[str, Any]:
        drawn = drawn_by(self._recipe, SampleRandom(_SEED, numbers).scoped("draw"))
        return {name: each for name, each in drawn.items() if names is None or name in names}

    def _look_at_draws(self, numbers: tf.Tensor) -> None:
        for name, each in self._draws(numbers).items():
            if not tf.is_tensor(each):
                raise UserError(f"draw() gives {name} as a {type(each).__name__}; an export takes tensors alone")
            self._drawn[name] = tf.TensorSpec(each.shape, each.dtype)
            self._draws_classes |= name == "classes" and are_classes(each)

    def _specs(self) -> dict[str, tf.TensorSpec]:
        """Specs of all that samples may be computed of, besides the draws."""
        spec, found = self._recipe.data, dict[str, tf.TensorSpec]()
        if spec.num_classes and not self._draws_classes:
            found["labels"] = tf.TensorSpec((None,), tf.int32)
        if spec.conditions:
            found["conditions"] = tf.TensorSpec((None, len(spec.conditions)), tf.float32)
        if self._recipe.shows_data:
            numbers = tf.uint8 if self._in_units and spec.is_pictures else tf.float32
            shapes = {"images": spec.shape, "inputs": spec.input_shape}
            found |= {name: tf.TensorSpec((None, *each), numbers) for name, each in shapes.items() if each is not None}
            maps = spec.values.arrays if self._in_units and spec.values is not None else {}
            for name, seen in spec.array_shapes.items():
                if name in (*self._drawn, *found):
                    raise UserError(
                        f"the data have an array {name}, and an export another input of that name; rename it"
                    )
                channels = len(maps[name].channels) if name in maps else seen[-1]
                found[name] = tf.TensorSpec((None, *seen[:-1], channels), tf.float32)
        if spec.constants_shape is not None:
            found["constants"] = tf.TensorSpec((None, *spec.constants_shape), tf.float32)
        return {**found, "numbers": tf.TensorSpec((None,), tf.int64)}

    def _look(self, given: Tensors, size: tf.Tensor) -> None:
        """See what the samples are computed of, and which outputs of networks they are."""
        calls = _Calls(self._nets)
        made = self._samples(calls, given, size)
        self.inputs = {
            name: tf.TensorSpec(each.shape, each.dtype)
            for name, each in given.items()
            if any(reads(array, each) for array in made.values())
        }
        if self.inputs.keys() <= {"constants"}:  # the numbers say how many samples are wanted
            self.inputs["numbers"] = tf.TensorSpec((None,), tf.int64)
        for name, outputs in calls.made:
            found = ((place, part) for place, each in enumerate(outputs) for part in made if made[part] is each)
            self.ends[name].update(found)

    def _served(self, **given: tf.Tensor) -> Tensors:
        # Constants may have no batch of their own.
        size = next(tf.shape(each)[0] for name, each in given.items() if name != "constants")
        made = self._samples(self._nets, given, size)
        return as_written({name: self._shown(name, each) for name, each in made.items()})

    def _samples(self, nets: Nets, given: Tensors, size: tf.Tensor) -> Arrays:
        """Samples as networks see them; what is not given is 0, because they do not depend on it."""
        recipe, spec = self._recipe, self._recipe.data

        def part(name: str, shape: tuple[int, ...] | None, dtype: tf.DType = tf.float32) -> tf.Tensor | None:
            if shape is None:
                return None
            return self._seen(name, given[name]) if name in given else tf.zeros((size, *shape), dtype)

        drawn = {
            name: given[name] if name in given else tf.zeros([n or size for n in each.shape], each.dtype)
            for name, each in self._drawn.items()
        }
        labels = drawn["classes"] if self._draws_classes else part("labels", () if spec.num_classes else None, tf.int32)
        numbers = given["numbers"] if "numbers" in given else tf.zeros((size,), tf.int64)
        batch = Batch(
            part("images", spec.shape),
            labels,
            SampleRandom(_SEED, numbers).scoped("sample"),
            drawn,
            inputs=part("inputs", spec.input_shape),
            conditions=part("conditions", (len(spec.conditions),) if spec.conditions else None),
            constants=part("constants", spec.constants_shape),
            index=numbers,
            arrays={name: part(name, shape) for name, shape in spec.array_shapes.items()},
        )
        if type(recipe).generate is Recipe.generate:
            return sampled(recipe, nets, batch)
        with drawing(batch):
            made = call(recipe.generate, nets, batch, what="generate()")
        images = tf.convert_to_tensor(made["images"] if isinstance(made, dict) else made)
        return with_others(recipe, made, images, "generate()", recipe.generate)

    def _map_of(self, name: str, shape: tf.TensorShape) -> ValueMap | None:
        """The map of a part of the data, if it changes anything; pictures have none of the user's."""
        spec = self._recipe.data
        if spec.values is None or not self._in_units or (spec.is_pictures and name not in spec.array_shapes):
            return None
        return _map_in(spec.values, name, shape)

    def _seen(self, name: str, tensor: tf.Tensor) -> tf.Tensor:
        """What networks see of numbers that are given."""
        if tensor.dtype == tf.uint8:
            return tf.cast(tensor, tf.float32) / 127.5 - 1.0
        found = self._map_of(name, tensor.shape)
        return tensor if found is None else _in_double(found, tensor, forward=True)

    def _shown(self, name: str, samples: tf.Tensor) -> tf.Tensor:
        """An array of the samples as hvdgan sample writes it."""
        spec = self._recipe.data
        if not self._in_units:
            return samples
        if name == "images" and (spec.is_pictures or spec.values is None):
            return tf.cast(tf.clip_by_value(tf.round((samples + 1.0) * 127.5), 0.0, 255.0), tf.uint8)
        found = self._map_of(name, samples.shape)
        samples = samples if found is None else _in_double(found, samples, forward=False)
        if name != "images" or spec.missing is None or spec.missing.mask is None or spec.record_layout.crop is not None:
            return samples
        return tf.where(spec.missing.mask, float("nan"), samples)


class _Calls(Nets):
    """Networks that remember what each call has returned, as a list of tensors."""

    def __init__(self, nets: Nets) -> None:
        vars(self).update(vars(nets))
        self.made: list[tuple[str, list[Any]]] = []

    def _call(self, name: str, inputs: Any) -> Any:
        outputs = super()._call(name, inputs)
        self.made.append((name, keras.tree.flatten(outputs)))
        return outputs


def in_units(network: keras.Model, spec: DataSpec, ends: Mapping[int, str]) -> tuple[keras.Model, list[str]]:
    """A network in the units of the data, by Keras operations, and a description of each input and output that is.

    An input named `inputs`, `conditions`, `constants` or `images` takes numbers of the data, and outputs that are
    arrays of the samples, whose names `ends` has by their numbers, return them; all others stay as they are. The
    network itself if it has none of these.
    """
    if spec.values is None or spec.is_pictures or not getattr(network, "inputs", None):
        return network, []
    mapped: list[str] = []
    inputs = [keras.Input(batch_shape=each.shape, dtype=each.dtype, name=each.name) for each in network.inputs]
    given = []
    for each in inputs:
        found = _map_in(spec.values, each.name, each.shape)
        given.append(each if found is None else _applied(found, each, forward=True))
        mapped += [] if found is None else [f"{each.name} ({found})"]
    returned = network(given if len(given) > 1 else given[0])
    outputs = keras.tree.flatten(returned)
    for place, name in ends.items():
        found = _map_in(spec.values, name, outputs[place].shape)
        if found is not None:
            outputs[place] = _applied(found, outputs[place], forward=False)
            mapped.append(f"{'samples' if name == 'images' else name} ({found})")
    if not mapped:
        return network, []
    return keras.Model(inputs, keras.tree.pack_sequence_as(returned, outputs), name=network.name), mapped


def _map_in(values: SampleValues, name: str, shape: Sequence[int | None]) -> ValueMap | None:
    """The map of a part or an array with this name and number of channels, if it changes anything."""
    found = values.parts().get(name) or values.arrays.get(name)
    return None if found is None or found.is_identity or shape[-1] not in (len(found.channels), found.width) else found


def _applied(value_map: ValueMap, tensor: Any, *, forward: bool) -> Any:
    """Apply a map, or undo it, by Keras operations."""
    return value_map.forward_of(tensor, ops) if forward else value_map.inverse_of(tensor, ops)


def _in_double(value_map: ValueMap, tensor: tf.Tensor, *, forward: bool) -> tf.Tensor:
    # In double precision, as NumPy's.
    return tf.cast(_applied(value_map, tf.cast(tensor, tf.float64), forward=forward), tf.float32)


def described(values: SampleValues) -> dict[str, Any]:
    """The maps by the names of the parts: as text, and as steps with the numbers, channels and units."""
    parts = values.parts().items()
    return {name: None if each is None else {"map": str(each), **each.to_json()} for name, each in parts}


def list_maps(path: Path, values: SampleValues | None, applied: Sequence[str]) -> None:
    """Add the maps of a run, and what of the network is in the units of the data, to an exported file or folder.

    A .keras file is a zip in which Keras ignores other members.
    """
    if values is None:
        return
    text = json.dumps({"applied": list(applied), "value_maps": described(values)}, indent=1) + "\n"
    if path.is_dir():
        # assets.extra is the place in a SavedModel for files that TensorFlow neither writes nor loads.
        extra = path / "assets.extra" / MAPS
        extra.parent.mkdir()
        extra.write_text(text, encoding="utf-8")
        return
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(MAPS), text)  # with the same date in every file

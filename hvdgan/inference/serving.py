"""What sample() computes, as functions of tensors alone, for programs without hvdgan."""

import functools
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from hvdgan.cli.errors import UserError
from hvdgan.inference.physical import applied
from hvdgan.recipe import Recipe
from hvdgan.recipe.batch import Parts
from hvdgan.recipe.drawing import SampleRandom
from hvdgan.recipe.mistakes import Mistake, call
from hvdgan.recipe.nets import Nets
from hvdgan.recipe.results import PreparedBatch, drawn_by, reads, sampled
from hvdgan.values.value_map import ValueMap

_SEED = 0
"""seed of draw(), the default of hvdgan.sample"""
Tensors = Mapping[str, tf.Tensor]
Specs = dict[str, tf.TensorSpec]


class Serving:
    """Samples of a recipe, as a SavedModel computes them: of sample(), or of generate() if the recipe has one.

    Args:
        recipe: recipe of the samples.
        nets: its networks.
        in_units: True for numbers in the units of the data, pictures as uint8; False: as networks see them.
        count: number of samples; None: any.

    Raises:
        Mistake: the recipe cannot compute this number of samples.
    """

    def __init__(self, recipe: Recipe, nets: Nets, *, in_units: bool, count: int | None = None) -> None:
        self._recipe, self._nets, self._in_units, self._count = recipe, nets, in_units, count
        self.ends: dict[str, set[int]] = defaultdict(set)
        """for each network the numbers of those of its outputs that are the samples themselves"""
        try:
            self._look()
        except Mistake as mistake:
            if count is not None:
                raise
            Serving(recipe, nets, in_units=in_units, count=2)  # raises the same, if the reason is another
            text = f"{mistake}; an export takes any number of samples: write tf.shape(x)[0], as x.shape[0] is None"
            raise Mistake(text, mistake.at) from mistake.__cause__

    def _look(self) -> None:
        """Trace the samples, and see what they are computed of."""
        self._drawn = self._drawn_specs()
        classes = self._drawn.get("classes")  # as hvdgan.sample --class takes them
        self._draws_classes = classes is not None and classes.dtype.is_integer and classes.shape.rank == 1
        specs, found, calls = self._specs(), set[str](), _Calls(self._nets)

        def look(given: Tensors, size: tf.Tensor) -> tf.Tensor:
            samples = self._samples(calls, given, size)
            found.update(name for name in given if reads(samples, given[name]))
            for name, outputs in calls.made:
                self.ends[name] |= {place for place, each in enumerate(outputs) if each is samples}
            return samples

        tf.function(look, autograph=False).get_concrete_function(specs, tf.TensorSpec((), tf.int32))
        if found <= {"constants"}:
            found.add("numbers")  # which say how many samples are wanted
        self.inputs = {name: each for name, each in specs.items() if name in found}
        """specs of the tensors that the samples are computed of, by name"""

    @functools.cached_property
    def samples(self) -> tf.TensorSpec:
        """Shape and type of the samples."""
        return self._functions["serve"].get_concrete_function(**self.inputs).structured_outputs["samples"]

    @property
    def mapped(self) -> list[str]:
        """A description of each input, and of the samples, that a map brings to the units of the data."""
        found = {name: self._map_of(name, each.shape) for name, each in self.inputs.items()}
        found["samples"] = self._map_of("images", self.samples.shape)
        return [f"{name} ({each})" for name, each in found.items() if each is not None]

    def save(self, path: Path) -> None:
        """Write the SavedModel: serve() takes `inputs`, draw() takes numbers of samples and returns the draws."""
        module, signatures = tf.Module(), {}
        for name, function in self._functions.items():
            given = self.inputs if name == "serve" else {"numbers": tf.TensorSpec((None,), tf.int64)}
            traced = function.get_concrete_function(**given)
            setattr(module, name, function)
            setattr(module, f"variables_of_{name}", list(traced.variables))
            signatures["serving_default" if name == "serve" else name] = traced
        tf.saved_model.save(module, path, signatures)

    @functools.cached_property
    def _functions(self) -> dict[str, Any]:
        def serve(**given: tf.Tensor) -> Tensors:
            # Constants may have no batch of their own.
            size = next(tf.shape(each)[0] for name, each in given.items() if name != "constants")
            return {"samples": self._shown(self._samples(self._nets, given, size))}

        def draw(numbers: tf.Tensor) -> Tensors:
            return {name: each for name, each in self._draw(numbers).items() if name in self.inputs}

        functions = {"serve": serve, "draw": draw} if self._drawn.keys() & self.inputs.keys() else {"serve": serve}
        return {name: tf.function(each, autograph=False) for name, each in functions.items()}

    def _drawn_specs(self) -> Specs:
        specs: Specs = {}

        def look(numbers: tf.Tensor) -> None:
            for name, each in self._draw(numbers).items():
                if not tf.is_tensor(each):
                    raise UserError(f"draw() gives {name} as a {type(each).__name__}; an export takes tensors alone")
                specs[name] = tf.TensorSpec(each.shape, each.dtype)

        tf.function(look, autograph=False).get_concrete_function(tf.TensorSpec((self._count,), tf.int64))
        return specs

    def _draw(self, numbers: tf.Tensor) -> dict[str, Any]:
        return drawn_by(self._recipe, SampleRandom(_SEED, numbers).scoped("draw"))

    def _specs(self) -> Specs:
        """Specs of all that samples may be computed of."""
        spec, count, found = self._recipe.data, self._count, dict(self._drawn)
        if spec.num_classes and not self._draws_classes:
            found["labels"] = tf.TensorSpec((count,), tf.int32)
        if spec.conditions:
            found["conditions"] = tf.TensorSpec((count, len(spec.conditions)), tf.float32)
        if self._recipe.shows_data:
            numbers = tf.uint8 if self._in_units and spec.is_pictures else tf.float32
            shapes = {"images": spec.shape, "inputs": spec.input_shape}
            found |= {name: tf.TensorSpec((count, *each), numbers) for name, each in shapes.items() if each is not None}
        if spec.constants_shape is not None:
            found["constants"] = tf.TensorSpec((None, *spec.constants_shape), tf.float32)
        return {**found, "numbers": tf.TensorSpec((count,), tf.int64)}

    def _samples(self, nets: Any, given: Tensors, size: tf.Tensor) -> tf.Tensor:
        """Samples as networks see them; what is not given is 0, because they do not depend on it."""
        recipe, spec, size = self._recipe, self._recipe.data, self._count or size

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
        parts = Parts(
            part("images", spec.shape), part("inputs", spec.input_shape), part("constants", spec.constants_shape)
        )
        conditions = part("conditions", (len(spec.conditions),) if spec.conditions else None)
        batch = PreparedBatch(parts, labels, conditions, numbers, SampleRandom(_SEED, numbers), drawn).batch("sample")
        if type(recipe).generate is Recipe.generate:
            return sampled(recipe, nets, batch)
        return tf.convert_to_tensor(call(recipe.generate, nets, batch, what="generate()"))

    def _map_of(self, name: str, shape: tf.TensorShape) -> ValueMap | None:
        """The map of a part of the data, if it changes anything; pictures have none of the user's."""
        spec = self._recipe.data
        if spec.values is None or spec.is_pictures or not self._in_units:
            return None
        found = spec.values.parts().get(name)
        return None if found is None or found.is_identity or shape[-1] != len(found.channels) else found

    def _seen(self, name: str, tensor: tf.Tensor) -> tf.Tensor:
        """What networks see of numbers that are given."""
        if tensor.dtype == tf.uint8:
            return tf.cast(tensor, tf.float32) / 127.5 - 1.0
        found = self._map_of(name, tensor.shape)
        return tensor if found is None else _mapped(found, tensor, forward=True)

    def _shown(self, samples: tf.Tensor) -> tf.Tensor:
        """Samples as hvdgan.sample writes them."""
        spec = self._recipe.data
        if not self._in_units:
            return samples
        if spec.is_pictures or spec.values is None:
            return tf.cast(tf.clip_by_value(tf.round((samples + 1.0) * 127.5), 0.0, 255.0), tf.uint8)
        found = self._map_of("images", samples.shape)
        samples = samples if found is None else _mapped(found, samples, forward=False)
        if spec.missing is None or spec.missing.mask is None or spec.parts.crop is not None:
            return samples
        return tf.where(spec.missing.mask, float("nan"), samples)


class _Calls:
    """Networks that remember what each call has returned, as a list of tensors."""

    def __init__(self, nets: Nets) -> None:
        self.made: list[tuple[str, list[Any]]] = []
        self._nets = nets

    def __getattr__(self, name: str) -> Any:
        network = getattr(self._nets, name)

        def called(*inputs: Any, **keywords: Any) -> Any:
            outputs = network(*inputs, **keywords)
            self.made.append((name, keras.tree.flatten(outputs)))
            return outputs

        return called


def _mapped(value_map: ValueMap, tensor: tf.Tensor, *, forward: bool) -> tf.Tensor:
    # In double precision, as NumPy's.
    return tf.cast(applied(value_map, tf.cast(tensor, tf.float64), forward=forward), tf.float32)

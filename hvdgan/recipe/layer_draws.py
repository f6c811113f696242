"""Gives layers numbers of Random in place of their own: functions of the seed, the step and the place of the sample.

Whatever layers, losses and keras.random draw is a function of TensorFlow and of a seed: SeedGenerator.next() gives the
seed, and tf.random.stateless_normal and the like draw. While a LayerDraws is in use, next() gives seeds of Random and
leaves the generator as it is, and a draw of such a seed is this rank's part of a draw for the global batch.
"""

import collections
import contextlib
import contextvars
import dataclasses
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Not public; tests/recipe/test_layer_draws.py shuffles, draws in tf.recompute_grad, and draws in a loop.
from keras.src.backend import random as random_of_keras
from tensorflow.python.eager.record import could_possibly_record
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph

from hvdgan.recipe.draws import Random
from hvdgan.recipe.recipe_errors import Mistake

Shape = tuple[int | None, ...]
_draws: contextvars.ContextVar["LayerDraws | None"] = contextvars.ContextVar("draws", default=None)
_plain = {"normal": tf.random.stateless_normal, "uniform": tf.random.stateless_uniform}
_shapes_of_twice: "weakref.WeakKeyDictionary[keras.Layer, dict[str, list[Shape] | None]]" = weakref.WeakKeyDictionary()
_INSIDE = 0.954499736  # share of a normal distribution within two standard deviations


@contextlib.contextmanager
def using(draws: "LayerDraws | None") -> Iterator[None]:
    """Let layers draw these numbers, or their own."""
    token = _draws.set(draws)
    try:
        yield
    finally:
        _draws.reset(token)


def current() -> "LayerDraws | None":
    """The numbers that layers draw now; None if they draw their own."""
    return _draws.get()


@dataclasses.dataclass
class NetworkCall:
    """One call of a network, or all of a loss that is outside of such calls, while layers draw in it."""

    key: str
    network: keras.Layer | None = None
    inputs: Any = ()
    seeds: int = 0
    shapes: list[Shape] = dataclasses.field(default_factory=list)
    """the shapes of the draws until now"""

    @property
    def who(self) -> str:
        """A name for messages."""
        return "the loss" if self.network is None else f"network {self.key.partition('@')[0].rpartition('/')[2]}"

    @property
    def rows(self) -> int | None:
        """The number of samples in the network's inputs, if known."""
        return next((each.shape[0] for each in tf.nest.flatten(self.inputs) if _is_array(each)), None)

    def shapes_of_twice(self) -> list[Shape] | None:
        """The shapes that layers draw in a call of the network on twice as many samples; None if the call fails.

        They tell a kernel's 64 rows, which all samples share, from the 64 samples of a batch.
        """
        network, rows = self.network, self.rows
        assert network is not None

        def spec(each: Any) -> Any:
            if not _is_array(each):
                return each
            size = 2 * (rows or 1) if each.shape[0] == rows else each.shape[0]
            return tf.TensorSpec([size, *each.shape[1:]], each.dtype)

        specs = tf.nest.map_structure(spec, self.inputs)
        known, key = _shapes_of_twice.setdefault(network, {}), repr(specs)
        if key not in known:
            draws = LayerDraws(Random(0, tf.zeros((), tf.int64), 0, 2**62))

            def call(positional: Any, keywords: Any) -> None:
                draws.graph = tf.compat.v1.get_default_graph()
                with keras.StatelessScope(collect_losses=True), using(draws):
                    network(*positional, **keywords)

            known[key] = draws.call.shapes
            try:
                with tf.init_scope():
                    tf.function(call, autograph=False).get_concrete_function(*specs)
            except (ValueError, tf.errors.InvalidArgumentError):
                known[key] = None
        return known[key]


class LayerDraws:
    """The numbers that layers draw in the calls of one loss, sample() or evaluate().

    The key of a number is the network with its version, the inputs of the call, the number of such a call, and that of
    the draw in the call. So two updates that could share a call have the same numbers, computed together or not.
    """

    def __init__(
        self,
        random: Random,
        update: str = "",
        inputs: Iterable[Any] = (),
        *,
        versions: Mapping[str, str] | None = None,
        pack: int = 1,
        taped: bool = False,
    ) -> None:
        """`inputs` are tensors that all updates of the step have in common.

        versions: name of the last update of this step that has changed a network, by the network's name.
        taped: a tape records the calls, except in tf.recompute_grad.
        """
        self._update, self._versions, self._taped = update, versions or {}, taped
        self._randoms = [random.scoped("layers")]
        if pack > 1:
            first, count = random.first // pack, random.count // pack
            self._randoms.append(dataclasses.replace(self._randoms[0], first=first, count=count))
        tensors = [each for each in tf.nest.flatten([*inputs]) if tf.is_tensor(each)]
        self._names = {id(each): (str(place), each) for place, each in enumerate(tensors)}
        self._calls: collections.Counter[str] = collections.Counter()
        self.call = NetworkCall(update)
        self._seeds: list[tf.Tensor] = []
        self.graph = tf.compat.v1.get_default_graph()
        self._refused: str | None = None

    @contextlib.contextmanager
    def in_use(self, where: str = "", at: Any = None) -> Iterator[None]:
        """Draw these numbers while the block computes; a Mistake at its end, if some cannot be drawn.

        `where` begins its text, and `at` is whose line it names.
        """
        _replace_functions()
        with using(self):
            try:
                yield
            finally:
                if self._refused:
                    raise Mistake(where + self._refused, at)

    def key_of(self, name: str, inputs: Any, what: str) -> str:
        """The key of the next call of a network on inputs; `what` tells its other functions apart."""
        known = [self._names.get(id(each), ("", None))[0] for each in tf.nest.flatten(inputs) if tf.is_tensor(each)]
        scope = "" if all(known) else f"{self._update}/"
        call = f"{scope}{name}@{what}{self._versions.get(name, '')}({','.join(known)})"
        self._calls[call] += 1
        return f"{call}{self._calls[call]}"

    def name_outputs(self, key: str, outputs: Any) -> None:
        """Note that tensors are the outputs of a call that another update may make, too."""
        if not key.startswith(f"{self._update}/"):
            self._names |= {id(each): (f"{key}.{n}", each) for n, each in enumerate(tf.nest.flatten(outputs))}

    @contextlib.contextmanager
    def of_call(self, key: str, network: keras.Layer, inputs: Any) -> Iterator[NetworkCall]:
        """Let the layers of a network draw, during one call of it."""
        outside, self.call = self.call, NetworkCall(key, network, inputs)
        try:
            yield self.call
        finally:
            self.call = outside

    def seed(self) -> tf.Tensor:
        """A new seed, (2,) int32."""
        graph = tf.compat.v1.get_default_graph()
        while graph is not None and graph is not self.graph:
            if isinstance(graph, WhileBodyFuncGraph):
                self.refuse("in a loop, where each round would have the same; draw them before it")
            graph = getattr(graph, "outer_graph", None)
        if self._taped and not could_possibly_record():
            self.refuse("in tf.recompute_grad, which would draw others again; leave it out")
        self.call.seeds += 1
        self._seeds.append(self._randoms[0].seed_of(f"{self.call.key}/{self.call.seeds}"))
        return self._seeds[-1]

    def owns(self, seed: Any) -> bool:
        """Whether a seed is one of these, or computed of one."""
        own, waiting, seen = {id(each) for each in self._seeds}, [seed], set[int]()
        while waiting:
            each = waiting.pop()
            if id(each) in own:
                return True
            if isinstance(each, tf.Tensor) and hasattr(each, "graph") and id(each) not in seen:
                seen.add(id(each))
                captures = getattr(each.graph, "captures", ())  # a branch's own tensors for those from outside
                waiting += [*each.op.inputs, *(outer for outer, inner in captures if inner is each)]
        return False

    def numbers(self, kind: str, shape: Any, seed: tf.Tensor) -> tf.Tensor:
        """Draw "normal" or "uniform" numbers, float32 of this shape."""
        sizes = _static(shape)
        self.call.shapes.append(sizes)
        rows, each = self._parts(sizes)
        whole: int | None = self._randoms[0].count
        if rows is None and whole is not None:
            self.refuse("for a batch whose size is not known when a step is traced")
        # Outside of training the number of samples may be unknown, and is that of the batch.
        fits = [r for r in self._randoms if rows is None or (whole and rows and rows % r.count == 0)]
        if not fits:
            return _plain[kind](shape, seed, alg="philox")
        blocks = 1 if rows is None else rows // fits[0].count
        with using(None):
            drawn = getattr(fits[0], kind)(seed, (blocks, each, *sizes[1:]))
        if blocks > 1:
            drawn = tf.transpose(drawn, (1, 0, *range(2, drawn.shape.rank)))
        return tf.reshape(drawn, [-1 if sizes[0] is None else sizes[0], *sizes[1:]])

    def _parts(self, sizes: Shape) -> tuple[int | None, int]:
        """The samples for which the last draw is, and how many rows each has; 0: all samples share the draw.

        A loss may join real and fake samples, and a layer may fold an axis into the batch.
        """
        if self.call.network is None:
            return (sizes[0], 1) if sizes else (0, 1)
        rows, shapes, number = self.call.rows, self.call.shapes_of_twice(), len(self.call.shapes)
        if shapes is None:  # a layer is written for this number of samples
            return (rows, 1) if sizes[:1] == (rows,) else (0, 1)
        twice = shapes[number - 1] if number <= len(shapes) else ()
        if sizes == twice or (rows is None and sizes[:1] != (None,)):
            return 0, 1
        each, more = divmod((twice or (1,))[0] or 1, 2 * (rows or 1))
        if more or sizes[1:] != twice[1:] or sizes[0] not in (None, (rows or 1) * each):
            self.refuse(f"unlike those for twice as many samples: shapes {sizes} and {twice}")
            return 0, 1
        return rows, each

    def refuse(self, what: str) -> None:
        """Note why a draw is impossible."""
        # Raised at the end: Keras adds lines to an error in a layer.
        self._refused = self._refused or f"{self.call.who} draws numbers {what}"


def _is_array(value: Any) -> bool:
    return isinstance(value, tf.Tensor | np.ndarray) and len(value.shape) > 0


def _static(shape: Any) -> Shape:
    """The sizes of a shape, numbers or tensors, as far as they are known."""
    shape = tf.convert_to_tensor(shape, tf.int32)
    known = tf.get_static_value(shape)
    return tuple(tf.fill(shape, False).shape) if known is None else tuple(map(int, known))


def _normal(
    draws: LayerDraws, shape: Any, seed: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = tf.float32, **_: Any
) -> tf.Tensor:
    return tf.cast(draws.numbers("normal", shape, seed), dtype) * tf.cast(stddev, dtype) + tf.cast(mean, dtype)


def _truncated_normal(
    draws: LayerDraws, shape: Any, seed: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = tf.float32, **_: Any
) -> tf.Tensor:
    numbers = 2**0.5 * tf.math.erfinv(_INSIDE * (2.0 * draws.numbers("uniform", shape, seed) - 1.0))
    return tf.cast(numbers, dtype) * tf.cast(stddev, dtype) + tf.cast(mean, dtype)


def _uniform(
    draws: LayerDraws, shape: Any, seed: Any, minval: Any = 0, maxval: Any = None, dtype: Any = tf.float32, **_: Any
) -> tf.Tensor:
    dtype, numbers = tf.as_dtype(dtype), draws.numbers("uniform", shape, seed)
    if dtype.is_integer:
        low, high = (tf.cast(each, tf.float64) for each in (minval, dtype.max if maxval is None else maxval))
        return tf.cast(tf.floor(low + (high - low) * tf.cast(numbers, tf.float64)), dtype)
    if dtype in (tf.float16, tf.bfloat16):  # in which the largest numbers would be rounded up to 1
        steps = 2.0 ** (10 if dtype == tf.float16 else 7)
        numbers = tf.floor(numbers * steps) / steps
    low, high = (tf.cast(each, dtype) for each in (minval, 1 if maxval is None else maxval))
    return tf.cast(numbers, dtype) * (high - low) + low


def _categorical(draws: LayerDraws, logits: Any, num_samples: int, seed: Any, dtype: Any = None, **_: Any) -> tf.Tensor:
    logits = tf.convert_to_tensor(logits)
    uniform = draws.numbers("uniform", [tf.shape(logits)[0], num_samples, logits.shape[1]], seed)
    gumbel = -tf.math.log(-tf.math.log(tf.maximum(uniform, 2.0**-24)))
    return tf.argmax(tf.cast(logits, tf.float32)[:, None] + gumbel, axis=-1, output_type=dtype or tf.int64)


def _dropout(draws: LayerDraws, x: Any, rate: Any, seed: Any, noise_shape: Any = None, **_: Any) -> tf.Tensor:
    x = tf.convert_to_tensor(x)
    if isinstance(rate, int | float) and rate == 0:
        return x
    whole = tf.shape(x)
    if noise_shape is not None and not tf.is_tensor(noise_shape):
        noise_shape = [whole[axis] if size is None else size for axis, size in enumerate(noise_shape)]
    keeps = draws.numbers("uniform", whole if noise_shape is None else noise_shape, seed) >= tf.cast(rate, tf.float32)
    return tf.where(keeps, x / tf.cast(1 - rate, x.dtype), tf.zeros((), x.dtype))


@functools.cache
def _replace_functions() -> None:
    """Put functions into TensorFlow and Keras that draw as before, except while a LayerDraws is in use."""

    def replace(place: Any, name: str, new: Callable[..., tf.Tensor], *, makes_seed: bool = False) -> None:
        plain = getattr(place, name)
        signature = inspect.signature(plain)

        @functools.wraps(plain)
        def either(*positional: Any, **keywords: Any) -> Any:
            draws = _draws.get()
            if draws is None:
                return plain(*positional, **keywords)
            given = signature.bind(*positional, **keywords).arguments
            if makes_seed:
                given["seed"] = draws.seed()
            return new(draws, **given) if draws.owns(given["seed"]) else plain(*positional, **keywords)

        setattr(place, name, either)

    def refuse(draws: LayerDraws, shape: Any, **_: Any) -> tf.Tensor:
        draws.refuse("of a gamma, beta, binomial or Poisson distribution; draw uniform ones")
        return tf.ones(shape)

    for name in ("gamma", "binomial", "poisson"):
        replace(tf.random, f"stateless_{name}", refuse)
    of_both: dict[str, Callable[..., tf.Tensor]] = {
        "normal": _normal,
        "uniform": _uniform,
        "truncated_normal": _truncated_normal,
        "categorical": _categorical,
    }
    for name, new in of_both.items():
        replace(tf.random, f"stateless_{name}", new)
        replace(tf.random, name, new, makes_seed=True)
    replace(tf.nn.experimental, "stateless_dropout", _dropout)
    replace(tf.nn, "dropout", _dropout, makes_seed=True)

    plain_next, plain_shuffle = keras.random.SeedGenerator.next, random_of_keras.shuffle

    @functools.wraps(plain_next)
    def next_seed(self: keras.random.SeedGenerator, ordered: bool = True) -> tf.Tensor:
        draws = _draws.get()
        return plain_next(self, ordered) if draws is None else draws.seed()

    @functools.wraps(plain_shuffle)
    def shuffle(x: Any, axis: int = 0, seed: Any = None) -> tf.Tensor:
        if (draws := _draws.get()) is not None and axis == 0:
            draws.refuse("to shuffle samples, of which a rank has only its own; leave it out")
        return plain_shuffle(x, axis, seed)

    keras.random.SeedGenerator.next, random_of_keras.shuffle = next_seed, shuffle

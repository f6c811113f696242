"""Calls what a recipe computes of its networks, samples, features and metrics, and checks what it returns."""

import contextlib
from typing import Any

import tensorflow as tf

from hvdgan.errors import UserError
from hvdgan.recipe.batch import Batch
from hvdgan.recipe.contract import FLOAT32, HALF, IN_NETS, SAMPLES, float32_of, named, reads, tensor_of
from hvdgan.recipe.layer_draws import LayerDraws
from hvdgan.recipe.nets import Nets, give_state
from hvdgan.recipe.recipe import Recipe
from hvdgan.recipe.recipe_errors import Mistake, call, check, described

Arrays = dict[str, tf.Tensor]
"""arrays of N samples by name, (N, ...) float32: "images", the samples themselves, and others that a recipe makes"""
_WRITTEN = ("samples", "index", "file", "allow_pickle")
"""names in files of samples that no further array can have"""
METRICS = "a dict of metrics by name, (B,) each, one number per image"


def drawing(batch: Batch) -> contextlib.AbstractContextManager[None]:
    """Let layers draw numbers of the batch's samples."""
    return LayerDraws(batch.random, inputs=[vars(batch)]).in_use()


def sampled(recipe: Recipe, nets: Nets, batch: Batch) -> Arrays:
    """Call sample(), and check that it returns pictures, or samples of the data's shape, alone or in a dict."""
    give_state(nets, batch)
    with drawing(batch):
        given = call(recipe.sample, nets, batch, what="sample()", wanted=IN_NETS)
    pictures, shape = recipe.data.is_pictures, recipe.data.shape
    samples, what = tensor_of(_images_of(given)), f"sample() returns {_described(given)}"
    if samples is not None and samples.dtype.name in HALF:
        raise Mistake(f"{what} of a network in {samples.dtype.name}; {FLOAT32}", recipe.sample)
    shapes = ((None, None, None, 1), (None, None, None, 3)) if pictures else ((None, *shape),)
    wanted = SAMPLES if pictures else f"samples (N, {', '.join(map(str, shape))}), of the data's shape"
    fits = samples is not None and samples.dtype.is_floating and any(map(samples.shape.is_compatible_with, shapes))
    if not (fits or pictures) and type(recipe).__module__.startswith("hvdgan.recipes."):  # such as pix2pix, in a row
        raise UserError("the recipe takes 8-bit pictures, and --data has other arrays; store them as uint8")
    check(fits, f"{what}; it must return {wanted}", recipe.sample)
    made = with_others(recipe, given, samples, "sample()", recipe.sample)
    _refuse_blank_data(recipe, batch, made, "sample()", recipe.sample)
    return made


def _images_of(given: Any) -> Any:
    return given.get("images") if isinstance(given, dict) else given


def _described(given: Any) -> str:
    """What is wrong with the samples of sample() or generate(), which may stand in a dict."""
    return f'a dict whose "images" is {described(given.get("images"))}' if isinstance(given, dict) else described(given)


def with_others(recipe: Recipe, given: Any, samples: tf.Tensor, what: str, at: Any) -> Arrays:
    """Samples, and the other arrays of a dict that sample() or generate() has given; one of the data has its shape."""
    made = {"images": samples}
    for name, value in given.items() if isinstance(given, dict) else ():
        if name == "images":
            continue
        can_be_written = isinstance(name, str) and name.isidentifier() and name not in _WRITTEN
        is_free = can_be_written and name not in recipe.data.conditions
        check(is_free, f"{what} gives an array the name {name!r}, which files of samples cannot hold; rename it", at)
        array, shape = float32_of(value), recipe.data.array_shapes.get(name)
        fits = False
        if array is not None and array.shape.rank:
            others = array.shape[1:] if shape is None else shape
            fits = array.shape.is_compatible_with((samples.shape[0], *others))
        must = f"(N, {'...' if shape is None else ', '.join(map(str, shape))}), as many as its images"
        check(fits, f"{what} gives {name} as {described(value)}; it must be numbers {must}", at)
        made[name] = array
    return made


def _refuse_blank_data(recipe: Recipe, batch: Batch, made: Arrays, what: str, at: Any) -> None:
    """Refuse samples that are computed of the data, if the recipe does not say so: it gets blank ones."""
    of_domains = ((f"domains[{name!r}].images", each.images) for name, each in batch.domains.items())
    arrays = ((f"arrays[{name!r}]", each) for name, each in batch.arrays.items())
    for part, given in (("images", batch.images), ("inputs", batch.inputs), *arrays, *of_domains):
        if given is None or recipe.shows_data or tf.executing_eagerly():
            continue
        if any(reads(each, given) for each in made.values()):
            advice = "which is blank for samples; set shows_data = True in the class"
            raise Mistake(f"{what} reads batch.{part}, {advice}", at)


def generated(recipe: Recipe, nets: Nets, batch: Batch) -> Arrays:
    """Call generate(), and check that it returns samples of the data's shape, alone or in a dict."""
    shape, most = recipe.data.shape, batch.images.shape[0]
    give_state(nets, batch)
    with drawing(batch):
        given = call(recipe.generate, nets, batch, what="generate()", wanted=IN_NETS)
    own = type(recipe).generate is not Recipe.generate
    what, at = ("generate()", recipe.generate) if own else ("sample()", recipe.sample)
    samples = float32_of(_images_of(given))
    counts = range(1, most + 1)
    fits = samples is not None and samples.shape.is_compatible_with((None, *shape)) and samples.shape[0] in counts
    wanted = f"samples (N, {', '.join(map(str, shape))}), of the data's shape, at most {most} for a batch of {most}"
    hint = "" if own else "; write generate(self, nets, batch), which does"
    check(fits, f"--eval-samples: {what} returns {_described(given)}, and not {wanted}{hint}", at)
    made = with_others(recipe, given, samples, what, at)
    _refuse_blank_data(recipe, batch, made, what, at)
    return made


def features_of(recipe: Recipe, nets: Nets, batch: Batch) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Call features(), and return features (B, d) and class probabilities (B, C) or None, float32."""
    wanted = "it must return features (B, d), or a pair of features and class probabilities (B, C)"
    is_there = type(recipe).features is not Recipe.features
    check(is_there, f"--eval-features recipe: it has no features(self, nets, batch); {wanted}")
    # Samples of another program, or other data, may lack what the data of the run have.
    of_data = {"labels": recipe.data.num_classes, "conditions": recipe.data.conditions}
    missing = [name for name, has in of_data.items() if has and getattr(batch, name) is None]
    missing += [f"arrays[{name!r}]" for name in recipe.data.array_shapes if name not in batch.arrays]
    what = f"features(), without {' and '.join(missing)} for these samples," if missing else "features()"
    with drawing(batch):
        given = call(recipe.features, nets, batch, what=what, wanted=IN_NETS)
    found = [float32_of(each) for each in (given if isinstance(given, tuple) else (given,))]
    rows = (batch.images.shape[0], None)
    fits = 1 <= len(found) <= 2 and all(each is not None and each.shape.is_compatible_with(rows) for each in found)
    check(fits, f"features() returns {described(given)}; {wanted}", recipe.features)
    return found[0], found[1] if len(found) == 2 else None


def measured(recipe: Recipe, nets: Nets, batch: Batch, count: int) -> dict[str, tf.Tensor]:
    """Call evaluate(), and return its metrics by name, (count,) float32 each."""
    at = recipe.evaluate
    give_state(nets, batch)
    with drawing(batch):
        metrics = named(at, nets, batch, what="evaluate()", kind=object, must=METRICS, takes="(self, nets, batch)")
    values = {name: float32_of(metric) for name, metric in metrics.items()}
    for name, value in values.items():
        fits = value is not None and value.shape.is_compatible_with((count,))
        check(fits, f"evaluate() returns {name} as {described(metrics[name])}; it must return {METRICS}", at)
    return values

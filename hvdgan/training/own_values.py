"""What a loss computes of the samples of one rank, where all ranks must have the same; several ranks refuse it."""

from collections.abc import Iterator, Mapping, Sequence

import keras
import tensorflow as tf

from hvdgan.networks.layers import own_means_of
from hvdgan.recipe.batch import State
from hvdgan.recipe.contract import reads
from hvdgan.recipe.recipe_errors import Mistake
from hvdgan.recipe.stages import Update

_OF_ALL = ("Horovod", "whole_batch")
"""types and names of the operations that give all ranks the same; one rank has only the latter"""


def own_state(
    new: Mapping[str, tf.Tensor],
    declared: Mapping[str, State],
    samples: Sequence[tf.Tensor],
    update: Update,
    where: str,
) -> Iterator[Mistake]:
    """Each new value of state of all ranks that is computed of the samples of one; `where` begins the messages."""
    for name in (name for name in new if not declared[name].per_sample):
        if any(reads(new[name], each, _OF_ALL) for each in samples):
            what = f"{where}: the loss computes the state {name}, which all ranks share, of the samples of one rank"
            advice = "compute it by batch.mean, batch.sum or batch.gather, or declare it with per_sample=True"
            yield Mistake(f"{what}; {advice}", update.loss)


def own_means(
    loss: tf.Tensor, networks: Sequence[keras.Model], samples: Sequence[tf.Tensor], where: str
) -> Iterator[Mistake]:
    """Each mean of one rank that a loss has moved in these networks, and reads; `where` begins the messages."""
    captured = {id(outer): inner for outer, inner in loss.graph.captures}
    assigned = [each for each in loss.graph.get_operations() if each.type.startswith("Assign")]
    for layer, variable in (each for network in networks for each in own_means_of(network)):
        read = captured.get(id(variable.value.handle))
        new = [each.inputs[1] for each in assigned if each.inputs[0] is read]
        if new and reads(loss, read) and any(reads(each, part, _OF_ALL) for each in new for part in samples):
            what = f"{where}: the loss reads {variable.path}, a mean over the samples of one rank"
            advice = 'leave synchronization="on_read" out, so that it is a mean over those of all ranks'
            yield Mistake(f"{what}; {advice}", type(layer))

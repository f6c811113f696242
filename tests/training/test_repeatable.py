"""Random numbers that a resumed run would not repeat, and unsaved state, are refused before the first step."""

import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.cli.errors import UserError
from tiny import Tiny

SHAPE = (16, 8)


def within_cond(compute, inputs):
    return tf.cond(tf.reduce_sum(inputs) < 1e9, lambda: compute(inputs), lambda: 2.0 * compute(inputs))


def within_function(compute, inputs):
    return tf.function(lambda: compute(inputs), autograph=False)()


def within_loop(compute, inputs):
    """Call it twice, so that the statistics of an owned network move twice."""
    body = lambda turn, total: (turn + 1, total + compute(inputs))  # noqa: E731
    return tf.while_loop(lambda turn, _: turn < 2, body, (0, tf.constant(0.0)))[1]


def tf_normal():
    return tf.random.normal(SHAPE, seed=3)


DRAWS = {
    "RandomShuffle": lambda: tf.random.shuffle(tf.ones(SHAPE)),
    "Multinomial": lambda: tf.cast(tf.random.categorical(tf.zeros(SHAPE), 8), tf.float32),
    "RngReadAndSkip|Stateful\\w+": lambda: tf.random.get_global_generator().normal(SHAPE),
}


class Drawing(Tiny):
    """The discriminator's loss has noise that `noise` draws."""

    noise = staticmethod(tf_normal)

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        return loss + tf.reduce_mean(type(self).noise()), metrics


def drawing(noise):
    return type("Drawing", (Drawing,), {"noise": staticmethod(noise)})


@pytest.mark.parametrize("operation", DRAWS)
def test_each_kind_of_draw_is_refused(operation):
    with pytest.raises(UserError, match=rf"update judge \(test_repeatable.py, line \d+\): ({operation}) draws"):
        tiny_run(drawing(DRAWS[operation]))


@pytest.mark.parametrize(("within", "accumulate"), [(within_cond, 1), (within_function, 2), (within_loop, 1)])
def test_it_is_found_in_branches_loops_functions_and_micro_batches(within, accumulate):
    recipe = drawing(lambda: within(lambda _: tf.reduce_mean(tf_normal()), tf.zeros(())))
    with pytest.raises(UserError, match=r"adversarial, update judge \(test_repeatable.py, .* RandomStandardNormal"):
        tiny_run(recipe, accumulate=accumulate)


class InEvaluate(Tiny):
    def evaluate(self, nets, batch):
        return {"noise": tf.random.normal((batch.images.shape[0],))}


class Remembering(Tiny):
    """A moving mean that is the recipe's own."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.mean = tf.Variable(0.0, name="mean_logit")

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        within_cond(self.mean.assign_add, metrics["real"])
        return loss - self.mean, metrics


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (InEvaluate, r"recipe InEvaluate: evaluate\(\) \(test_repeatable.py, line .*RandomStandardNormal draws"),
        (
            Remembering,
            r"\(test_repeatable.py, line .*: it changes the variable mean_logit, which no checkpoint holds",
        ),
    ],
)
def test_wherever_a_recipe_draws_or_remembers(recipe, expected):
    with pytest.raises(UserError, match=expected):
        tiny_run(recipe)


class Reading(Tiny):
    """Draws without state, and a variable outside of the networks that it only reads."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scale = tf.Variable(0.5)

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        noise = tf.random.stateless_normal((3,), tf.stack([batch.random.step, 1]))
        return self.scale * loss + tf.reduce_mean(noise), metrics


def test_what_depends_on_the_step_alone_and_what_is_read_are_allowed():
    run = tiny_run(Reading)
    _, finite = stage_step(run)(0, 0, data_of(run))
    assert all(finite)

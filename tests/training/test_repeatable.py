"""Random numbers that a resumed run would not repeat, and unsaved state, are refused before the first step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from building import data_of, stage_step, tiny_run
from hvdgan.errors import UserError
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


def poisson():
    return tf.random.poisson(SHAPE, 1.0, seed=3)


DRAWS = {
    "RandomShuffle": lambda: tf.random.shuffle(tf.ones(SHAPE)),
    "RandomGamma": lambda: tf.random.gamma(SHAPE, 2.0),
    "RngReadAndSkip|Stateful\\w+": lambda: tf.random.get_global_generator().normal(SHAPE),
}


class Drawing(Tiny):
    """The discriminator's loss has noise that `noise` draws."""

    noise = staticmethod(poisson)

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
    recipe = drawing(lambda: within(lambda _: tf.reduce_mean(poisson()), tf.zeros(())))
    with pytest.raises(UserError, match=r"adversarial, update judge \(test_repeatable.py, .* RandomPoisson"):
        tiny_run(recipe, accumulate=accumulate)


class InEvaluate(Tiny):
    def evaluate(self, nets, batch):
        return {"noise": tf.random.poisson((batch.images.shape[0],), 1.0)}


class Remembering(Tiny):
    """A moving mean that is the recipe's own."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.mean = tf.Variable(0.0, name="mean_logit")

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        within_cond(self.mean.assign_add, metrics["real"])
        return loss - self.mean, metrics


class Reading(Tiny):
    """Draws without state, and what is outside of the networks and nothing trains: numbers, and a frozen layer."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.scale, self.classes = tf.Variable(0.5, trainable=False), tf.Variable([1, 2])
        head = keras.layers.Dense(3)
        head.build((None, 1))
        head.trainable = False
        self.head = lambda x: head(x)

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        noise = tf.random.stateless_normal((3,), tf.stack([batch.random.step, 1]))
        read = tf.reduce_mean(self.head(noise[:, None])) + tf.cast(self.classes[0], tf.float32)
        return self.scale * loss + tf.reduce_mean(noise) + read, metrics


class Measuring(Tiny):
    """A layer that metrics use, and no loss."""

    def networks(self):
        self.head = keras.layers.Dense(3)
        self.head.build((None, 64))
        return super().networks()

    def evaluate(self, nets, batch):
        return {"norm": tf.norm(self.head(tf.reshape(batch.images, (-1, 64))), axis=1)}


@pytest.mark.parametrize("recipe", [Reading, Measuring])
def test_what_depends_on_the_step_alone_and_what_is_read_are_allowed(recipe):
    run = tiny_run(recipe)
    _, finite = stage_step(run)(0, 0, data_of(run))
    assert all(finite)


class Weighted(Tiny):
    """A weight of the loss that should be learnt, beside the networks."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.log_variance = self.made()

    def made(self):
        return tf.Variable(0.0, name="log_variance")

    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        return within_cond(lambda loss: tf.exp(-self.log_variance) * loss + self.log_variance, loss), metrics


class OfKeras(Weighted):
    def made(self):
        return keras.Variable(0.0, name="log_variance")


class Beside(Measuring):
    def judge(self, nets, batch):
        loss, metrics = super().judge(nets, batch)
        return loss + tf.reduce_mean(self.head(tf.reshape(batch.images, (-1, 64)))), metrics


@pytest.mark.parametrize(("recipe", "name"), [(Weighted, "log_variance"), (OfKeras, "log_variance"), (Beside, "dense")])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_trainable_variable_that_no_network_holds_is_refused(recipe, name, accumulate):
    with pytest.raises(UserError, match=rf"update judge \(test_repeatable.py.* reads the variable {name}.* trainable"):
        tiny_run(recipe, accumulate=accumulate)


class Following(Tiny):
    """A frozen network whose weights a loss moves towards those of the generator."""

    def networks(self):
        networks = super().networks()
        self.student, self.teacher = networks["generator"], keras.models.clone_model(networks["generator"])
        self.teacher.trainable = False
        return {**networks, "teacher": self.teacher}

    def fool(self, nets, batch):
        for old, new in zip(self.teacher.weights, self.student.weights, strict=True):
            old.assign(0.9 * old + 0.1 * new)
        return super().fool(nets, batch)


class Around(keras.optimizers.SGD):
    """Does not list the variables of the optimizer inside."""

    def build(self, variables):
        super().build(variables)
        self.inner = keras.optimizers.Adam()
        self.inner.build(variables)

    def apply(self, gradients, variables=None):
        self.inner.apply(gradients, variables)


class Wrapped(Tiny):
    def optimizers(self):
        return {**super().optimizers(), "generator": Around(1e-3)}


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (InEvaluate, r"recipe InEvaluate: evaluate\(\) \(test_repeatable.py, line .*RandomPoisson\w* draws"),
        (Remembering, r"\(test_repeatable.py, line .* it changes the variable mean_logit, which no checkpoint holds"),
        (Following, r"which no checkpoint holds; .*nets.averaged"),
        (Wrapped, r"which no checkpoint holds; .*property `variables`"),
    ],
)
def test_wherever_a_recipe_draws_or_changes_what_no_checkpoint_holds(recipe, expected):
    with pytest.raises(UserError, match=expected):
        tiny_run(recipe)


def in_numpy(*, stateful):
    return lambda: tf.numpy_function(lambda: np.float32(0), [], tf.float32, stateful=stateful)


def test_python_in_a_loss_is_warned_of_unless_it_is_said_to_have_no_state(capsys):
    tiny_run(drawing(in_numpy(stateful=False)))
    assert "Python" not in capsys.readouterr().err
    tiny_run(drawing(in_numpy(stateful=True)), seed=1)
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "Python" in each]
    assert "update judge (test_repeatable.py" in line and "no checkpoint holds" in line

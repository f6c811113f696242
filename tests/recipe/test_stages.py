"""Stages and updates are data; those that cannot run are refused. Modules: recipe.stage_plan"""

import dataclasses
import re

import pytest

from hvdgan.errors import UserError
from hvdgan.recipe.schedule import Schedule
from hvdgan.recipe.stage_plan import checked_stages
from hvdgan.recipe.stages import Stage, Update


def loss(nets, batch):
    return 0.0, {}


JUDGE = Update("judge", owns=["discriminator"], loss=loss)
FOOL = Update("fool", owns=["generator"], loss=loss, every=3)
NETWORKS = ["generator", "discriminator"]


def test_every_counts_within_the_stage_and_a_critic_goes_first():
    stage = Stage("both", 7, [JUDGE, FOOL])
    names = [[update.name for update in stage.due(step)] for step in range(7)]
    assert names == [["judge"], ["judge"], ["judge", "fool"]] * 2 + [["judge"]]


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: [Stage("s", 0, [JUDGE])], "stage s: 0 steps; expected a whole number, at least 1"),
        (lambda: [Stage("s", 5, [JUDGE])], "no update owns generator"),
        (lambda: [Update("u", owns=[], loss=loss)], "update u: owns is a list of 0; it must be a list of names"),
        (lambda: [Update("u", owns=["generator"], loss=loss(None, None))], "loss is a tuple of 2; it must be a func"),
        (lambda: [Stage("s", 5, [JUDGE, dataclasses.replace(FOOL, owns=["critic"])])], "owns critic, and networks()"),
        (lambda: [Stage("s", 2, [JUDGE, FOOL])], "every is 3; it must be from 1 to the stage's 2 steps"),
        (lambda: dataclasses.replace(JUDGE, learning_rate=0.0), "update judge: learning_rate is 0.0; it must be above"),
        (lambda: dataclasses.replace(JUDGE, clip_value=0.0), "update judge: clip_value is 0.0; it must be a number ab"),
        (lambda: dataclasses.replace(JUDGE, clip_weights="1"), "update judge: clip_weights is '1'; it must be a numbe"),
        (lambda: dataclasses.replace(JUDGE, clip_norm=1, clip_value=1), "judge: has clip_norm and clip_value; leave "),
        (lambda: Schedule(1e-3, 0, "cos"), "kind must be linear, cosine, exponential, constant"),
        (lambda: Schedule(1, every=2, epochs=1), "leave out every or epochs"),
        (lambda: Schedule(1, epochs=0), "every and epochs from 1 up"),
        (lambda: Schedule(1, kind="cosine"), "cosine needs an end"),
        (lambda: Schedule(1, 0, "exponential"), "exponential needs start, and end or factor, above 0"),
        (
            lambda: dataclasses.replace(JUDGE, betas=(0, Schedule(0.9, 1))),
            "betas is a tuple of 2; it must be two numbers",
        ),
        (lambda: [Stage("s", 5, [JUDGE], schedules={"level": 0.5})], "level is 0.5; it must be a Schedule"),
        (lambda: [Stage("s", 5, [JUDGE], schedules={"augment": Schedule(0, 2)})], "augment is from 0 to 1"),
    ],
)
def test_stages_that_cannot_run_are_refused_by_name(make, complaint):
    with pytest.raises(UserError, match=re.escape(complaint)):
        checked_stages(make(), NETWORKS)

"""Stages and updates are data; those that cannot run are refused.

Modules: recipe.stage_checks, recipe.schedule.
"""

import dataclasses
import re

import pytest
from hvdgan.recipe.stage_checks import checked_stages

from hvdgan.cli.errors import UserError
from hvdgan.recipe.stages import LearningRate, Stage, Update


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
    ("stages", "complaint"),
    [
        ([Stage("s", 0, [JUDGE])], "stage s: 0 steps"),
        ([Stage("s", 5, [JUDGE]), Stage("s", 5, [FOOL])], "stage s is named twice"),
        ([Stage("s", 5, [JUDGE, JUDGE, FOOL])], "stage s: update judge is named twice"),
        ([Stage("s", 5, [JUDGE])], "no update owns generator"),
        ([Stage("s", 5, [JUDGE, Update("u", owns=[], loss=loss)])], "update u: owns is \\[\\]"),
        ([Stage("s", 5, [JUDGE, Update("u", owns=["critic"], loss=loss)])], "owns critic, and networks\\(\\) returns"),
        ([Stage("s", 2, [JUDGE, FOOL])], "every is 3; it must be from 1 to the stage's 2 steps"),
        ([Stage("two words", 5, [JUDGE, FOOL])], "stage two words: a name"),
    ],
)
def test_a_schedule_that_cannot_run_is_refused_by_name(stages, complaint):
    with pytest.raises(UserError, match=complaint):
        checked_stages(stages, NETWORKS)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"learning_rate": 0.0}, "the learning rate is 0.0; it must be above 0"),
        ({"learning_rate": LearningRate(-1.0)}, "the learning rate is -1.0"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0; it must be above 0"),
        ({"learning_rate": LearningRate(1e-3, "cos")}, "decay is 'cos'; it must be constant, linear or cosine"),
        ({"learning_rate": LearningRate(1e-3, final=-1.0)}, "final=-1.0.* final and warmup_steps must be at least 0"),
        ({"learning_rate": LearningRate(1e-3, warmup_steps=-1)}, "warmup_steps=-1.* must be at least 0"),
    ],
)
def test_numbers_and_words_that_cannot_be_are_refused(changes, complaint):
    with pytest.raises(UserError, match=f"^stage both, update judge: .*{complaint}"):
        checked_stages([Stage("both", 9, [dataclasses.replace(JUDGE, owns=NETWORKS, **changes)])], NETWORKS)


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ("third=5", '--stages: "third=5" is not NAME=STEPS with a stage of the recipe, which are both=9'),
        ("both=-1", '--stages: "both=-1" is not'),
        ("both=2", "every is 3; it must be from 1 to the stage's 2 steps"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(choice, complaint):
    with pytest.raises(UserError, match=re.escape(complaint)):
        checked_stages([Stage("both", 9, [JUDGE, FOOL])], NETWORKS, choice)

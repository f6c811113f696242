"""The schedule maps global steps to stages, and --stages chooses among them."""

import json
import re

import pytest

from hvdgan.cli.errors import UserError
from hvdgan.recipe.schedule import Schedule
from hvdgan.recipe.stage_checks import checked_stages
from hvdgan.recipe.stages import Stage, Update


def loss(nets, batch):
    return 0.0, {}


JUDGE = Update("judge", owns=["discriminator"], loss=loss)
FOOL = Update("fool", owns=["generator"], loss=loss, every=3)
NETWORKS = ["generator", "discriminator"]


def test_global_steps_fall_into_the_stages_in_order():
    schedule = Schedule(checked_stages([Stage("first", 3, [JUDGE]), Stage("second", 3, [FOOL])], NETWORKS))
    assert schedule.total_steps == 6
    positions = [schedule.at(step) for step in range(6)]
    assert [(at.index, at.stage.name, at.stage_step) for at in positions] == [
        (0, "first", 0),
        (0, "first", 1),
        (0, "first", 2),
        (1, "second", 0),
        (1, "second", 1),
        (1, "second", 2),
    ]


def test_the_command_line_skips_shortens_reorders_and_repeats_stages():
    stages = [Stage("first", 50, [JUDGE]), Stage("second", 60, [JUDGE, FOOL])]
    schedule = Schedule(checked_stages(stages, NETWORKS, "second=5, first=2,second=4"))
    assert [(stage.name, stage.steps) for stage in schedule.stages] == [("second", 5), ("first", 2), ("second", 4)]
    assert [schedule.at(step).index for step in (4, 5, 7)] == [0, 1, 2]
    assert schedule.stages[0].updates == stages[1].updates


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
        Schedule(checked_stages([Stage("both", 9, [JUDGE, FOOL])], NETWORKS, choice))


def test_a_stage_that_has_ended_early_is_shorter_also_after_a_resume():
    stages = [Stage("first", 5, [JUDGE]), Stage("second", 5, [JUDGE, FOOL])]
    schedule, resumed = Schedule(checked_stages(stages, NETWORKS)), Schedule(checked_stages(stages, NETWORKS))
    schedule.end_early(schedule.at(1))
    resumed.restore(json.loads(json.dumps(schedule.progress())))
    for each in (schedule, resumed):
        assert each.total_steps == 7
        assert [(each.at(step).index, each.at(step).stage_step) for step in (1, 2, 6)] == [(0, 1), (1, 0), (1, 4)]

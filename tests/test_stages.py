import pytest

from hvdgan.errors import UserError
from hvdgan.stages import Schedule, Stage, Update


def loss(nets, batch):
    return 0.0, {}


JUDGE = Update("judge", owns=["discriminator"], loss=loss)
FOOL = Update("fool", owns=["generator"], loss=loss, every=3)
NETWORKS = ["generator", "discriminator"]


def test_global_steps_fall_into_the_stages_in_order():
    schedule = Schedule([Stage("first", 3, [JUDGE]), Stage("second", 3, [FOOL])], NETWORKS)
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


@pytest.mark.parametrize("step", [-1, 6])
def test_a_step_outside_the_schedule_is_an_error(step):
    schedule = Schedule([Stage("both", 6, [JUDGE, FOOL])], NETWORKS)
    with pytest.raises(ValueError, match=f"step {step} is outside the schedule of 6 steps"):
        schedule.at(step)


def test_every_counts_within_the_stage_and_a_critic_goes_first():
    stage = Stage("both", 7, [JUDGE, FOOL])
    names = [[update.name for update in stage.due(step)] for step in range(7)]
    assert names == [["judge"], ["judge"], ["judge", "fool"]] * 2 + [["judge"]]


@pytest.mark.parametrize(
    ("stages", "complaint"),
    [
        ([], "no stages"),
        ([Stage("s", 0, [JUDGE])], "stage s: 0 steps"),
        ([Stage("s", 5, [])], "stage s: no updates"),
        ([Stage("s", 5, [JUDGE]), Stage("s", 5, [FOOL])], "stage s is named twice"),
        ([Stage("s", 5, [JUDGE, JUDGE, FOOL])], "stage s: update judge is named twice"),
        ([Stage("s", 5, [JUDGE])], "no update owns generator"),
        ([Stage("s", 5, [JUDGE, Update("u", owns=[], loss=loss)])], "update u: owns is \\[\\]"),
        ([Stage("s", 5, [JUDGE, Update("u", owns="generator", loss=loss)])], "must be a list"),
        ([Stage("s", 5, [JUDGE, Update("u", owns=["critic"], loss=loss)])], "owns critic, and networks\\(\\) returns"),
        (
            [Stage("s", 5, [Update("u", owns=["generator", "generator"], loss=loss)])],
            "owned network generator is named twice",
        ),
        ([Stage("s", 2, [JUDGE, FOOL])], "every is 3; it must be from 1 to the stage's 2 steps"),
        ([Stage("s", 5, [JUDGE, Update("u", owns=["generator"], loss=loss, every=0)])], "every is 0"),
        ([Stage("two words", 5, [JUDGE, FOOL])], "stage two words: a name"),
        ([Stage("s", 5, [JUDGE, Update("a/b", owns=["generator"], loss=loss)])], "update a/b: a name"),
    ],
)
def test_a_schedule_that_cannot_run_is_refused_by_name(stages, complaint):
    with pytest.raises(UserError, match=complaint):
        Schedule(stages, NETWORKS)

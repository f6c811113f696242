"""events.jsonl: each event is read as it is written, and the journal tells what follows from them all."""

import dataclasses
import json
import typing

import pytest

import run_folders
from hvdgan.runs import events
from hvdgan.runs.events import (
    Checkpoint,
    End,
    Evaluation,
    LostRank,
    NetworkFacts,
    Recovery,
    SkippedFile,
    SkippedUpdate,
    StageEnd,
    StageFacts,
    Standstill,
    UpdateFacts,
)
from hvdgan.runs.folder import Folder
from run_folders import TIME, started

VALUES = {int: 3, float: 0.5, str: "a \u00e9 \n", bool: True, list[str]: ["a", "b"], dict: {"eval/fid": 1.5, "b": None}}
UPDATES = [UpdateFacts(name="judge", owns=["discriminator"], every=2, bytes=8, reduce=False)]
PARTS = {
    "networks": [NetworkFacts(name="generator", trainable=5, other=1, is_frozen=False)],
    "stages": [StageFacts(name="both", steps=9, updates=UPDATES)],
}


def any_event(kind):
    """An event of a kind, with some value for each of its fields."""
    types = {each.name: each.type for each in dataclasses.fields(kind)}
    given = {name: VALUES.get(each, VALUES.get(typing.get_origin(each))) for name, each in types.items()}
    return kind(**given | {name: part for name, part in PARTS.items() if name in types})


@pytest.mark.parametrize("name", events.KINDS)
def test_an_event_is_read_as_it_is_written_unless_facts_are_missing_or_of_other_types(name):
    event = any_event(events.KINDS[name])
    record = json.loads(events.as_json(event))
    assert record["event"] == name and events.of_json(record) == event
    first = dataclasses.fields(event)[0].name
    assert events.of_json({**record, first: [[1]]}) is None
    del record[first]
    assert events.of_json(record) is None


def test_lines_for_people():
    bad = SkippedUpdate(step=5, stage="both", update="judge", times=2)
    assert (
        "step 5, stage both, update judge: loss or gradients are not finite" in bad.line and "(2 in a row)" in bad.line
    )
    figures = Evaluation(step=4, what="held out", values={"eval/psnr": 20.123456, "eval/kid": None})
    assert figures.line == "step 4, held out: eval/psnr 20.12 eval/kid nan"
    assert (
        End(state="failed", text="full").line == "stopped: full" and End(state="stopped", text="saved").line == "saved"
    )


def read(folder, *told):
    run_folders.write(folder, told=told)
    return events.read(Folder(folder))


def test_the_journal_of_a_run_that_was_resumed_and_ended(tmp_path):
    bad = SkippedFile(name="a.png", reason="cut off")
    early = StageEnd(stage="first", steps=20, planned=50, metric="eval/fid", last_step=70)
    saves = [Checkpoint(step=step, waited=step / 100, written=1.0) for step in (40, 50)]
    end = End(state="finished", text="done: 70 steps")
    recovery = Recovery(ranks=1, step=45, last_step=100)
    journal = read(tmp_path, started(0, 100), bad, saves[0], started(40, 100), recovery, bad, early, saves[1], end)
    assert journal.waited == [0.4, 0.5] and not journal.of(Checkpoint) and journal.began == journal.until == TIME
    assert (journal.restarts, journal.resumptions, journal.last_step) == ([40], [40, 45], 70)
    assert journal.end == end and journal.start.step == 40 and journal.skipped_files == ["a.png: cut off"]
    assert events.starts(tmp_path / events.FILE) == journal.of(events.Start)


def test_an_end_and_a_loss_are_those_of_the_latest_start(tmp_path):
    lost = [LostRank(rank=rank, host="n", pid=7 + rank, text=f"rank {rank} is lost") for rank in (1, 1, 0)]
    end = End(state="failed", text="rank 1 is lost", is_of_lost_rank=True)
    journal = read(tmp_path / "a", started(0, 9), *lost, end)
    assert (
        journal.end == end and journal.loss == "rank 0 is lost" and journal.lost == ["rank 1 is lost", "rank 0 is lost"]
    )
    journal = read(tmp_path / "b", started(0, 9), lost[0], end, started(5, 9), lost[0])
    assert journal.end is None and len(journal.lost) == 2
    journal = read(tmp_path / "c", started(0, 9), lost[0], Standstill(text="no rank moves"))
    assert journal.loss == "no rank moves"
    journal = read(tmp_path / "d")
    assert (journal.start, journal.end, journal.loss, journal.last_step, journal.began) == (None, None, "", None, "")

"""The one reader of a run's files: what a crash or another program has damaged is left out and named.
Modules: runs.folder, runs.evaluation_log, runs.events"""

import json

import pytest

from hvdgan.runs import evaluation_log, events, folder
from hvdgan.runs.events import Checkpoint
from hvdgan.runs.folder import Folder

DAMAGED = b"[1, 2]\n\nnull\n" + b"[" * 100_000 + b'\n"step"\n{"step": \xff}\n{"step": ' + b"9" * 9000 + b"}\n"


@pytest.fixture(params=[True, False], ids=["with orjson", "alone"])
def run(tmp_path, monkeypatch, request):
    """A run folder; hvdgan launch reads it with the standard library alone."""
    if not request.param:
        monkeypatch.setitem(__import__("sys").modules, "orjson", None)
    return Folder(tmp_path)


def test_lines_that_are_no_objects_are_left_out_and_counted(run):
    whole = [{"step": 1, "loss": 0.1}, {"step": 2, "name": "é \ud83d"}, {"step": 3, "loss": None}]
    lines = [json.dumps(each).encode() + b"\n" for each in whole]
    (run.path / "some.jsonl").write_bytes(lines[0] + DAMAGED + lines[1] + lines[2] + lines[2][:9])
    assert list(run.records("some.jsonl")) == whole
    assert run.remarks == [f"some.jsonl: {LEFT_OUT} (8)"]
    assert list(run.records("missing.jsonl")) == [] == run.names("missing") and len(run.remarks) == 1


LEFT_OUT = "lines that are cut off, longer than 1,048,576 bytes, or no JSON objects are left out"


def test_a_long_file_is_read_in_portions_and_a_line_that_is_too_long_is_left_out(run, monkeypatch):
    monkeypatch.setattr(folder, "_PORTION", 1000)
    lines = [json.dumps({"step": step}) for step in range(500)]
    lines[7] = json.dumps({"step": 7, "text": "x" * folder.LONGEST_LINE})
    (run.path / "some.jsonl").write_text("\n".join(lines))
    portions = list(run.portions("some.jsonl"))
    assert len(portions) > 5 and max(map(len, portions)) < 200
    assert [each["step"] for portion in portions for each in portion] == [*range(7), *range(8, 500)]
    assert run.remarks == [f"some.jsonl: {LEFT_OUT} (1)"]


def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.jsonl").write_text('{"step": 1}\n')
    run = tmp_path / "run"
    run.mkdir()
    (run / "own.jsonl").write_text('{"step": 2}\n')
    for name, target in (("a", tmp_path / "elsewhere" / "a.jsonl"), ("b", "own.jsonl"), ("c", "c"), ("d", "nothing")):
        (run / name).symlink_to(target)
    (run / "samples").symlink_to(tmp_path / "elsewhere")
    read = Folder(run)
    assert [list(read.records(name)) for name in "abcd"] == [[], [{"step": 2}], [], []]
    assert read.names("samples") == [] and read.json_object("a") == {} and read.json_object("b") == {"step": 2}
    assert len(read.remarks) == 4 and all(each[0] in "acs" for each in read.remarks)


@pytest.mark.parametrize("line", ['{"event": "resumed"}', '{"event": "end"}', '{"event": "checkpoint", "step": "5"}'])
def test_an_event_without_its_facts_or_with_others_is_left_out(tmp_path, line):
    whole = events.as_json(Checkpoint(step=5, waited=0.5, written=1.0))
    (tmp_path / events.FILE).write_text(f"{whole}\n")
    before = events.read(Folder(tmp_path))
    assert before.waited == [0.5]
    (tmp_path / events.FILE).write_text(f"{whole}\n{json.dumps({**json.loads(whole), **json.loads(line)})}\n")
    assert events.read(Folder(tmp_path)) == before


def test_a_record_that_a_crash_has_cut_off_spoils_no_other_and_the_latest_evaluation_counts(tmp_path):
    evaluation_log.append(tmp_path, {"step": 1, "identity": "one", "value": 1})
    with (tmp_path / evaluation_log.FILE).open("ab") as file:
        file.write(b'[1, 2]\n{"step": 2, "identity": "tw\xff')
    evaluation_log.append(tmp_path, {"step": 2, "identity": "one", "value": 3})
    assert [each["value"] for each in evaluation_log.read(Folder(tmp_path))] == [1, 3]
    assert evaluation_log.found(tmp_path, "one")["value"] == 3 and not evaluation_log.found(tmp_path, "tw")
    assert evaluation_log.identity("a", {"b": 1, "c": 2}) == evaluation_log.identity("a", {"c": 2, "b": 1})

"""The file evaluation.jsonl: whole lines, from several processes, and claims that end with their process."""

import json
import subprocess
import sys

import pytest

from hvdgan.evaluation import results
from launching import environment

APPEND = """
import sys
from pathlib import Path
from hvdgan.evaluation.results import append
for number in range(200):
    append(Path(sys.argv[1]), {"who": sys.argv[2], "number": number, "long": "x" * 5000})
"""
CLAIM = """
import sys
from pathlib import Path
from hvdgan.evaluation.results import claim
held = claim(Path(sys.argv[1]), "a" * 64)
print("claimed" if held else "refused", flush=True)
sys.stdin.read()
"""
CONTEND = """
import sys
from pathlib import Path
from hvdgan.evaluation.results import claim, release
run_dir, held = Path(sys.argv[1]), Path(sys.argv[1], "held")
for _ in range(2000):
    if claimed := claim(run_dir, "a" * 64):
        held.touch(exist_ok=False)
        held.unlink()
        release(run_dir, "a" * 64, claimed)
"""


def started(script, *arguments):
    words = [sys.executable, "-c", script, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=environment(), stdin=pipe, stdout=pipe, text=True)


def test_processes_that_write_at_the_same_time_lose_no_line(tmp_path):
    processes = [started(APPEND, tmp_path, who) for who in "abc"]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    lines = [json.loads(line) for line in (tmp_path / results.FILE).read_text().splitlines()]
    assert sorted((line["who"], line["number"]) for line in lines) == [(w, n) for w in "abc" for n in range(200)]


def test_a_line_that_a_crash_has_cut_off_spoils_no_other(tmp_path):
    results.append(tmp_path, {"identity": "one"})
    with (tmp_path / results.FILE).open("ab") as file:
        file.write(b'{"identity": "tw\xff')
    results.append(tmp_path, {"identity": "three"})
    assert [each["identity"] for each in results.records(tmp_path)] == ["one", "three"]
    assert results.found(tmp_path, "three") and not results.found(tmp_path, "two")
    assert list(results.records(tmp_path / "nowhere")) == []


def test_a_claim_keeps_others_out_and_ends_with_its_process(tmp_path):
    other = started(CLAIM, tmp_path)
    assert other.stdout.readline() == "claimed\n"
    assert results.claim(tmp_path, "a" * 64) is None and results.is_claimed(tmp_path, "a" * 64)
    assert not results.is_claimed(tmp_path, "b" * 64)
    with results.claim(tmp_path, "b" * 64):
        pass  # another evaluation
    other.kill()
    other.wait(timeout=60)
    assert not results.is_claimed(tmp_path, "a" * 64)
    claimed = results.claim(tmp_path, "a" * 64)
    assert claimed is not None
    results.release(tmp_path, "a" * 64, claimed)
    assert [path.name for path in (tmp_path / "cache" / "evaluations").iterdir()] == ["b" * 16]


def test_one_process_at_a_time_has_a_claim_that_others_release(tmp_path):
    """Each removes the folder of the claim while others try to lock it."""
    processes = [started(CONTEND, tmp_path) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=120)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert not list((tmp_path / "cache" / "evaluations").iterdir())


def test_equal_evaluations_have_one_identity():
    settings = {"seed": 0, "samples": 10}
    assert results.identity("run", 5, settings) == results.identity("run", 5, dict(reversed(settings.items())))
    others = [("other", 5, settings), ("run", 6, settings), ("run", 5, {**settings, "seed": 1})]
    assert len({results.identity(*each) for each in [("run", 5, settings), *others]}) == 4


def test_what_is_not_finite_is_null():
    record = results.record_of(7, {"eval/fid": float("nan"), "eval/kid": 1.5}, {"samples": 3}, by="training")
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert (record["step"], record["eval/fid"], record["eval/kid"], record["by"]) == (7, None, 1.5, "training")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"[1, 2]\nnull\n"])
def test_other_lines_are_no_records(tmp_path, content):
    (tmp_path / results.FILE).write_bytes(content)
    assert list(results.records(tmp_path)) == []

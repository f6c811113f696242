"""The file evaluation.jsonl: whole lines, also of several processes."""

import json
import subprocess
import sys

from hvdgan.evaluation import results
from launching import environment

APPEND = """
import sys
from pathlib import Path
from hvdgan.evaluation.results import append
for number in range(200):
    append(Path(sys.argv[1]), {"who": sys.argv[2], "number": number, "long": "x" * 5000})
"""


def started(script, *arguments):
    words, pipe = [sys.executable, "-c", script, *map(str, arguments)], subprocess.PIPE
    return subprocess.Popen(words, env=environment(), stdout=pipe, text=True)


def test_processes_that_write_at_the_same_time_lose_no_line(tmp_path):
    """As a run and hvdgan.evaluate do."""
    processes = [started(APPEND, tmp_path, who) for who in "ab"]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    lines = [json.loads(line) for line in (tmp_path / results.FILE).read_text().splitlines()]
    assert sorted((line["who"], line["number"]) for line in lines) == [(w, n) for w in "ab" for n in range(200)]


def test_a_line_that_a_crash_has_cut_off_spoils_no_other_and_the_latest_counts(tmp_path):
    results.append(tmp_path, {"identity": "one", "value": 1})
    with (tmp_path / results.FILE).open("ab") as file:
        file.write(b'[1, 2]\n\nnull\n{"identity": "tw\xff')
    results.append(tmp_path, {"identity": "one", "value": 3})
    assert [each["value"] for each in results.records(tmp_path)] == [1, 3]
    assert results.found(tmp_path, "one")["value"] == 3 and not results.found(tmp_path, "tw")
    assert list(results.records(tmp_path / "nowhere")) == []


def test_what_is_not_finite_is_null_and_equal_facts_have_one_identity():
    record = results.record_of(7, {"eval/fid": float("nan"), "eval/kid": 1.5}, {"samples": 3}, by="training")
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert (record["step"], record["eval/fid"], record["eval/kid"], record["by"]) == (7, None, 1.5, "training")
    facts = {"seed": 0, "samples": 10}
    assert results.identity("run", facts) == results.identity("run", dict(reversed(facts.items())))
    assert results.identity("run", facts) != results.identity("run", {**facts, "seed": 1})

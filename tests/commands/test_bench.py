"""hvdgan.bench: a small real measurement, figures, and mistakes. Modules: diagnostics.speed"""

import json
import re
import sys

import pytest

from hvdgan.bench import main
from hvdgan.diagnostics.speed import Bench
from launching import run
from messages import refused

TINY = "--recipe dcgan --image-size 32 --nf 2 --data synthetic".split()
SMALL = "--ranks 1,2 --local-batch-size 4 --steps 6 --repeats 1 --scaling weak --controller gloo".split()


@pytest.mark.long
def test_one_rank_two_and_two_copies_are_measured(tmp_path):
    words = [sys.executable, "-m", "hvdgan.bench", *TINY, *SMALL, "--json", "bench.json"]
    done = run(words, tmp_path, forked=True, seconds=540)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Efficiency. ") and "Steps. " in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]
    facts = json.loads((tmp_path / "bench.json").read_text())
    _, two, copies = facts["runs"]
    assert [(each["kind"], each["ranks"]) for each in facts["runs"]] == [("ranks", 1), ("ranks", 2), ("copies", 2)]
    # generator: 100 * 16 * 8 + 2 * 8, 8 * 16 * 4 + 2 * 4, 4 * 16 * 2 + 2 * 2, 2 * 16 * 3 + 3; discriminator too
    reduced = {"ranks": 4 * (13567 + 891), "copies": 0}
    for each in (two, copies):
        stage = each["stages"]["adversarial"]
        assert stage["bytes_reduced"] == reduced[each["kind"]]
        step = stage["step_seconds"]["median"]
        parts = [
            stage[f"{name}_seconds"]["median"] for name in ("compute", "reduce", "wait") if f"{name}_seconds" in stage
        ]
        assert len(parts) == (3 if each is two else 2) and all(0 <= part <= step for part in parts)
    rates = [stage["images_per_sec"]["median"] for each in facts["runs"] for stage in each["stages"].values()]
    (alone, together) = facts["efficiency"]
    assert together["of_copies"]["median"] == pytest.approx(rates[1] / rates[2])
    assert together["of_one_rank"]["median"] == pytest.approx(rates[1] / rates[0] / 2)
    assert alone["of_copies"]["median"] == alone["of_one_rank"]["median"] == 1


def test_ranks_that_share_a_batch_are_compared_with_copies_of_as_many_images(tmp_path, monkeypatch, capsys):
    """Launches of four processes would take minutes: here a step takes 1 ms, and 1 ms for each image."""

    def launch(self, variant):
        seconds = 1e-3 * (1 + variant.local_batch_size) * (1 if variant.kind == "copies" else variant.count)
        record = {"stage": "only", "step_seconds": seconds, "wait_seconds": 0.0, "compute_seconds": seconds}
        record |= {"images_per_sec": variant.global_batch_size / seconds, "bytes_reduced": 0.0, "hosts": 1}
        launched.append((variant.kind, variant.count, variant.local_batch_size))
        return [[record]] * (1 if variant.kind == "ranks" else variant.count)

    launched = []
    monkeypatch.setattr(Bench, "launch", launch)
    words = "--ranks 1,2,4 --scaling strong --local-batch-size 2 --repeats 2 --json strong.json".split()
    monkeypatch.chdir(tmp_path)
    assert main([*TINY, *words]) == 0
    expected = {("ranks", 4, 2), ("ranks", 2, 4), ("ranks", 1, 8), ("copies", 4, 2), ("copies", 2, 4)}
    assert set(launched) == expected and len(launched) == 2 * len(expected)
    assert launched[0][:2] == ("ranks", 1)  # a mistake in the recipe is reported as one there
    rows = json.loads((tmp_path / "strong.json").read_text())["efficiency"]
    assert [row["of_copies"]["median"] for row in rows] == pytest.approx([1, 1 / 2, 1 / 4])
    assert [row["of_one_rank"]["median"] for row in rows] == pytest.approx([1, 9 / 10 / 2, 9 / 12 / 4])
    assert re.search(r"4 ranks +2 +only +12.00 ", capsys.readouterr().out)


@pytest.mark.long
def test_a_mistake_that_a_rank_finds_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*TINY, "--ranks", "1", "--repeats", "1", "--stages", "adversarial=7"]) == 0
    assert main([*TINY, "--ranks", "1", "--repeats", "1", "--stages", "nosuch=7"]) == 2
    assert "hvdgan: 1 rank of 16 images: --stages" in capsys.readouterr().err


@pytest.mark.parametrize("words", refused("bench"))
def test_a_mistake_is_one_line_and_exit_code_2(words, tmp_path, monkeypatch, messages):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "there.json").write_text("mine")
    messages.refuses("bench", lambda given: main([*TINY, "--repeats", "1", *given]), words, folder=tmp_path)

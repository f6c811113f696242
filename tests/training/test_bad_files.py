"""Broken files that a run skips: each rank sends each name once."""

import json

import numpy as np
import pytest
from PIL import Image

from hvdgan.distributed.ranks import Ranks
from hvdgan.train import main


@pytest.fixture
def data(tmp_path):
    """20 images, of which 3 are empty, and 2 break when they are decoded."""
    folder = tmp_path / "data"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 255, (12, 12, 3), np.uint8)
    for number in range(20):
        Image.fromarray(pixels).save(folder / f"{number}.png")
    for number in (1, 5, 9):
        (folder / f"{number}.png").write_bytes(b"")
    for number in (2, 11):
        (folder / f"{number}.png").write_bytes((folder / f"{number}.png").read_bytes()[:100])
    return folder


def test_a_log_sends_only_what_is_new_and_a_resumed_run_knows_all(tmp_path, data, monkeypatch):
    sent = []

    def gather(self, value, name):
        sent.append(json.dumps(value).count(".png"))
        return [value]

    monkeypatch.setattr(Ranks, "gather", gather)
    flags = f"--recipe tiny:Tiny --data {data} --image-size 8 --global-batch-size 8 --log-every 1 --max-bad-fraction 1"
    flags += f" --run-dir {tmp_path / 'run'}"
    assert main([*flags.split(), "--steps", "6"]) == 0
    assert sum(sent) == 5
    assert main([*flags.split(), "--steps", "8"]) == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert all(log.count(f"skipped {number}.png: ") == 1 for number in (1, 2, 5, 9, 11))
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["bad_files"] for record in records[3:]] == [5] * 5
    manifest = tmp_path / "run" / "checkpoints" / "step-00000008" / "manifest.json"
    assert sorted(json.loads(manifest.read_text())["progress"]["bad_files"]) == sorted(
        f"{number}.png" for number in (1, 2, 5, 9, 11)
    )

"""Run folders that were written by hand, with any contents."""

import dataclasses
import json
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from hvdgan.runs import events

TIME = "2026-11-25 10:22:31"
START = events.Start(
    version="0.1.0",
    command="python -m hvdgan.train --recipe tiny:Tiny",
    recipe="tiny:Tiny",
    step=0,
    last_step=10,
    ranks=2,
    hosts=1,
    launcher="horovodrun",
    is_elastic=False,
    slurm_job="",
    slurm_restart=0,
    networks=[],
    stages=[],
    data=[],
    changed=[],
    machine=["hvdgan 0.1.0, recipe tiny:Tiny; Python 3.11"],
)


def record(step: int, **values) -> str:
    """A line of metrics.jsonl."""
    return json.dumps({"step": step, "stage": "both", "stage_step": step, **values}) + "\n"


def started(step: int, last_step: int) -> events.Start:
    """A start that resumes at a step."""
    return dataclasses.replace(START, step=step, last_step=last_step)


def lines_of(told: Iterable[events.Event]) -> str:
    """The lines of events.jsonl about some events, all at one time."""
    return "".join(json.dumps({**json.loads(events.as_json(event)), "time": TIME}) + "\n" for event in told)


def write(
    folder: Path,
    *,
    metrics: str | bytes = "",
    told: Iterable[events.Event] = (),
    config: str | None = "{}",
    evaluations: Iterable[dict] = (),
) -> Path:
    """Write a run folder; empty texts make no file. With events it has a lock, whose process is unknown."""
    folder.mkdir(parents=True, exist_ok=True)
    if told := list(told):
        (folder / ".lock").touch()
    texts = {"metrics.jsonl": metrics, events.FILE: lines_of(told), "config.json": config}
    texts["evaluation.jsonl"] = "".join(json.dumps(each) + "\n" for each in evaluations)
    for name, text in texts.items():
        if text:
            (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def grid(folder: Path, name: str = "step-00000010.png", size: int = 32) -> Path:
    """Write a picture to samples/."""
    (folder / "samples").mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(len(name)).integers(0, 255, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC).save(folder / "samples" / name)
    return folder / "samples" / name


def checkpoint(folder: Path, step: int) -> Path:
    """Write a checkpoint of which a page reads the size alone."""
    path = folder / "checkpoints" / f"step-{step:08d}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(8))
    return path


def long_metrics(path: Path, steps: Iterable[int]) -> None:
    """Write the metrics of many steps, line by line."""
    drawn = random.Random(0)
    times = {"images_per_sec": 1000.0, "bad_files": 0, "step_seconds": 0.06}
    with path.open("w") as file:
        for step in steps:
            losses = {
                "fool/loss": abs(drawn.gauss(2, 1)),
                "judge/loss": drawn.random(),
                "judge/real": drawn.gauss(0, 1),
            }
            file.write(record(step, **losses, **times, wait_seconds=drawn.random() / 1e3))

"""Runs that are made in this process: trained ones of a tiny recipe, what they hold, and untrained ones of any."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from building import FACTS, write_checkpoint
from hvdgan.recipe import DataSpec
from hvdgan.recipe.loading import digests_of_files, load_recipe
from hvdgan.runs.metrics import OF_SPEED
from hvdgan.settings.config import Config, to_json
from hvdgan.train import main
from hvdgan.training.train_state import build_state

TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8 --steps 8 --log-every 2".split()


def train(run_dir: Path, *arguments: str, flags: list[str] = TINY) -> int:
    """Run the command; the arguments override the flags."""
    kept = [word for pair in zip(flags[::2], flags[1::2], strict=True) if pair[0] not in arguments for word in pair]
    return main([*kept, "--run-dir", str(run_dir), *arguments])


@contextlib.contextmanager
def shared_by_a_group(folder: Path) -> Iterator[None]:
    """What the block writes to a folder must be the group's to write, too, as a umask of 002 says."""
    before = os.umask(0o002)
    try:
        yield
    finally:
        os.umask(before)
    modes = {path: (path.stat().st_mode & 0o777, 0o775 if path.is_dir() else 0o664) for path in folder.rglob("*")}
    assert {path: f"{mode:o}" for path, (mode, wanted) in modes.items() if mode != wanted} == {}


def checkpoint(run_dir: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return run_dir / "checkpoints" / f"step-{step:08d}.safetensors"


def steps(run_dir: Path) -> list[int]:
    """The steps of the checkpoints."""
    return sorted(int(path.stem[5:]) for path in (run_dir / "checkpoints").glob("step-*.safetensors"))


def latest(run_dir: Path) -> int:
    """The step that `latest` names; 0: none is saved yet."""
    path = run_dir / "checkpoints" / "latest"
    return int(Path(path.read_text()).stem[5:]) if path.exists() else 0


def tensors(run_dir: Path, step: int) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint by their names."""
    return load_file(checkpoint(run_dir, step))


def state(run_dir: Path, step: int) -> dict[str, str]:
    """Shape, type and a digest of the bits of each tensor of a checkpoint."""
    digest = lambda value: f"{value.shape} {value.dtype} {hashlib.sha256(value.tobytes()).hexdigest()}"  # noqa: E731
    return {name: digest(value) for name, value in tensors(run_dir, step).items()}


def manifest(run_dir: Path, step: int) -> dict[str, Any]:
    """The manifest of a checkpoint."""
    return json.loads(safe_open(checkpoint(run_dir, step), "numpy").metadata()["manifest"])


def rewrite(path: Path, change: Callable[[dict[str, np.ndarray], dict[str, Any]], Any]) -> None:
    """Write a checkpoint anew after a change of its tensors or of its manifest, which may then not fit."""
    values, facts = load_file(path), json.loads(safe_open(path, "numpy").metadata()["manifest"])
    change(values, facts)
    save_file(values, path, {"manifest": json.dumps(facts)})


def damage(path: Path) -> None:
    """Change one bit of the last tensor."""
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))


def records(run_dir: Path) -> list[dict]:
    """What a run has logged."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def measured(run_dir: Path) -> list[dict]:
    """What a run has logged, without what is about its speed."""
    return [{name: each[name] for name in each if name not in OF_SPEED} for each in records(run_dir)]


def untrained(folder: Path, name: str, options=None, spec: DataSpec | None = None, scale=0.02, **settings) -> None:
    """Write a checkpoint as after two steps of a recipe, each number of which is another than at the beginning."""
    keras.utils.clear_session()
    recipe, spec = load_recipe(name), spec or DataSpec((8, 8, 1), 100)
    options = options or recipe.Options()
    made = recipe(options, spec)
    state = build_state(made, 0.9)
    random, tensors = np.random.default_rng(0), state.tensors()
    for variable in tensors.values():
        variable.assign(variable + (scale * random.normal(size=variable.shape)).astype(variable.dtype))
    config = Config(recipe=name, image_size=spec.shape[0], run_dir=folder, **settings)
    facts = {**FACTS, "config": to_json(config, options), "data": {**FACTS["data"], "spec": spec.to_json()}}
    facts["code"] = digests_of_files(made, name, config.data)
    write_checkpoint(folder / "checkpoints", 2, tensors, facts)

"""Training a tiny recipe in this process, and what its run folder holds."""

import json
from pathlib import Path

from hvdgan.train import main

TINY = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8 --steps 8 --log-every 2".split()


def train(run_dir: Path, *arguments: str, flags: list[str] = TINY) -> int:
    """Run the command; the arguments override the flags."""
    kept = [word for pair in zip(flags[::2], flags[1::2], strict=True) if pair[0] not in arguments for word in pair]
    return main([*kept, "--run-dir", str(run_dir), *arguments])


def steps(run_dir: Path) -> list[int]:
    """The steps of the checkpoints."""
    return sorted(int(path.name[5:]) for path in (run_dir / "checkpoints").glob("step-*"))


def state(run_dir: Path, step: int) -> bytes:
    """The tensors of a checkpoint as they are on the disk."""
    return (run_dir / "checkpoints" / f"step-{step:08d}" / "state.safetensors").read_bytes()


def manifest(run_dir: Path, step: int) -> dict:
    """The manifest of a checkpoint."""
    return json.loads((run_dir / "checkpoints" / f"step-{step:08d}" / "manifest.json").read_text())

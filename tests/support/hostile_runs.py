"""Run folders with contents that must not be executed, or that are damaged; each is shown or named."""

import json
import struct
from pathlib import Path

import run_folders
from hvdgan.runs.events import Caution, End, SkippedFile
from run_folders import START, record

EVIL = """<script>window.struck = 1</script>"'><img src=x onerror="window.struck = 1">"""


def _everywhere(folder: Path) -> None:
    metrics = record(10, **{f"{EVIL}/loss": 1.0, f"eval/{EVIL}": 2.0, "$\\frac{": 3.0})
    told = [START, Caution(text=EVIL), SkippedFile(name=EVIL + "\udcff", reason=EVIL), End(state="failed", text=EVIL)]
    config = json.dumps({"recipe": EVIL, "data": EVIL, EVIL: EVIL, "best_metric": f"eval/{EVIL}"})
    evaluations = [{"step": 1, f"eval/{EVIL}": EVIL, "features": EVIL}]
    metrics = metrics.replace('"both"', json.dumps(EVIL))
    run_folders.write(folder, metrics=metrics, told=told, config=config, evaluations=evaluations)
    (folder / "samples").mkdir()
    (folder / "samples" / "step-1.png").write_text(EVIL)


def _million_keys(folder: Path) -> None:
    wide = json.dumps({"step": 5, "stage": "both", **{f"key{number}": 1.0 for number in range(1_000_000)}})
    run_folders.write(folder, metrics=record(1, loss=1.0) + wide + "\n" + record(9, loss=2.0))


def _half_picture(folder: Path) -> None:
    run_folders.write(folder, told=[START])
    whole = run_folders.grid(folder, "step-00000010.png", 200)
    whole.write_bytes(whole.read_bytes()[:5000])
    (folder / "samples" / "real.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    run_folders.grid(folder, "step-00000020.png")


def _sounds(folder: Path) -> None:
    """A header that promises 4 GB of 65,535 channels, and a page in place of a wave."""
    run_folders.write(folder, told=[START])
    run_folders.grid(folder, "step-00000010.png")
    form = struct.pack("<HHIIHH", 1, 65535, 2**32 - 1, 2**32 - 1, 65535, 16)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 2**32 - 1) + bytes(2**20)
    (folder / "samples" / "newest.wav").write_bytes(b"RIFF" + struct.pack("<I", 2**32 - 1) + b"WAVE" + chunks)
    (folder / "samples" / "real.wav").write_text(EVIL)


def _links(folder: Path) -> None:
    run_folders.write(folder, told=[START], config=None)
    (folder / "samples").mkdir()
    secret = folder.parent / f"secret of {folder.name}"
    secret.write_text('{"data": "a secret"}')
    links = {"config.json": secret, "metrics.jsonl": "metrics.jsonl", "checkpoints": "/"}
    for name, target in {**links, "samples/step-00000001.png": "/dev/zero"}.items():
        (folder / name).symlink_to(target)


def _garbage(folder: Path) -> None:
    noise = bytes(range(256)) * 50
    run_folders.write(folder, metrics=record(1, loss=1.0).encode() + noise, told=[START], config="[" * 100_000)
    with (folder / "events.jsonl").open("ab") as file:
        file.write(noise + b'\n{"event": ["end"]}\n{"event": "end", "state": 3, "text": 4}\n')
    run_folders.checkpoint(folder, 4).write_bytes(noise)


# The folder, and words that the page must have.
CASES = {
    "scripts everywhere": (_everywhere, ["&lt;script&gt;window.struck = 1", "\\udcff"]),
    "a million keys": (_million_keys, ["longer than 1,048,576 bytes, or no JSON objects are left out (1)"]),
    "a half-written picture": (_half_picture, ["step-00000010.png cannot be decoded", "real.png cannot be decoded"]),
    "sounds": (_sounds, ["newest.wav cannot be decoded, and is not played", "real.wav cannot be decoded"]),
    "links": (_links, ["config.json is a link that leads out", "checkpoints is a link that leads out"]),
    "garbage": (_garbage, ["config.json is not a JSON object", "metrics.jsonl: lines that are cut off", "4"]),
}


def write(folder: Path, name: str) -> list[str]:
    """Write a run folder by its name; returns the words that its page must have."""
    make, words = CASES[name]
    folder.mkdir(parents=True)
    make(folder)
    return words

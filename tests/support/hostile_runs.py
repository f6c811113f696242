"""Run folders with contents that nobody should have to read; each is shown rightly or named."""

import json
from pathlib import Path

import run_folders
from hvdgan.runs.events import Caution, End, SkippedFile
from run_folders import START, record

EVIL = """<script>window.struck = 1</script>"'><img src=x onerror="window.struck = 1">"""
ANSI = "\x1b[31mred\x1b[0m \u202egnirts"


def _everywhere(folder: Path) -> None:
    name = EVIL.replace("/", "|")
    metrics = record(10, **{f"{EVIL}/loss": 1.0, f"eval/{EVIL}": 2.0, "$\\frac{": 3.0})
    told = [START, Caution(text=EVIL), SkippedFile(name=EVIL, reason=EVIL), End(state="failed", text=EVIL)]
    config = json.dumps({"recipe": EVIL, "data": EVIL, EVIL: EVIL, "best_metric": f"eval/{EVIL}"})
    run_folders.write(folder, metrics=metrics.replace('"both"', json.dumps(EVIL)), told=told, config=config)
    (folder / "evaluation.jsonl").write_text(json.dumps({"step": 1, f"eval/{EVIL}": EVIL, "features": EVIL}) + "\n")
    (folder / "samples").mkdir()
    (folder / "samples" / "step-1.png").write_text(EVIL)
    (folder / "samples" / f"step-{name[:20]}.png").write_text(EVIL)


def _ansi(folder: Path) -> None:
    told = [START, End(state="failed", text=ANSI)]
    run_folders.write(folder, metrics=record(10, **{f"{ANSI}/loss": 1.0}), told=told, config=json.dumps({"data": ANSI}))


def _not_finite(folder: Path) -> None:
    losses = enumerate((1.0, float("nan"), float("inf"), None, 2.0))
    run_folders.write(folder, metrics="".join(record(step, loss=value) for step, value in losses))


def _cut(folder: Path) -> None:
    run_folders.write(folder, metrics=record(1, loss=1.0) + record(2, loss=1.0)[:20])


def _million_keys(folder: Path) -> None:
    wide = json.dumps({"step": 5, "stage": "both", **{f"key{number}": 1.0 for number in range(1_000_000)}})
    run_folders.write(folder, metrics=record(1, loss=1.0) + wide + "\n" + record(9, loss=2.0))


def _huge_numbers(folder: Path) -> None:
    huge = [10**400, 1e308, -1e308, 2**70, True, "1e9", [1], {"a": 1}]
    lines = [record(step, loss=value) for step, value in enumerate(huge)]
    lines += [record(step, loss=1.0) for step in (-1, 2**53 - 1, 2**80, True)]
    lines += ['{"step": 3, "loss": ' + "9" * 9000 + "}\n", '{"step": 4, "loss": 1e999}\n']
    config = {"max_steps": 10**30, "global_batch_size": 10**300}
    run_folders.write(folder, metrics="".join(lines), config=json.dumps(config))


def _half_picture(folder: Path) -> None:
    run_folders.write(folder, told=[START])
    whole = run_folders.grid(folder, "step-00000010.png", 200)
    whole.write_bytes(whole.read_bytes()[:5000])
    (folder / "samples" / "real.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    run_folders.grid(folder, "step-00000020.png")


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
    run_folders.write(folder, metrics=noise, told=[START], config="[" * 100_000)
    with (folder / "events.jsonl").open("ab") as file:
        file.write(noise + b'\n{"event": ["end"]}\n{"event": "end", "state": 3}\n')
    (folder / "log.txt").write_bytes(noise)
    run_folders.checkpoint(folder, 4).write_bytes(noise)


# The folder, and words that the page must have.
CASES = {
    "scripts everywhere": (_everywhere, ["&lt;script&gt;window.struck = 1"]),
    "terminal codes": (_ansi, ["\\x1b[31mred", "\\u202egnirts"]),
    "a million keys": (_million_keys, ["lines of more than 1,048,576 bytes are left out (1)"]),
    "not finite": (_not_finite, ["Without a finite value: loss (3)."]),
    "cut in a line": (_cut, ["the last line is cut off"]),
    "huge numbers": (_huge_numbers, ["that are no numbers are left out", "Without a finite value: loss"]),
    "a half-written picture": (_half_picture, ["step-00000010.png cannot be decoded", "real.png cannot be decoded"]),
    "links": (_links, ["config.json is a link that leads out", "checkpoints is a link that leads out"]),
    "garbage": (_garbage, ["config.json is not a JSON object", "4"]),
}


def write(folder: Path, name: str) -> list[str]:
    """Write a run folder by its name; returns the words that its page must have."""
    make, words = CASES[name]
    folder.mkdir(parents=True)
    make(folder)
    return words

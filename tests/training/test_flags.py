"""The settings that differ from the defaults, as flags that give the same settings.

Modules: training.summary
"""

import json
import shlex

import pytest

from hvdgan.training.command import parse
from hvdgan.training.summary import changed_flags

ALL = (
    "--run-dir 'a $run' --image-size 64,32 --channels 1 --tfrecord-image photo --crop 4,4 --flip "
    "--conditions energy,theta --values 'a=range:0,1;b=none' --global-batch-size 8 --stages adversarial=4 "
    "--sync-batch-norm --holdout 0 --ema-half-life 1e4 --diff-augment color,cutout --eval-samples 4 "
    "--pipeline.threads 3 --cache memory --nf 8 --learning-rate 1e-05 --norm none"
)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ("", ""),
        ("--recipe dcgan --seed 0 --nf 64 --ema-decay 0.995", ""),  # the defaults
        ("--recipe completion --nf 4", "--recipe completion --nf 4"),
        ("--ema-half-life 1e4", "--ema-half-life 10000.0"),
        ("--data=-x --run-dir 'it'\\''s'", "--run-dir 'it'\"'\"'s' --data=-x"),
        ("--flip --pipeline.prefetch 3", "--flip --pipeline.prefetch 3"),
        (ALL, None),
    ],
)
def test_the_flags_give_the_same_settings(words, flags):
    before = parse(shlex.split(words))
    written = " ".join(changed_flags(before.config, before.options))
    # Of ALL each word is there, in another order.
    assert written == flags if flags is not None else len(shlex.split(written)) == len(shlex.split(words))
    after = parse(shlex.split(written))
    assert (after.config, after.options) == (before.config, before.options)


def test_a_switch_and_a_list_of_a_recipe(tmp_path, monkeypatch):
    (tmp_path / "their_own.py").write_text(
        "import dataclasses\n"
        "from tiny import Tiny\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Options:\n"
        "    steps: int = 4\n"
        "    residual: bool = True\n"
        "    scales: tuple[float, ...] = (1.0, 2.0)\n"
        "class Own(Tiny):\n"
        "    Options = Options\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = parse(["--recipe", "their_own:Own", "--residual=false", "--scales", "0.5,2"])
    flags = changed_flags(before.config, before.options)
    assert flags == ["--recipe their_own:Own", "--residual=false", "--scales 0.5,2.0"]
    assert parse(shlex.split(" ".join(flags))).options == before.options


def test_a_saved_config_gives_the_same_flags(tmp_path):
    saved = tmp_path / "config.json"
    saved.write_text(json.dumps({"nf": 8, "flip": True, "image_size": [64, 32]}))
    command = parse(["--config", str(saved)])
    assert changed_flags(command.config, command.options) == ["--image-size 64,32", "--flip", "--nf 8"]

"""The settings that differ from the defaults, as flags that give the same settings.

Modules: training.summary
"""

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
        ("--recipe dcgan --seed 0 --nf 64 --ema-decay 0.995", ""),  # the defaults
        ("--data=-x --run-dir 'it'\\''s'", "--run-dir 'it'\"'\"'s' --data=-x"),
        ("--recipe tiny:Conditional --widths 5 --widths 6", "--recipe tiny:Conditional --widths 5,6"),
        ("--no-flip", ""),
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

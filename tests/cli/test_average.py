"""The two settings of the moving average: exactly one is set, from flags, from a saved config.json or by default."""

import json

import pytest

from hvdgan.cli.errors import UserError
from hvdgan.training.command import parse, parse_saved, to_json


def of(*arguments):
    config = parse(arguments).config
    return config.ema_decay, config.ema_half_life


@pytest.fixture
def saved(tmp_path):
    """Makes a config.json of flags."""

    def save(*arguments):
        command = parse(arguments)
        (tmp_path / "config.json").write_text(json.dumps(to_json(command.config, command.options)))
        return "--config", str(tmp_path / "config.json")

    return save


@pytest.mark.parametrize("flags", [[], ["--ema-decay", "0"], ["--ema-decay=0.9"], ["--ema-half-life", "5000"]])
def test_what_is_saved_is_read_back(saved, flags):
    assert of(*saved(*flags)) == of(*flags)
    command = parse(flags)
    assert parse_saved(json.loads(json.dumps(to_json(command.config, command.options))), "run") == command


def test_a_flag_for_one_replaces_the_other_in_a_saved_file(saved):
    assert of(*saved(), "--ema-half-life", "5000") == (None, 5000)
    assert of(*saved("--ema-decay", "0"), "--ema-half-life=5000") == (None, 5000)
    assert of(*saved("--ema-half-life", "5000"), "--ema-decay", "0.9") == (0.9, None)
    assert of(*saved("--ema-half-life", "5000"), "--seed", "3") == (None, 5000)


def test_both_are_refused_from_wherever_they_come(saved, tmp_path):
    both = "--ema-decay", "0.9", "--ema-half-life", "5000"
    (tmp_path / "both.json").write_text(json.dumps({"ema_decay": 0.9, "ema_half_life": 5000.0}))
    for arguments in (both, [*saved(), *both], ["--config", str(tmp_path / "both.json")]):
        with pytest.raises(UserError, match=r"--ema-half-life 5000, --ema-decay 0\.9"):
            parse(arguments)

"""Settings come from flags, then --config, then defaults.

Modules: cli.config, training.command.
"""

import json

import pytest

from hvdgan.cli.config import Config
from hvdgan.cli.errors import UserError
from hvdgan.recipes.dcgan import DCGANOptions
from hvdgan.training.command import parse, parse_saved, to_json


def test_a_saved_config_is_read_back_and_flags_override_it(tmp_path):
    flags = "--recipe tiny:Tiny --seed 5 --max-steps 9 --pipeline.prefetch 4 --steps 7 --flip --run-dir x"
    command = parse(flags.split())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_json(command.config, command.options)))
    again = parse(["--config", str(path)])
    assert (again.config, again.options, again.recipe) == (command.config, command.options, command.recipe)
    changed = parse([f"--config={path}", "--seed", "6", "--steps", "8", "--flip=false"])
    assert (changed.config.seed, changed.config.max_steps, changed.options.steps) == (6, 9, 8)
    assert (again.config.flip, changed.config.flip) == (True, False)


def test_saved_options_have_their_types_again():
    command = parse("--recipe tiny:Conditional --widths 5 --widths 6 --weights a/b --learning-rate 0.5".split())
    saved = json.loads(json.dumps(to_json(command.config, command.options)))
    assert parse_saved(saved, "run") == command


def test_the_users_own_recipe_brings_its_options(capsys):
    assert parse(["--recipe", "tiny:Tiny", "--learning-rate", "0.5"]).options.learning_rate == 0.5
    assert parse(["--recipe=tiny:Tiny", "--help"]) is None
    shown = capsys.readouterr().out
    assert "Recipe tiny:Tiny" in shown and "--norm" in shown and "--nf" not in shown


def test_help_tells_every_setting_its_unit_and_default(capsys):
    assert parse(["--help"]) is None
    shown = " ".join(capsys.readouterr().out.split())
    for flag in [*to_json(Config(), DCGANOptions()), "resume", "config", "dry_run", "expect_size"]:
        if flag != "pipeline":
            assert f"--{flag.replace('_', '-')} " in shown
    assert "(pixels)" in shown and "(seconds)" in shown and "[default: 64]" in shown and "--pipeline.threads" in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--imagesize 3", "--imagesize"),
        ("--image-size big", '--image-size: "big" is not a whole number'),
        ("--image-size 32 --image-size 64", "--image-size specified multiple times"),
        ("--channels 2", '"2" for --channels. Choose from: 1, 3'),
        ("--ema-decay nan", "--ema-decay"),
        (
            "--ema-half-life 1e4 --ema-decay 0.995",
            "--ema-half-life 10000, --ema-decay 0.995: both set the same average",
        ),
        ("--norm layer", '"layer" for --norm. Choose from: "batch", "none"'),
        ("--pipeline.thread 1", "--pipeline.thread"),
        ("--recipe tiny:Nobody", "--recipe tiny:Nobody: Nobody in tiny is not a subclass of hvdgan.recipe.Recipe"),
        ("--recipe no.such:GAN", "there is no module no.such"),
        ("--recipe tiny:Clashing", "the option seed is also a setting of hvdgan; rename it"),
    ],
)
def test_a_wrong_command_line_is_one_line_naming_flag_and_value(arguments, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        parse(arguments.split())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("[1]", "expected a JSON object of settings, found list"),
        ('{"image_sise": 3}', "image_sise"),
        ('{"image_size": -3}', "image_size"),
        ('{"recipe": 3}', "--recipe 3"),
    ],
)
def test_a_wrong_config_file_is_named(tmp_path, content, complaint):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(UserError, match=complaint):
        parse(["--config", str(path)])

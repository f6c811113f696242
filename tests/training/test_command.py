"""Settings come from flags, then --config, then defaults. Modules: settings.config, settings.data, training.command,
recipe.options"""

import json

import pytest

from hvdgan.errors import UserError
from hvdgan.recipes.dcgan import DCGANOptions
from hvdgan.settings.config import Config, to_json
from hvdgan.training.command import parse, parse_saved

ARRAYS = {"--values", "--axes"}


def test_a_saved_config_is_read_back_and_flags_override_it(tmp_path):
    flags = "--recipe tiny:Tiny --seed 5 --max-steps 9 --pipeline.prefetch 4 --steps 7 --flip --run-dir x"
    command = parse(flags.split())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(to_json(command.config, command.options)))
    again = parse(["--config", str(path)])
    assert again == command
    changed = parse([f"--config={path}", "--seed", "6", "--steps", "8", "--no-flip"])
    assert (changed.config.seed, changed.config.max_steps, changed.options.steps) == (6, 9, 8)
    assert (again.config.flip, changed.config.flip) == (True, False)


def test_the_help_fits_on_a_screen_and_has_what_most_runs_and_these_data_need(capsys):
    def shown(words):
        assert parse(words.split()) is None
        return capsys.readouterr().out

    screen = shown("--help")
    lines = screen.splitlines()
    assert len(lines) <= 53 and max(map(len, lines)) <= 80
    basics = "recipe data image-size fit run-dir global-batch-size steps precision eval-samples config dry-run"
    for flag in [*basics.split(), *(name.replace("_", "-") for name in vars(DCGANOptions()))]:
        assert f"  --{flag} " in screen
    assert screen.count("  hvdgan train --") == 1 and "hvdgan launch -np 4 train" in screen
    for flag in ("--stages", "--tfrecord-image", "--values", "--pipeline.threads", "--max-bad-steps"):
        assert flag not in screen
    for data, flags in (("x/*.tfrecord", {"--tfrecord-image"}), ("f.h5:NAME", ARRAYS), ("mine:source", ARRAYS)):
        screen = shown(f"--help --data {data}")
        assert {flag for flag in ("--tfrecord-image", *ARRAYS) if f"  {flag} " in screen} == flags
    screen = " ".join(shown("--help-all").split())
    for flag in [*to_json(Config(), DCGANOptions()), "resume", "config", "dry_run", "expect_size"]:
        if flag != "pipeline":
            assert f"--{flag.replace('_', '-')} " in screen
    assert "(pixels)" in screen and "(seconds)" in screen and "[default: 64]" in screen
    assert "--pipeline.threads" in screen


def test_steps_is_the_length_of_a_run_also_where_a_recipe_has_steps_of_each_stage(tmp_path):
    assert parse("--steps 7".split()).options.steps == 7
    path = tmp_path / "run.yaml"
    path.write_text("recipe: completion\nsteps: 7\n")
    for words in ("--recipe completion --steps 7", "--recipe completion --steps=7", f"--config {path}"):
        assert parse(words.split()).config.max_steps == 7


def test_precisions_have_other_names_and_flags_override_a_preset_of_metrics():
    assert parse(["--precision", "bf16"]).config.precision == "mixed_bfloat16"
    flags = "--metrics fid50k_full --eval-samples 40"
    evaluation = parse(flags.split()).config.evaluation
    assert (evaluation.eval_samples, evaluation.eval_real_samples, evaluation.eval_features) == (40, 0, "inception")
    assert parse(flags.split()[:2]).config.evaluation.eval_samples == 50_000


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--imagesize 3", "--imagesize"),
        ("--image-size big", '--image-size: "big" is not a whole number'),
        ("--precision half", '"half" is not one of float32, mixed_bfloat16, mixed_float16'),
        ("--ema-decay nan", "--ema-decay"),
        (
            "--ema-half-life 1e4 --ema-decay 0.995",
            "--ema-half-life 10000, --ema-decay 0.995: both set the same average",
        ),
        ("--recipe tiny:Nobody", "--recipe tiny:Nobody: Nobody is not there"),
        ("--recipe no.such:GAN", "there is no module no.such"),
        ("--recipe tiny:Clashing", "the option seed is also a setting of hvdgan; rename it"),
        ("--batch 64", "--batch: no flag of hvdgan train; .* are --global-batch-size"),
    ],
)
def test_a_wrong_command_line_is_one_line_naming_flag_and_value(arguments, complaint):
    with pytest.raises(UserError, match=complaint) as caught:
        parse(arguments.split())
    assert "\n" not in str(caught.value)


FIELDS = (
    "--values log1p+standard --axes DHW --crop 8,16,4 --flip-axes depth,width --inputs lr --input-values none "
    "--input-axes HWC --constants ground --constant-values standard --conditions energy,theta "
    "--condition-values energy=log1p;theta=none"
)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--recipe tiny:Conditional --widths 5 --widths 6 --weights a/b --learning-rate 0.5", {"ema_decay": 0.995}),
        (FIELDS, {"crop": [8, 16, 4], "flip_axes": ["depth", "width"], "condition_values": "energy=log1p;theta=none"}),
        ("", {"crop": [], "image_size": None, "ema_half_life": None}),
        ("--image-size 64x96 --ema-decay 0", {"image_size": [64, 96], "ema_decay": 0.0}),
        ("--ema-half-life 5000", {"ema_decay": None, "ema_half_life": 5000.0}),
    ],
)
def test_saved_settings_and_options_have_their_types_again(flags, expected):
    command = parse(flags.split())
    saved = json.loads(json.dumps(to_json(command.config, command.options)))
    assert expected.items() <= saved.items()
    assert parse_saved(saved, "run") == command


def test_the_two_settings_of_the_average_replace_each_other_and_both_are_refused(tmp_path):
    def of(settings, *arguments):
        (tmp_path / "saved.json").write_text(json.dumps(settings))
        config = parse(["--config", str(tmp_path / "saved.json"), *arguments]).config
        return config.ema_decay, config.ema_half_life

    assert of({}) == (0.995, None) and of({"ema_decay": 0.0}, "--ema-half-life=5000") == (None, 5000)
    assert of({"ema_half_life": 5000}, "--ema-decay", "0.9") == (0.9, None)
    with pytest.raises(UserError, match=r"--ema-half-life 5000, --ema-decay 0\.9"):
        of({"ema_decay": 0.9, "ema_half_life": 5000})

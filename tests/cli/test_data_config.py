"""Flags of arrays on the command line and in config.json."""

import json

import pytest

from hvdgan.cli.data_config import ArrayConfig
from hvdgan.training.command import parse, parse_saved, to_json

FLAGS = (
    "--values log1p+standard --axes DHW --crop 8,16,4 --flip-axes depth,width --inputs lr --input-values none "
    "--input-axes HWC --constants ground --constant-values standard --conditions energy,theta "
    "--condition-values energy=log1p;theta=none"
)


def test_flags_are_flat_in_the_saved_settings_and_read_again():
    command = parse(FLAGS.split())
    assert command.config.arrays == ArrayConfig(
        values="log1p+standard",
        axes="DHW",
        crop=(8, 16, 4),
        flip_axes=("depth", "width"),
        inputs="lr",
        input_values="none",
        input_axes="HWC",
        constants="ground",
        constant_values="standard",
        conditions=("energy", "theta"),
        condition_values="energy=log1p;theta=none",
    )
    saved = json.loads(json.dumps(to_json(command.config, command.options)))
    assert (saved["crop"], saved["conditions"], saved["condition_table"]) == ([8, 16, 4], ["energy", "theta"], None)
    assert parse_saved(saved, "run") == command


@pytest.mark.parametrize(("text", "size"), [("64", 64), ("64,96", (64, 96)), ("64x96", (64, 96))])
def test_the_size_of_pictures_is_one_number_or_two(text, size):
    command = parse(["--image-size", text])
    assert command.config.image_size == size
    assert parse_saved(json.loads(json.dumps(to_json(command.config, command.options))), "run") == command

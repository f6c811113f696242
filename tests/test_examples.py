"""The examples and the commands of docs/recipes.md, from outside the package."""

import json
import re
import shlex
import shutil

import pytest

from launching import CONTROLLERS, ROOT, run, train

DOCS = (ROOT / "docs" / "recipes.md").read_text()
SHORT = ["--stages", "warmup=2,both=3", "--log-every", "1", "--width", "16"]


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_the_example_trains_on_two_ranks_from_its_own_folder(tmp_path, controller):
    shutil.copy(ROOT / "examples" / "my_gan.py", tmp_path)
    arguments = ["--recipe", "my_gan:MyGAN", "--image-size", "16", *SHORT]
    train(tmp_path, *arguments, ranks=2, controller=controller, PYTHONPATH=str(ROOT))
    records = [json.loads(line) for line in (tmp_path / "runs/my_gan.MyGAN/metrics.jsonl").read_text().splitlines()]
    assert [record["stage"] for record in records] == ["warmup"] * 2 + ["both"] * 3
    assert ["fool/loss" in record for record in records] == [False] * 2 + [True] * 3
    config = json.loads((tmp_path / "runs/my_gan.MyGAN/config.json").read_text())
    assert (config["width"], config["warmup_steps"]) == (16, 100)


def test_its_options_are_in_the_help(tmp_path):
    shutil.copy(ROOT / "examples" / "my_gan.py", tmp_path)
    done = train(tmp_path, "--recipe", "my_gan:MyGAN", "--help", PYTHONPATH=str(ROOT))
    assert "--warmup-steps" in done.stdout and "units of the hidden layers" in done.stdout


def test_the_command_of_the_document(tmp_path):
    shutil.copy(ROOT / "examples" / "my_gan.py", tmp_path)
    (command,) = [line for block in re.findall(r"```\n(.*?)```", DOCS, re.DOTALL) for line in block.splitlines()]
    shortened = re.sub(r"--steps \d+", "--steps 4 --max-steps 2", command)
    done = run(shlex.split(shortened), tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/my_gan.MyGAN/samples/step-00000002.png").exists()


def test_the_example_stays_short():
    assert len((ROOT / "examples" / "my_gan.py").read_text().splitlines()) < 80

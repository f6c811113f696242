"""The README's commands run as they are written, with fewer steps; it stays short."""

import re
import shlex

import pytest
from PIL import Image

from launching import ROOT, run
from saved import checkpoint

README = (ROOT / "README.md").read_text()
CODE = re.search(r"^```python\n(.*?)^```\n", README, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"^```\n(.*?)^```", README.replace(CODE[0], ""), re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
PHOTO = Image.new("RGB", (48, 40), "red")


def test_the_runs_of_the_readme_and_of_the_page_on_checkpoints_in_turn(tmp_path):
    trainings = [command for command in COMMANDS if "--max-steps" in command]
    assert [command.split()[1] for command in trainings] == ["train", "launch"]
    trainings += re.findall(r"^hvdgan .*", (ROOT / "docs" / "checkpoints.md").read_text(), re.MULTILINE)
    for number, command in enumerate(trainings, start=1):
        steps = {"--max-steps": f"{4 * number}", "--checkpoint-every": "2"}
        words = shlex.split(command)
        words = [steps.get(before, word) for before, word in zip(["", *words], words, strict=False)]
        done = run([*words, *"--nf 4 --global-batch-size 8 --report never".split()], tmp_path, forked=True)
        assert done.returncode == 0, done.stderr
        assert checkpoint(tmp_path / "runs" / "dcgan", 4 * number).exists()
    said = (tmp_path / "runs" / "dcgan" / "log.txt").read_text()
    assert len(trainings) == 4 and all(f"resuming at step {step} of {step + 4}" in said for step in (4, 8, 12))
    assert (tmp_path / "runs" / "dcgan" / "samples" / "step-00000008.png").exists()


def test_the_run_on_a_folder_of_images(tmp_path):
    (command,) = [command for command in COMMANDS if "--data photos" in command]
    (tmp_path / "photos").mkdir()
    for number in range(4):
        PHOTO.save(tmp_path / "photos" / f"{number}.png")
    few = "--nf 4 --global-batch-size 2 --max-steps 1"
    done = run([*shlex.split(command), *few.split()], tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "photos" / "samples" / "step-00000001.png").exists()


def test_the_code_is_that_of_the_example():
    example = (ROOT / "examples" / "my_gan.py").read_text()
    head, _, methods = CODE[1].partition("\n")
    assert head.partition("  #")[0] in example and methods in example


@pytest.mark.parametrize("flag", ["--dry-run", "--help"])
def test_a_command_that_writes_nothing(tmp_path, flag):
    (command,) = [command for command in COMMANDS if command.endswith(flag)]
    done = run(shlex.split(command), tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout and list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_make_demo(tmp_path):
    """`.ci/versions` runs it, too."""
    assert "make demo" in COMMANDS
    more = {"RUN_DIR": str(tmp_path / "demo"), "CONTROLLER": "gloo", "MAKEFLAGS": ""}
    done = run(["make", "demo", "ARGS=--max-steps 4"], ROOT, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rank(s) on 1 host(s)" in done.stderr
    assert f"look at:    {tmp_path / 'demo' / 'samples' / 'step-00000004.png'}" in done.stdout


def test_every_command_was_recognised_and_it_is_read_in_five_minutes():
    known = ("make setup", "HVDGAN_GPU=1 make setup", "make demo", "make test", "hvdgan ", "source .venv/bin/activate")
    assert all(command.startswith(known) for command in COMMANDS) and len(COMMANDS) == 12
    assert len(README.split()) <= 900

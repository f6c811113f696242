"""docs/recipes.md and docs/using.md: their commands run, and what they say of a recipe is true."""

import re
import shlex
import shutil
import textwrap

import keras
import numpy as np
import pytest

from building import data_of, stage_step, tiny_run, values_of
from hvdgan.recipe import Stage, Update
from hvdgan.train import main as train
from hvdgan.training.command import parse
from keras_cases import CASES, GROUPS, NOT_TRIED, PARTS, documented
from launching import ROOT, run
from tiny import Tiny

EXAMPLES = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "tests" / "support").glob("*.py")])


def blocks(page, language):
    """The code blocks of a page."""
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block for named, block in found if named == language]


def commands(page):
    return [line for block in blocks(page, "") for line in block.splitlines()]


@pytest.mark.parametrize("command", commands("recipes.md"))
def test_a_command_of_the_page_on_recipes(tmp_path, monkeypatch, command):
    """test_examples.py trains them."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    words = shlex.split(command)
    if words[1] != "launch":
        assert words[2].startswith("runs/") or parse(words[2:])  # hvdgan verify takes either
        return
    shutil.copy(ROOT / "examples" / "my_gan.py", tmp_path)
    done = run(shlex.split(re.sub(r"--steps \d+", "--steps 6 --max-steps 2 --width 4", command)), tmp_path, forked=True)
    assert done.returncode == 0 and (tmp_path / "runs/my_gan.MyGAN/samples/step-00000002.png").exists(), done.stderr


@pytest.mark.long
def test_the_commands_for_fields(tmp_path):
    """From the synthetic fields to ensembles, with fewer, smaller fields and fewer steps."""
    smaller = {"examples/": f"{ROOT}/examples/", "--num 5000": "--num 24", "--size 64": "--size 16"}
    smaller |= {"--nf 8": "--nf 2", "--steps 4000": "--steps 2", "--samples 80": "--samples 16"}
    (block,) = [each for each in blocks("recipes.md", "sh") if "downscale" in each]
    for command in block.splitlines():
        for whole, small in smaller.items():
            command = command.replace(whole, small)
        done = run(shlex.split(command), tmp_path, forked=True)
        assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "ensembles.npz") as drawn:
        assert drawn["samples"].shape == (16, 16, 16, 2) and len(set(drawn["index"])) == 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with the runs and files of the commands of docs/using.md."""
    folder = tmp_path_factory.mktemp("using")
    short = "--nf 2 --global-batch-size 2 --max-steps 2 --checkpoint-every 1 --keep 0".split()
    for name, more in (("dcgan", []), ("completion", ["--stages", "completion=2"])):
        assert train(["--recipe", name, "--run-dir", str(folder / "runs" / name), *short, *more]) == 0
    checkpoints = folder / "runs" / "dcgan" / "checkpoints"
    (checkpoints / "step-00001000.safetensors").symlink_to(checkpoints / "step-00000001.safetensors")
    pixels = np.zeros((40, 50), np.uint8)
    pixels[10:20, 10:20] = 255
    for kind in ("photo.jpg", "mask.png", "photos/a.jpg", "masks/a.png"):
        (folder / kind).parent.mkdir(exist_ok=True)
        keras.utils.save_img(folder / kind, pixels[..., None], scale=False)
    return folder


@pytest.mark.long
@pytest.mark.parametrize("command", commands("using.md"))
def test_a_command_of_the_page_on_using(folder, command):
    done = run(shlex.split(re.sub(r"--samples \d+", "--samples 3", command), comments=True), folder, forked=True)
    assert done.returncode == 0, done.stderr
    out = re.search(r"--out (\S+)", command)
    assert done.stdout and (out is None or (folder / out[1]).exists())


@pytest.mark.parametrize("snippet", blocks("recipes.md", "python"))
def test_what_the_page_shows_is_in_an_example(snippet):
    indented = [textwrap.indent(snippet, " " * width) for width in (0, 4, 8)]
    assert any(each in example.read_text() for each in indented for example in EXAMPLES)


class Shared(Tiny):
    """Two updates of a step that own one network."""

    def stages(self):
        judge = Update("judge", owns=["discriminator"], loss=self.judge)
        again = Update("again", owns=["discriminator"], loss=self.judge, every=2)
        fool = Update("fool", owns=["generator"], loss=self.fool)
        return [Stage("adversarial", 4, [judge, again, fool])]


def test_updates_that_own_one_network_share_its_slots_and_count():
    run = tiny_run(Shared)
    slots = {name for name in values_of(run) if name.startswith("optimizers/discriminator/")}
    assert slots == {name for name in values_of(tiny_run(Tiny)) if name.startswith("optimizers/discriminator/")}
    for step in range(2):
        stage_step(run)(step, step, data_of(run, step))
    assert int(run.state.optimizers["discriminator"].iterations) == 3
    assert int(run.state.optimizers["generator"].iterations) == 2


@pytest.mark.parametrize("group", GROUPS)
def test_each_class_of_keras_has_a_case_in_the_table(group):
    known = {*CASES[group], *NOT_TRIED.get(group, {}), *PARTS}
    assert not [names for names in documented(group) if not names & known], "add a case to tests/support/keras_cases.py"

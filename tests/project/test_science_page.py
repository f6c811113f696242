"""docs/science.md and the first examples of docs/data.md: their commands run as they are written and print what is
shown, and the flags for each of the eight codes are flags."""

import re
import shlex
import shutil
from textwrap import indent

import h5py
import numpy as np
import pytest
from PIL import Image

from hvdgan.training.command import parse
from launching import ROOT, run

PAGE = (ROOT / "docs" / "science.md").read_text()
(COMMANDS,) = re.findall(r"^```\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ROWS = {
    line.split(" | ")[0].removeprefix("| "): re.findall(r"`(--[^`]+)`", line.split(" | ")[2])
    for line in PAGE.partition("| code |")[2].splitlines()[2:]
    if line.startswith("| ")
}


@pytest.mark.parametrize("name", ROWS)
def test_the_flags_of_a_row_are_taken(name):
    assert len(ROWS) == 8 and parse([word for each in ROWS[name] for word in shlex.split(each)])


@pytest.mark.long
@pytest.mark.timeout(1800)  # some machines need five seconds for a step in three dimensions, others 0.2
def test_from_an_hdf5_file_to_samples_and_a_network_in_physical_units(tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    printed = [said(command, tmp_path) for command in COMMANDS.splitlines()]
    assert indent("".join(printed[2:]), " " * 4) in PAGE
    with h5py.File(tmp_path / "showers.h5") as true, h5py.File(tmp_path / "drawn.h5") as drawn:
        assert drawn["energy"][:] == pytest.approx(50, rel=1e-4) and drawn["theta"][:] == pytest.approx(1.57, rel=1e-4)
        for mine, of_data in (("samples", "ECAL"), ("energy", "energy"), ("theta", "theta")):
            assert drawn[mine].attrs["units"] == true[of_data].attrs["units"]
        near = np.abs(true["energy"][:] - 50) < 10
        response = (true["ECAL"][:][near].sum(axis=(1, 2, 3)) / true["energy"][:][near]).mean()
        total = drawn["samples"][:].sum(axis=(1, 2, 3, 4)).mean() / 50
    # 200 steps are too few for the profiles; the unit is right, and not that of what networks see.
    assert 0.5 * response < total < 2 * response and (tmp_path / "drawn.png").exists()


def said(command, folder):
    """What a command prints, but h5ls as h5py has it."""
    if command.startswith("h5ls "):
        with h5py.File(folder / command.split()[1]) as file:
            return "".join(f"{name:24} Dataset {{{', '.join(map(str, file[name].shape))}}}\n" for name in sorted(file))
    done = run(shlex.split(command), folder, seconds=1500, forked=True)
    assert (done.returncode, done.stderr) == (0, "") or "--dry-run" in command or "hvdgan.train" in command, done.stderr
    return done.stdout + done.stderr


def test_the_first_examples_of_the_page_on_data_print_what_it_shows(tmp_path):
    """But for versions, the machine, and the line breaks."""
    page = (ROOT / "docs" / "data.md").read_text().partition("## Kinds of data")[0]
    examples = re.findall(r"^```\n(.*?)^```\n\n```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "photos").mkdir()
    for number in range(302):
        Image.new("RGB", (307, 173), "red").save(tmp_path / "photos" / f"A{1 + number:03}.jpeg")
    assert len(examples) == 4
    for commands, shown in examples:
        found = "".join(said(command, tmp_path) for command in commands.splitlines())
        found, shown = (
            re.sub(r"\d+\.\d+\.\d+\w*|\S+(?=: rank)|\d+ cores?", "VARIES", " ".join(text.split()))
            for text in (found, shown)
        )
        assert found == shown

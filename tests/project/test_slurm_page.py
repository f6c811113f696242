"""The pages on several ranks: their commands parse, their messages are the program's, their files are there."""

import re
import shlex
import subprocess
import sys

import pytest

from hvdgan import slurm, train
from hvdgan.training import command as cli
from launching import ROOT, environment

PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("slurm", "ranks", "scaling", "dependencies")}
COMMANDS = [
    line.strip()
    for page in PAGES.values()
    for block in re.findall(r"```\n(.*?)```", page, re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]
# What Slurm, Horovod and Open MPI say.
FOREIGN = (
    *("Invalid MPI type", "prterun was unable", "ssh not successful", "Timed out waiting for", "One or more tensors"),
    "Compatibility with CMake",
)
# What nothing here can run.
NOT_HERE = ("module load", "conda create", "conda activate", "pip install", "source .venv/bin/activate")


def check_trainer(arguments):
    """The arguments parse as hvdgan.train's."""
    command = cli.parse(arguments)
    assert command is not None and command.config.recipe == "dcgan"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(command, capsys):
    words = shlex.split(command)
    own = {}
    while "=" in words[0]:
        own |= [words.pop(0).split("=", 1)]
    if words[0] == "sbatch":
        (script,) = [word for word in words if word.endswith(".sbatch")]
        text = (ROOT / script).read_text()
        assert all(f"\n{name}=" in text for name in own)
        options = words[1 : words.index(script)]
        assert all(f"#SBATCH {option.partition('=')[0]}=" in text for option in options)
        check_trainer(words[words.index(script) + 1 :])
    elif words[:2] == ["hvdgan", "launch"]:
        launch = [sys.executable, "-m", "hvdgan.launch", "--print", *words[2:]]
        done = subprocess.run(launch, env=environment(**own), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        printed = shlex.split(done.stdout)
        check_trainer(printed[printed.index("hvdgan.train") + 1 :])
    elif words[:2] == ["hvdgan", "train"]:
        assert train.main(words[2:]) == 0
        said = capsys.readouterr().out
        quoted = PAGES["scaling"].replace("\n>\n> ", "\n\n").replace("\n\n> ", "\n\n").replace("\n> ", " ")
        assert all(f"\n{line}\n" in quoted for line in said[said.index("as if on ") :].splitlines())
    elif words[:2] == ["hvdgan", "slurm"]:
        assert slurm.main(words[2:]) == 0
        check_trainer(words[words.index("--") + 1 :])
        assert "#SBATCH --gres=gpu:4\n" in capsys.readouterr().out
    elif words[-2:] == ["make", "setup"]:
        assert not own or own == {"HVDGAN_HOROVOD": "existing"}  # test_setup.py has what it plans
    elif words[-3:] == ["python", "-m", "hvdgan.doctor"]:
        assert words[:2] == ["srun", "--mpi=pmix"]
    elif words == ["hvdgan", "doctor"]:
        pass  # test_doctor.py has what it finds
    else:
        assert " ".join(words[:2]) in NOT_HERE


def test_the_variables_of_the_table_are_those_of_the_scripts():
    table = PAGES["slurm"].partition("| variable |")[2].partition("\n\n")[0]
    named = {name for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    scripts = "".join(path.read_text() for path in (ROOT / "slurm").glob("*.sbatch"))
    assert named == {*re.findall(r"^([A-Z_]+)=", scripts, re.MULTILINE)}


def test_the_messages_are_those_of_the_program():
    source = "".join(path.read_text() for path in [*(ROOT / "hvdgan").rglob("*.py"), *(ROOT / "launch").glob("*.sh")])
    # A string that continues in the next line, and what is filled in.
    source = re.sub(r'"\s*\n\s*f?"', "", source)
    rows = [
        row
        for table in PAGES["ranks"].split("| message |")[1:]
        for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
    ]
    ours = [text for row in rows for text in re.findall(r"`(.*?)`", row) if not text.startswith(FOREIGN)]
    assert len(ours) > 5
    assert not [part for text in ours for part in text.split("…") if part.strip() not in source]

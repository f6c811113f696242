"""horovodrun reads every word of a command line as one of its own flags first: no flag of hvdgan may confuse it.

On Pythons before 3.12 it ends with `ambiguous option: --num could match --num-proc, --num-nccl-streams`.
"""

import argparse
import importlib
import re
import sys

import pytest
from horovod.runner import launch

from hvdgan.__main__ import COMMANDS
from launching import ROOT

RECIPES = sorted(path.stem for path in (ROOT / "hvdgan" / "recipes").glob("[a-z]*.py"))


@pytest.fixture(scope="module")
def flags():
    """Each flag that a command's help names, with the command."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "120")
        for name in COMMANDS:
            for more in [["--recipe", recipe] for recipe in RECIPES] if name == "train" else [[]]:
                found |= dict.fromkeys(re.findall(r"(?<![\w-])--[a-z][\w-]*", help_of(name, *more)), name)
    return found


def help_of(name, *words):
    with pytest.MonkeyPatch.context() as patch:
        said = []
        patch.setattr(sys.stdout, "write", said.append)
        assert importlib.import_module(f"hvdgan.{name}").main([*words, "--help"]) == 0
    return "".join(said)


def test_horovodruns_own_parser_takes_all_flags_of_all_commands_on_any_python(flags, monkeypatch):
    assert {"--global-batch-size", "--nf", "--samples", "--nodes", "--min-np", "--local-batch-size"} <= set(flags)
    own, add = [], argparse._ActionsContainer.add_argument  # noqa: SLF001
    monkeypatch.setattr(
        argparse._ActionsContainer,  # noqa: SLF001
        "add_argument",
        lambda self, *names, **more: own.extend(names) or add(self, *names, **more),
    )
    words = [word for flag in flags if flag != "--help" for word in (flag, "1")]
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "2", "python", "-m", "hvdgan.train", *words])
    assert launch.parse_args().command == ["python", "-m", "hvdgan.train", *words]
    assert {"--num-proc", "--num-nccl-streams", "--timeline-filename"} <= set(own)
    begun = {flag: [each for each in own if each.startswith(flag)] for flag in flags if flag not in own}
    assert not {flag: names for flag, names in begun.items() if len(names) > 1}

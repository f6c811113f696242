"""horovodrun reads every word of a command line as one of its own flags first: no flag of hvdgan may confuse it.

On Pythons before 3.12 it ends with `ambiguous option: --num could match --num-proc, --num-nccl-streams`.
"""

import argparse
import importlib
import re
import sys

from horovod.runner import launch

from hvdgan.__main__ import COMMANDS
from hvdgan.recipe.loading import known_recipes


def test_horovodruns_own_parser_takes_all_flags_of_all_commands_on_any_python(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    for command in [*COMMANDS, *(f"train --recipe {recipe}" for recipe in known_recipes())]:
        name, *words = command.split()
        assert importlib.import_module(f"hvdgan.{name}").main([*words, "--help"]) == 0
    flags = {*re.findall(r"(?<![\w-])--[a-z][\w-]*", capsys.readouterr().out)} - {"--help"}
    assert {"--global-batch-size", "--nf", "--samples", "--nodes", "--min-np", "--local-batch-size"} <= flags
    own, add = [], argparse._ActionsContainer.add_argument  # noqa: SLF001
    monkeypatch.setattr(
        argparse._ActionsContainer,  # noqa: SLF001
        "add_argument",
        lambda self, *names, **more: own.extend(names) or add(self, *names, **more),
    )
    words = [word for flag in sorted(flags) for word in (flag, "1")]
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "2", "python", "-m", "hvdgan.train", *words])
    assert launch.parse_args().command == ["python", "-m", "hvdgan.train", *words]
    assert {"--num-proc", "--num-nccl-streams", "--timeline-filename"} <= set(own)
    begun = {flag: [each for each in own if each.startswith(flag)] for flag in flags - {*own}}
    assert not {flag: names for flag, names in begun.items() if len(names) > 1}

"""The pins of launch/constraints.txt and the ranges of setup.cfg agree."""

import configparser

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from launching import ROOT


def pins(python_version):
    """The version of each package that launch/constraints.txt names for a Python."""
    lines = (ROOT / "launch" / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    here = {"python_version": python_version, "python_full_version": f"{python_version}.0"}
    chosen = [each for each in requirements if each.marker is None or each.marker.evaluate(here)]
    pinned = {each.name: str(each.specifier)[2:] for each in chosen}
    assert len(pinned) == len(chosen)
    return pinned


def wanted():
    """What setup.cfg asks for."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    lists = [settings["options"]["install_requires"], *settings["options.extras_require"].values()]
    return [Requirement(line) for line in "\n".join(lists).splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("python_version", ["3.10", "3.11", "3.12"])
def test_pins_agree_with_setup_cfg(python_version):
    pinned = pins(python_version)
    for each in wanted():
        assert each.name in pinned
        assert each.specifier.contains(pinned[each.name]), f"{each} and the pin {pinned[each.name]}"


def test_nothing_older_is_allowed_than_the_tests_run_with_on_the_oldest_python():
    pinned = pins("3.10")
    bounds = {each.name: bound.version for each in wanted() for bound in each.specifier if bound.operator == ">="}
    assert {"tensorflow", "keras", "numpy"} <= bounds.keys()
    assert {name: pinned[name] for name, bound in bounds.items() if Version(bound) != Version(pinned[name])} == {}

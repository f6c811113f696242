"""The pins of launch/constraints*.txt and the ranges of setup.cfg agree."""

import configparser
import re

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from launching import ROOT

LAUNCH = ROOT / "launch"
PYTHONS = {
    path.stem.removeprefix("constraints-"): re.search("^# Python: (.*)$", path.read_text(), re.MULTILINE)[1].split()
    for path in LAUNCH.glob("constraints-*.txt")
}
PAIRS = [(series, python) for series, pythons in sorted(PYTHONS.items()) for python in pythons]


def pins(series, python_version):
    """The version of each package for a TensorFlow and a Python."""
    files = [LAUNCH / "constraints.txt", LAUNCH / f"constraints-{series}.txt"]
    lines = "\n".join(path.read_text() for path in files).splitlines()
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


@pytest.mark.parametrize(("series", "python_version"), PAIRS)
def test_pins_agree_with_setup_cfg(series, python_version):
    assert sorted(PYTHONS) == ["2.18", "2.19", "2.20", "2.21"]
    pinned = pins(series, python_version)
    assert pinned["tensorflow"] == pinned["tensorflow-cpu"] and pinned["tensorflow"].startswith(f"{series}.")
    for each in wanted():
        assert each.name in pinned
        assert each.specifier.contains(pinned[each.name]), f"{each} and the pin {pinned[each.name]}"


def test_nothing_older_is_allowed_than_the_tests_run_with_on_the_oldest_python_and_tensorflow():
    pinned = pins("2.18", "3.11")
    bounds = {each.name: bound.version for each in wanted() for bound in each.specifier if bound.operator == ">="}
    assert {"tensorflow", "tensorflow-cpu", "keras", "numpy"} <= bounds.keys()
    assert {name: pinned[name] for name, bound in bounds.items() if Version(bound) != Version(pinned[name])} == {}

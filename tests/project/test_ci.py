"""The core of the tests that .ci/versions runs with other versions is there."""

import re

from launching import ROOT


def test_the_files_of_its_core_are_there():
    named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", (ROOT / ".ci" / "versions").read_text())
    assert len(named) > 5 and all(f"def {test}" in (ROOT / file).read_text() for file, test in named), named

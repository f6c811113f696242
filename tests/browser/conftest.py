import pytest

import browsing


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A window of a real browser."""
    window = browsing.Browser(tmp_path_factory.mktemp("profile"))
    yield window
    window.close()

"""Each test runs on the CPU, and where there is a GPU on that too."""

import pytest

from on_device import GPUS, NEEDS, Place


@pytest.fixture(
    scope="session",
    params=[
        "CPU",
        pytest.param("GPU", marks=[pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason=NEEDS.format("a GPU"))]),
    ],
)
def place(request, tmp_path_factory):
    return Place(request.param, tmp_path_factory.mktemp(request.param))

"""The axes of a sample: which shapes are taken, how they are turned, and which are refused as unclear."""

import numpy as np
import pytest

from hvdgan.data.axes import axes_of
from hvdgan.errors import UserError

TAKEN = [
    ((9, 64), None, "C", (64,)),
    ((9, 8, 6), None, "HW", (8, 6, 1)),
    ((9, 64), "W", "W", (64, 1)),
    ((9, 64, 2), "WC", "WC", (64, 2)),
    ((9, 2, 64), "CW", "CW", (64, 2)),
    ((9, 8, 6, 2), None, "HWC", (8, 6, 2)),
    ((9, 5, 8, 6, 2), None, "DHWC", (5, 8, 6, 2)),
    ((9, 8, 6, 4), "HWC", "HWC", (8, 6, 4)),
    ((9, 2, 8, 6), "CHW", "CHW", (8, 6, 2)),
    ((9, 51, 51, 25), "DHW", "DHW", (51, 51, 25, 1)),
    ((9, 3, 5, 8, 6), "CDHW", "CDHW", (5, 8, 6, 3)),
]


@pytest.mark.parametrize(("shape", "given", "order", "sample"), TAKEN)
def test_the_channels_come_last(shape, given, order, sample):
    axes = axes_of(shape, given, flag="--axes", where="a.npy")
    assert (axes.order, axes.shape(shape[1:])) == (order, sample)
    assert axes.assumed == (given is None and len(order) > 2)  # where the shape allows others
    numbers = np.arange(np.prod(shape)).reshape(shape)
    arranged = axes.arranged(numbers)
    assert arranged.shape == (shape[0], *sample)
    # One number, found by the letters of its axes.
    place = dict(zip(order, (length - 1 for length in shape[1:]), strict=True)) | {"C": 1 if "C" in order else 0}
    stored = tuple(place[axis] for axis in order)
    turned = tuple(place[axis] for axis in "DHWC" if axis in place)
    assert arranged[(3, *turned)] == numbers[(3, *stored)]


OR_SPACE = r"is the last axis one of {} channels, or of space\? give --axes {} for channels last, {}"
PLANES = "CHW for channels first, or DHW for a volume without channels"
REFUSED = [
    (
        (9, 8, 6, 4),
        None,
        r"red, green, blue and opacity, or four fields\? give --channels 3 for 8-bit pictures, .* HWC",
    ),
    ((9, 1024, 1), None, r"sequences of channels, or fields\? give --axes WC .* CW .* HW for fields"),
    ((9, 3, 8, 8), None, r"channels first or last\? give --axes CHW or HWC"),
    ((9, 51, 51, 25), None, OR_SPACE.format(25, "HWC", PLANES)),
    ((9, 5, 16, 16, 16), None, OR_SPACE.format(16, "DHWC", "or CDHW for channels first")),
    ((9,), None, r"array of shape \(9,\); expected \(N, C\), \(N, H, W\), \(N, H, W, C\) or \(N, D, H, W, C\)"),
    ((0, 8, 8, 3), None, "it holds no numbers; expected at least one sample"),
    ((9, 8, 6), "HWC", r"--axes HWC: names 3 axes, and a\.npy has 2 per sample: \(9, 8, 6\)"),
    ((9, 8, 6), "WH", "--axes WH: expected C, W, WC, CW, HW, HWC, CHW, DHW, DHWC or CDHW"),
]


@pytest.mark.parametrize(("shape", "given", "message"), REFUSED)
def test_what_is_unclear_is_refused(shape, given, message):
    with pytest.raises(UserError, match=message) as caught:
        axes_of(shape, given, flag="--axes", where="a.npy")
    assert "\n" not in str(caught.value)

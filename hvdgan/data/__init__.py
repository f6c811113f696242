"""Samples by index, their global order, and the batches of a rank (`hvdgan.data.batches`).

The pipeline is not imported here, because it loads TensorFlow: the processes of hvdgan prepare do not need it.
"""

from hvdgan.data.bad_files import BadFile, BadImage, refuse_if_too_many
from hvdgan.data.holdout import HeldOut, hold_out
from hvdgan.data.opening import open_source
from hvdgan.data.samples import Samples, cached

__all__ = ["BadFile", "BadImage", "HeldOut", "Samples", "cached", "hold_out", "open_source", "refuse_if_too_many"]

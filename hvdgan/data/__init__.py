"""Images by index, their global order, and, in `hvdgan.data.pipeline`, the batches of a rank.

The pipeline alone loads TensorFlow, and is not imported here: hvdgan.prepare reads images in processes without it.
"""

from hvdgan.data.cache import cached
from hvdgan.data.holdout import HeldOut, hold_out
from hvdgan.data.opening import open_source
from hvdgan.data.source import BadFile, BadImage, Source, refuse_if_too_many

__all__ = ["BadFile", "BadImage", "HeldOut", "Source", "cached", "hold_out", "open_source", "refuse_if_too_many"]

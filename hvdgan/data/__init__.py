"""Images by index, their global order, and the batches of a rank."""

from hvdgan.data.base import BadFile, BadImage, Source, refuse_if_too_many
from hvdgan.data.cache import cached
from hvdgan.data.holdout import hold_out
from hvdgan.data.pipeline import Batches
from hvdgan.data.sources import open_source

__all__ = ["BadFile", "BadImage", "Batches", "Source", "cached", "hold_out", "open_source", "refuse_if_too_many"]

"""The axes of a sample in an array: their names, their order, and what is refused as unclear."""

from collections.abc import Sequence

import numpy as np

from hvdgan.data.store import DerivedStore, Store
from hvdgan.data.unclear import Unclear
from hvdgan.errors import UserError

_BY_RANK = {1: "C", 2: "HW", 3: "HWC", 4: "DHWC"}
_FEW = 4
_MANY = 16
"""most channels that are taken for such without --axes"""
_LONG = 32
"""length from which two axes, of which the other has few entries, may be those of a sequence"""


class Axes:
    """Moves the channels of samples to the last axis, and adds that axis where there is none."""

    def __init__(self, order: str, *, assumed: bool = False) -> None:
        self.order, self.assumed = order, assumed

    def shape(self, stored: Sequence[int]) -> tuple[int, ...]:
        """Shape of a sample, channels last, from its stored shape."""
        sizes = dict(zip(self.order, stored, strict=True))
        return (*(sizes[axis] for axis in self.order if axis != "C"), sizes.get("C", 1))

    def arranged(self, samples: np.ndarray) -> np.ndarray:
        """Samples (B, ...) as they are stored, with the channels last."""
        if "C" not in self.order:
            return samples[..., None]
        return np.moveaxis(samples, 1, -1) if self.order[0] == "C" and len(self.order) > 1 else samples


def axes_of(shape: Sequence[int], given: str | None, *, flag: str, where: str) -> Axes:
    """The axes of an array's samples; beside samples, by a flag of the form --axes-of NAME=, it may have any number."""
    rank, array = len(shape) - 1, f"{where}: array of shape {tuple(shape)}"
    flag, is_beside = (flag, True) if flag.endswith("=") else (f"{flag} ", False)
    if 0 in shape:
        raise UserError(f"{array}: it holds no numbers; expected at least one sample")
    if given is not None:
        order = given.upper()
        space = order.replace("C", "", 1)
        if space not in ("", "W", "HW", "DHW") or order not in (space, space + "C", "C" + space) or not order:
            raise UserError(f"{flag}{given}: expected C, W, WC, CW, HW, HWC, CHW, DHW, DHWC or CDHW")
        if len(order) != rank:
            raise UserError(f"{flag}{given}: names {len(order)} axes, and {where} has {rank} per sample: {shape}")
        return Axes(order)
    if is_beside and rank not in _BY_RANK:
        return Axes("0123456789"[: rank - 1] + "C" if rank > 0 else "")
    if rank not in _BY_RANK:
        raise UserError(f"{array}; expected (N, C), (N, H, W), (N, H, W, C) or (N, D, H, W, C)")
    if rank == 2 and min(shape[1:]) <= _FEW and max(shape[1:]) >= _LONG:
        raise Unclear(
            f"{array}: sequences of channels, or fields? give {flag}WC for sequences "
            "with channels last, CW for channels first, or HW for fields",
            flag.strip(),
            "WC" if shape[1] > shape[2] else "CW",
        )
    if rank == 3 and shape[-1] == _FEW:
        raise Unclear(
            f"{array}: red, green, blue and opacity, or four fields? give --channels 3 "
            f"for 8-bit pictures, which are laid over white, or {flag}HWC for four fields",
            flag.strip(),
            "HWC",
        )
    if rank in (3, 4) and shape[1] <= _FEW < shape[-1]:
        first, last = (f"C{_BY_RANK[rank - 1]}", _BY_RANK[rank]) if rank == 3 else ("CDHW", "DHWC")
        raise Unclear(f"{array}: channels first or last? give {flag}{first} or {last}", flag.strip(), first)
    if rank in (3, 4) and (shape[-1] > _MANY or shape[-1] == shape[-2] > _FEW):
        order = _BY_RANK[rank]
        first = "CHW for channels first, or DHW for a volume without channels"
        others = first if rank == 3 else "or CDHW for channels first"
        raise Unclear(
            f"{array}: is the last axis one of {shape[-1]} channels, or of space? give "
            f"{flag}{order} for channels last, {others}",
            flag.strip(),
            "DHW" if rank == 3 else order,
        )
    return Axes(_BY_RANK[rank], assumed=rank in (3, 4))


class ArrangedStore(DerivedStore):
    """A store with its channels last, by the axes that a flag gives, those of the file, or those of its shape."""

    def __init__(self, stored: Store, given: str | None, flag: str, where: str) -> None:
        if stored.unclear and given is None:
            sample = f"if each {stored.dims[0]} is a sample, name the axes of one with {flag}"
            raise UserError(f"{where}: {stored.unclear}; or, {sample}")
        axes = axes_of(stored.shape, given or stored.axes or None, flag=flag, where=where)
        shape = axes.shape(stored.shape[1:])
        super().__init__(stored, (stored.shape[0], *shape), axes=axes.order)
        self._axes, self.dims = axes, stored.dims
        self.space = tuple(dim for dim, axis in zip(stored.dims[1:], axes.order, strict=False) if axis != "C")
        channels = f"{shape[-1]} channel{'s' * (shape[-1] > 1)}"
        self.assumed = [f"axes {axes.order} assumed: {channels} ({flag})"] if axes.assumed else []
        """the axes in words if they are assumed"""

    def read(self, indices: np.ndarray) -> np.ndarray:
        return self._axes.arranged(self._stored.read(indices))

"""Data of the user's own: anything with len() and [i], named as --data my_module:source.

`source` is an object, or a class or function that makes one from --data-options, such as a data set of Grain, PyTorch,
Hugging Face or TensorFlow. Each item is an array, a picture of Pillow's, (image, label), or a dict of such.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from hvdgan.data.bad_files import BadImage, reasons
from hvdgan.data.numpy_files import NumpyArray
from hvdgan.data.pixels import GREY, to_pixels, upright
from hvdgan.data.sharing import pack, share_out_ranges, unpack
from hvdgan.data.store import Container, Store, as_texts, named_errors
from hvdgan.errors import RunError, UserError, in_one_line
from hvdgan.errors.shared_errors import Peers, on_all
from hvdgan.settings.config import Config
from hvdgan.settings.own_code import refuse_borrowed

_WANTED = "expected an object with len() and [i], or a class or function that makes one"
_ITEMS = "an array, (image, label), or a dict with images, and perhaps inputs, labels, conditions and arrays"
_BESIDE = ("labels", "conditions")
_KEYS = {"image": "images", "img": "images", "input": "inputs", "label": "labels"}  # of Hugging Face's rows


class _Recent(threading.local):
    """The items that a thread has read and of which it needs more parts, by their numbers."""

    def __init__(self) -> None:
        self.items: dict[int, Mapping[str, Any]] = {}


class OwnData(Container):
    """An object with len() and [i], whose items are arrays, pictures, (image, label) or dicts of such.

    Labels and conditions are attributes with an entry for each item; else each rank reads a part of the items for them.
    """

    def __init__(self, config: Config, peers: Peers) -> None:
        super().__init__(config.data)
        self._config, self._peers, self._recent, self._pictures = config, peers, _Recent(), dict[str, Any]()
        on_all(self._look, peers, f"--data {config.data}")
        if type(self._items).__repr__ is not object.__repr__:  # which holds an address in memory
            self.identity = repr(self._items).encode()
        self.class_names = getattr(self._items, "class_names", None)

    def settings(self, config: Config, *, paired: bool) -> Config:
        if config.arrays.conditions or "conditions" not in self.names():
            return config
        return dataclasses.replace(config, arrays=dataclasses.replace(config.arrays, conditions=("conditions",)))

    def names(self) -> list[str]:
        return [*{**self.first, **self._whole}]

    def get(self, name: str) -> Store:
        return NumpyArray(f"{self.data}: {name}", self._beside(name)) if name in _BESIDE else _OwnArray(self, name)

    def read(self, name: str, index: int, wanted: np.ndarray) -> np.ndarray:
        """One array of an item, of the shape and the type that are wanted."""
        named, recent = f"{self.data}[{index}]", self._recent.items
        try:
            if index not in recent:
                recent[index] = self._parts_of(self._items[index])
            # A pair is one item, of which the image is read last.
            value = recent.pop(index)[name] if name in ("images", *_BESIDE) else recent[index][name]
        except (OSError, MemoryError) as error:
            raise RunError(f"--data {named}: {_told(error)}") from error
        except Exception as error:  # the user's code may raise anything
            raise BadImage(named, _told(error)) from error
        with reasons(named):
            found = self.array(name, value)
        casting: Any = "same_kind" if found.dtype.kind in "fU" else "safe"
        if found.shape != wanted.shape or not np.can_cast(found.dtype, wanted.dtype, casting):
            raise BadImage(named, f"{name} {found.shape} of {found.dtype}; expected {wanted.shape} of {wanted.dtype}")
        return found if found.dtype.kind == "U" else found.astype(wanted.dtype, copy=False)

    def forget_others(self, indices: list[int]) -> None:
        """Forget the items that this thread has kept for further arrays of theirs, but those of these numbers."""
        for index in self._recent.items.keys() - {*indices}:
            del self._recent.items[index]

    def _look(self) -> None:
        """Make the object, and look at three items; those that differ when they are read again are refused."""
        arrays = self._config.arrays.arrays
        self._items = _made(self.data, self._config.data_options)
        try:
            self.count = len(self._items)
            item = self._items[0] if self.count else None
        except Exception as error:
            raise UserError(f"--data {self.data}: {_told(error)}; {_WANTED}") from error
        if item is None:
            raise UserError(f"--data {self.data}: {'item 0 is None' if self.count else 'no items'}; expected {_ITEMS}")
        self.first = self._parts_of(item)
        self._whole = {name: found for name in _BESIDE if (found := getattr(self._items, name, None)) is not None}
        found = {index: self._tried(index) for index in {0, self.count // 2, self.count - 1}}
        with ThreadPoolExecutor(1) as pool:
            for index in (*found, 0):  # often, since some items are random at times only
                again, before = pool.submit(self._tried, index).result(), found[index]
                if any(again[name].tobytes() != before[name].tobytes() for name in again.keys() & before.keys()):
                    raise UserError(
                        f"--data {self.data}: item {index} differs when it is read again; an item must be the same "
                        "each time: augment in the recipe (--flip, --crop, draw())"
                    )
        for index, parts in found.items():
            if more := sorted(parts.keys() & {"inputs", *arrays, *_BESIDE} - {*self.names()}):
                raise UserError(
                    f"--data {self.data}: item {index} has {more[0]}, and item 0 has none; expected the same parts of "
                    "each item"
                )
        for name in [name for name, value in self.first.items() if isinstance(value, Image.Image)]:
            shapes = [each[name].shape for each in found.values() if name in each]
            is_one, size = len({shape[:2] for shape in shapes}) < 2, self._config.image_size
            if not is_one and (size is None or name in arrays):
                cure = "give arrays of one size" if name in arrays else "bring them to one with --image-size"
                raise UserError(f"--data {self.data}: {name} has pictures of several sizes; {cure}")
            self._pictures[name] = 3 in map(len, shapes), None if is_one else size

    def _tried(self, index: int) -> dict[str, np.ndarray]:
        """Copies of the arrays of an item; what is broken is found again when it is read."""
        found = dict[str, np.ndarray]()
        with contextlib.suppress(Exception):
            for name, value in self._parts_of(self._items[index]).items():
                with contextlib.suppress(Exception):
                    found[name] = self.array(name, value).copy()
        return found

    def _parts_of(self, item: Any) -> Mapping[str, Any]:
        """The parts of an item by their names."""
        if isinstance(item, Mapping):
            return {**item, **{known: item[key] for key, known in _KEYS.items() if key in item and known not in item}}
        if isinstance(item, list | tuple) and len(item) > isinstance(item, list):
            shape, *others = [getattr(each, "shape", ()) for each in item]
            is_array = len(shape) and shape not in others and all(len(each) < 2 for each in others)
            if is_array or isinstance(item[0], Image.Image):
                return dict(zip(("images", "labels"), item, strict=False))
        return {"images": item}

    def array(self, name: str, value: Any) -> np.ndarray:
        """An array of numbers or texts, and of a picture its pixels, (H, W) if it is grey; errors are of any type."""
        deep = ("I", "F", *(("I;16", "I;16B") if self._config.arrays.values else ()))
        if not isinstance(value, Image.Image) or value.mode in deep:
            return as_texts(np.asarray(_plain(value)), name)
        image, (in_colour, size) = upright(value.copy()), self._pictures.get(name, (False, None))
        channels = 3 if in_colour or image.mode not in GREY else 1
        pixels = to_pixels(image, size or (image.height, image.width), channels, self._config.fit)
        return pixels[..., 0] if channels == 1 else pixels

    def _beside(self, name: str) -> np.ndarray:
        """Labels (N,) or conditions (N, k): an attribute of the object, or a part of the items, which are all read."""
        if name in self._whole:
            with named_errors(f"{self.data}: its {name}", "as an array", "one entry for each item"):
                return self.array(name, self._whole[name])
        part = _OwnArray(self, name)
        if len(part.shape) > 2:
            raise UserError(f"--data {self.data}: {name} of item 0 have shape {part.shape[1:]}; expected one number")

        def look(some: range) -> Any:
            with named_errors(f"{self.data}: {name}", "whole", f"the {name} of every item"):
                return pack(part.read(np.array(some)))

        length = -(-self.count // (16 * self._peers.size))
        found = share_out_ranges(self.count, look, self._peers, f"--data {self.data}: {name}", length=length)
        return np.concatenate([unpack(each, part.dtype.type) for each in found]).reshape(part.shape)


def _plain(value: Any) -> Any:
    """A tensor on the host, and NaN in place of masked numbers, also in a list of such."""
    if isinstance(value, list | tuple):
        return [_plain(each) if hasattr(each, "shape") else each for each in value]
    if hasattr(value, "detach"):  # PyTorch's makes no array on a GPU, or if it has a gradient
        value = value.detach().cpu()
    if np.ma.is_masked(value) and value.dtype.kind != "f":
        raise ValueError(f"{np.ma.count_masked(value):,} of {value.size:,} numbers are masked")
    return np.ma.filled(value, np.nan) if np.ma.is_masked(value) else value


class _OwnArray(Store):
    """The arrays of one name of all items."""

    def __init__(self, data: OwnData, part: str) -> None:
        self._data, self._part = data, part
        kind = f"as an array ({type(data.first[part]).__name__})"
        with named_errors(f"{data.data}: {part} of item 0", kind, _ITEMS):
            self._first = data.array(part, data.first[part])
        super().__init__(data.data, (data.count, *self._first.shape), self._first.dtype, prepared=False)

    def read(self, indices: np.ndarray) -> np.ndarray:
        self._data.forget_others(indices.tolist())
        return np.stack([self._data.read(self._part, index, self._first) for index in indices.tolist()])


def _made(data: str, options: Sequence[str]) -> Any:
    """The object that --data names, or that its class or function makes from the options."""
    module, _, attribute = data.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        is_made = hasattr(found, "__getitem__") and not isinstance(found, type)
        if not is_made:
            refuse_borrowed(f"--data {data}", found)
        made = found if is_made else found(**dict(map(_option, options)))
    except UserError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise UserError(f"--data {data}: {_told(error)}; {_WANTED}") from error
    if is_made and options:
        raise UserError(f"--data-options {','.join(options)}: {data} is an object; options are for a class or function")
    if not (hasattr(made, "__len__") and hasattr(made, "__getitem__")):
        raise UserError(f"--data {data}: {type(made).__name__} has no len() and [i]; {_WANTED}")
    return made


def _option(text: str) -> tuple[str, Any]:
    """The name and the value of KEY=VALUE: a number, true, false, null or a list as in JSON, else a text."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise UserError(f"--data-options {text}: expected KEY=VALUE, such as split=train")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _told(error: BaseException) -> str:
    """The error of the user's code, with its place."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {in_one_line(error)}{where}"

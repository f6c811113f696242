"""The data sets that come with Keras, such as MNIST and CIFAR-10."""

import contextlib
import io
import os

import numpy as np

from hvdgan.cli.errors import UserError, in_one_line
from hvdgan.cli.shared_errors import ALONE, Peers
from hvdgan.cli.types import Fit
from hvdgan.data.pixels import WrongAspect, arrays_to_pixels, refuse_aspect
from hvdgan.data.sharing import in_turn
from hvdgan.data.source import PictureSource, Size, fingerprint

KERAS = ("mnist", "fashion_mnist", "cifar10", "cifar100")


class KerasSource(PictureSource):
    """The training images of a data set that comes with Keras, and their labels, in memory.

    Keras reads them from its own folder (`KERAS_HOME`, ~/.keras by default) and downloads missing files. Of several
    ranks, rank 0 does so first, then one rank of each other host, then the other ranks.

    Args:
        name: value of `--data`, `keras:` and one of KERAS.
        image_size: height and width in pixels; one number for both, or two.
        channels: 1, 3, or None for those of the images.
        fit: way in which the square images are brought to a size that is not square.
        peers: the ranks; each calls this.

    Raises:
        UserError: the data set is unknown, or can neither be read nor downloaded.
    """

    batched = prepared = True

    def __init__(
        self, name: str, *, image_size: Size, channels: int | None, fit: Fit | None = None, peers: Peers = ALONE
    ) -> None:
        chosen = name.partition(":")[2]
        if chosen not in KERAS:
            raise UserError(f"--data {name}: expected one of {', '.join(f'keras:{known}' for known in KERAS)}")
        images, labels = in_turn(lambda: _load(name, chosen), peers, f"--data {name}")
        self._images = images.reshape(*images.shape[:3], -1)
        self._labels = labels.reshape(-1)
        channels = channels or self._images.shape[-1]
        try:
            refuse_aspect(self._images.shape[2], self._images.shape[1], image_size, fit)
        except WrongAspect as error:
            raise UserError(f"--data {name}: each image has {error}") from error
        super().__init__(
            name=name,
            image_size=image_size,
            channels=channels,
            fit=fit,
            fingerprint=fingerprint(image_size, channels, [b"keras", images.tobytes(), self._labels.tobytes()], fit),
            labels=self._labels.astype(np.int32),
        )

    def __len__(self) -> int:
        return len(self._images)

    def fetch_batch(self, indices: np.ndarray) -> np.ndarray:
        return arrays_to_pixels(self._images[indices], self.image_size, self.channels, self.fit)

    def own_size(self, index: int) -> tuple[int, int]:
        return self._images.shape[1], self._images.shape[2]

    def key(self, index: int) -> bytes:
        return self._images[index].tobytes()


def _load(name: str, chosen: str) -> tuple[np.ndarray, np.ndarray]:
    import keras  # takes seconds, so only those who need it import it

    try:
        with contextlib.redirect_stdout(io.StringIO()):  # several ranks would print its progress bar
            (images, labels), _ = getattr(keras.datasets, chosen).load_data()
    except Exception as error:  # of many types: no network, a damaged archive, a full disk
        raise UserError(
            f"--data {name}: Keras cannot load it: {in_one_line(error)}; copy its files from a machine with a "
            f"network to {os.environ.get('KERAS_HOME', '~/.keras')}/datasets, or set KERAS_HOME"
        ) from error
    return images, labels

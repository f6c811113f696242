"""Says what TensorFlow and Horovod the Python that runs this has; launch/existing.sh calls it.

It needs only the standard library.

python launch/existing.py find                       versions, and a .pth file's lines, as key=value
python launch/existing.py constraints FILE           constraints for pip, so that what is there stays as it is
"""

import importlib.metadata
import os
import platform
import re
import sys
import sysconfig
from pathlib import Path

_TIED = ("grpcio", "h5py", "ml-dtypes", "mpi4py", "numpy", "protobuf", "tensorboard")
"""what was compiled or chosen for the TensorFlow or the MPI that is there"""


def find() -> None:
    """Print the versions, the kinds of communication and the folders.

    Raises:
        SystemExit: TensorFlow or Horovod is missing, or does not load.
    """
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    advice = "load the module or activate the environment that has it, or name its Python by PYTHON=/path/to/python"
    try:
        import tensorflow as tf
    except ImportError as error:
        raise SystemExit(f"TensorFlow cannot be imported ({error}); {advice}") from error
    try:
        import horovod
        import horovod.tensorflow as hvd
    except Exception as error:  # what a library built for another TensorFlow raises is its own
        words = " ".join(str(error).split())
        raise SystemExit(f"Horovod cannot be imported ({words[:200]}); {advice}") from error
    kinds = [kind for kind in ("Gloo", "MPI", "NCCL") if getattr(hvd, f"{kind.lower()}_built")()]
    print(f"executable={sys.executable}", f"python={platform.python_version()}", sep="\n")
    print(f"tensorflow={tf.__version__}", f"horovod={horovod.__version__}", f"kinds={', '.join(kinds)}", sep="\n")
    print(*(f"pth=import site; site.addsitedir({folder!r})" for folder in folders()), sep="\n")


def folders() -> list[str]:
    """The folders of installed packages, in the order in which they are searched."""
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    own = {Path(__file__).resolve().parent, *standard, *(folder / "lib-dynload" for folder in standard)}
    return [entry for entry in sys.path if entry and Path(entry).is_dir() and Path(entry).resolve() not in own]


def constraints(pins: Path) -> None:
    """Print the lines of a file of pins for what is missing, and what must stay with the version it has."""
    there = {_plain(each.name): each.version for each in importlib.metadata.distributions() if each.name}
    print(*(f"{name}=={there[name]}" for name in _TIED if name in there), sep="\n")
    for line in pins.read_text(encoding="utf-8").splitlines():
        if "==" in line and not line.startswith("#") and _plain(line.partition("==")[0]) not in there:
            print(line)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    find() if sys.argv[1] == "find" else constraints(Path(sys.argv[2]))

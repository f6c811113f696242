"""Runs hvdgan.train in this process, and then writes the peak memory of this rank.

On a GPU it is that of the last stage.

python -m gpu.trained PEAKS.json [arguments of hvdgan.train]
"""

import sys
from pathlib import Path

from hvdgan.cli import start

start.begin(__name__)

from hvdgan import train
from hvdgan.cli.app import leave
from hvdgan.cli.files.outputs import write_json
from hvdgan.cli.launcher import launched
from hvdgan.training.memory.device import peak_memory


def main(out: Path, arguments: list[str]) -> int:
    """Train, and write the memory on rank 0.

    Args:
        out: file to write.
        arguments: words for hvdgan.train.

    Returns:
        The exit code of hvdgan.train.
    """
    code = train.main(arguments)
    if code == 0 and launched()[2] == 0:
        write_json(out, peak_memory())
    return code


if __name__ == "__main__":
    leave(main(Path(sys.argv[1]), sys.argv[2:]))

"""Asks nvidia-smi for the free memory of a rank's GPU, which TensorFlow does not report."""

from collections.abc import Sequence

from hvdgan.cli.programs import output_of
from hvdgan.distributed.devices import Device

_COMMAND = ["nvidia-smi", "--query-gpu=uuid,name,memory.free", "--format=csv,noheader,nounits"]
_SECONDS = 10.0


def free_gpu_memory(device: Device, openable: Sequence[str], seconds: float = _SECONDS) -> int | None:
    """Bytes of a GPU that no process has taken.

    Args:
        device: device of this rank.
        openable: numbers of the GPUs whose device files this process may open; nvidia-smi lists the same ones.
        seconds: time limit for nvidia-smi.

    Returns:
        The bytes; None if nvidia-smi is missing, fails or hangs, for a MIG instance, whose memory it does not list
        here, and if it is not certain which of its GPUs is the rank's.
    """
    if device.gpu is None:
        return None
    rows = [
        [cell.strip() for cell in line.split(",")] for line in output_of(_COMMAND, seconds).splitlines() if line.strip()
    ]
    if any(len(row) != 3 for row in rows):  # such as "No devices were found"
        return None
    place = _place_of(device.identity, [row[0] for row in rows], openable)
    if place is None:
        return None
    _, name, free = rows[place]
    # CUDA may number GPUs of several kinds by speed. A GPU that shares the memory of its host has none of its own.
    return int(free) * 2**20 if name == device.name and free.isdecimal() else None


def _place_of(identity: str, uuids: Sequence[str], openable: Sequence[str]) -> int | None:
    """The place of a GPU, as identity_of() names it, among those of nvidia-smi."""
    if identity.startswith("GPU-"):
        places = [place for place, uuid in enumerate(uuids) if uuid.startswith(identity)]  # CUDA takes a beginning too
        return places[0] if len(places) == 1 else None
    files = [f"/dev/nvidia{number}" for number in openable]
    if identity in files and len(files) == len(uuids):
        return files.index(identity)
    # There are no such files under Windows (WSL), and CUDA's numbers are nvidia-smi's.
    return int(identity) if not files and identity.isdecimal() and int(identity) < len(uuids) else None

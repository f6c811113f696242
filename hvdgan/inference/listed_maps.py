"""Lists a run's value maps in exported files, as JSON that is read without hvdgan."""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvdgan.values.sample_values import SampleValues

NAME = "value_maps.json"


def described(values: SampleValues) -> dict[str, Any]:
    """The maps by the names of the parts: as text, and as steps with the numbers, channels and units."""
    parts = values.parts().items()
    return {name: None if each is None else {"map": str(each), **each.to_json()} for name, each in parts}


def list_maps(path: Path, values: SampleValues | None, applied: Sequence[str]) -> None:
    """Add the maps to a .keras file, a zip in which Keras ignores other members, or to the folder of a SavedModel.

    Args:
        path: exported file or folder.
        values: maps of the run; None: nothing is known, and nothing is written.
        applied: description of each input and output of the network that is in the units of the data.
    """
    if values is None:
        return
    text = json.dumps({"applied": list(applied), "value_maps": described(values)}, indent=1) + "\n"
    if path.is_dir():
        # assets.extra is the place in a SavedModel for files that TensorFlow neither writes nor loads.
        extra = path / "assets.extra" / NAME
        extra.parent.mkdir()
        extra.write_text(text, encoding="utf-8")
        return
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(NAME), text)  # with the same date in every file

"""The curves that a page draws, from the JSON for its script."""

import base64
import gzip
import html
import json
import re

import numpy as np


def _models(value):
    """The attributes of all models of a document, by their ids."""
    found = (
        {value["id"]: value["attributes"]} if isinstance(value, dict) and {"attributes", "id"} <= value.keys() else {}
    )
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        found |= _models(each)
    return found


def charts(page: str) -> dict[str, list[tuple[str, np.ndarray, np.ndarray]]]:
    """The lines of each chart, by its heading: tag with the index of the colour, steps and values."""
    saved = json.loads(re.search(r'<script type="application/json" id="curves">(.*?)</script>', page)[1])
    models = _models(saved["document"])

    def column(source, name):
        array = dict(models[source["id"]]["data"]["entries"])[name]
        if isinstance(array, list):
            return np.array(array)
        data = gzip.decompress(base64.b64decode(array["array"]["data"]))
        return np.frombuffer(data, array["dtype"])

    found = {}
    for root in saved["document"]["roots"]:
        name = root["attributes"]["name"]
        heading = re.search(rf'<h3>([^<]*)</h3>(?:(?!<h3>).)*? id="{name}"', page, re.DOTALL)[1]
        renderers = [models[one["id"]] for one in models[root["id"]]["renderers"]]
        found[html.unescape(heading)] = [
            (one["tags"][0], column(one["data_source"], "step"), column(one["data_source"], "shown"))
            for one in renderers
            if one["tags"][0] in ("line", "best")
        ]
    return found

"""The curves that a page draws, from the JSON for its script."""

import base64
import gzip
import html
import json
import re

import numpy as np


def _models(value, found):
    """All models of a document by their ids."""
    if isinstance(value, dict):
        if "attributes" in value and "id" in value:
            found[value["id"]] = value
        for each in value.values():
            _models(each, found)
    elif isinstance(value, list):
        for each in value:
            _models(each, found)
    return found


def charts(page: str) -> dict[str, list[tuple[str, np.ndarray, np.ndarray]]]:
    """The lines of each chart, by its heading: tag with the index of the colour, steps and values."""
    saved = json.loads(re.search(r'<script type="application/json" id="curves">(.*?)</script>', page)[1])
    models = _models(saved["document"], {})

    def attributes(one):
        return models[one["id"]]["attributes"]

    def column(source, name):
        array = dict(attributes(source)["data"]["entries"])[name]
        if isinstance(array, list):
            return np.array(array)
        data = gzip.decompress(base64.b64decode(array["array"]["data"]))
        return np.frombuffer(data, array["dtype"])

    found = {}
    for root in saved["document"]["roots"]:
        name = root["attributes"]["name"]
        heading = re.search(rf'<h3>([^<]*)</h3>(?:(?!<h3>).)*? id="{name}"', page, re.DOTALL)[1]
        renderers = [attributes(one) for one in attributes(root)["renderers"]]
        found[html.unescape(heading)] = [
            (one["tags"][0], column(one["data_source"], "step"), column(one["data_source"], "shown"))
            for one in renderers
            if one["tags"][0] in ("line", "best")
        ]
    return found

"""Draws docs/architecture.svg, the packages and the imports between them: python docs/draw_architecture.py"""

import ast
import itertools
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hvdgan"
PICTURE = ROOT / "docs" / "architecture.svg"

# From the top floor to the ground, each from left to right. The commands are the modules in the root of hvdgan/.
FLOORS = [
    ["inference", "diagnostics"],
    ["training"],
    ["recipes", "evaluation", "pages"],
    ["networks", "recipe", "data", "checkpoints", "distributed"],
    ["values", "runs", "cli"],
    ["settings", "files", "launching", "errors"],
]
GROUND = frozenset(itertools.chain(*FLOORS[-2:]))
COMMANDS = {
    "train": "trains a GAN",
    "launch": "starts several ranks",
    "prepare": "packs samples into HDF5 files",
    "sample": "draws with a checkpoint",
    "complete": "fills holes in photographs",
    "translate": "translates pictures",
    "export": "writes a network for Keras",
    "inspect": "verifies a checkpoint",
    "doctor": "checks an installation",
    "bench": "measures a run's speed",
    "evaluate": "measures the networks",
    "features": "gets the network of FID",
    "report": "writes a page about a run",
    "slurm": "writes a Slurm job",
}
COLOURS = {
    "diagnostics": "#b45309",
    "recipes": "#a21caf",
    "training": "#1d4ed8",
    "pages": "#0369a1",
    "networks": "#be185d",
    "recipe": "#7e22ce",
    "data": "#15803d",
    "checkpoints": "#0e7490",
    "distributed": "#b91c1c",
    "values": "#4d7c0f",
    "evaluation": "#0f766e",
    "inference": "#c2410c",
    "cli": "#475569",
    "runs": "#57534e",
    "settings": "#78716c",
    "files": "#64748b",
    "launching": "#6d28d9",
    "errors": "#991b1b",
}
# Pixels. A floor is a band as wide as the picture; the gaps between boxes are the lanes of arrows that skip a floor.
WIDTH, PAD, LABEL, GAP, SPACE = 1000, 14, 26, 24, 46
COMMANDS_IN_A_ROW, COMMAND_HEIGHT, COMMAND_GAP = 3, 48, 10
HEIGHTS = [86, 72, 106, 146, 106, 122]  # of the boxes of each floor
CHARACTER = 6.6  # width of a character of 12 pixels, on average

Place = tuple[float, float, float, float]  # x, y, width, height


def package_of(module: str) -> str:
    """The package of a module, or the command: `hvdgan.data.store` -> `data`."""
    return module.split(".")[1] if "." in module else ""


def module_names() -> dict[str, Path]:
    """The path of each module by its name, packages included."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imports() -> dict[str, set[str]]:
    """The packages that each package or command imports, also inside functions."""
    modules = module_names()
    pairs: dict[str, set[str]] = {package_of(name): set() for name in modules if name != "hvdgan"}
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if name != "hvdgan" and isinstance(node, ast.Import | ast.ImportFrom):
                pairs[package_of(name)] |= {package_of(other) for other in _imported(node, modules)}
    return {name: others - {name, ""} for name, others in pairs.items()}


def _imported(node: ast.Import | ast.ImportFrom, modules: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    else:
        named = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name if name in modules else node.module or "" for name in named if node.module in modules)


def number_of_modules(package: str) -> int:
    """Modules in the folder of a package and below it, without `__init__.py`."""
    return sum(path.stem != "__init__" for path in (PACKAGE / package).rglob("*.py"))


def meaning(package: str) -> str:
    """The first sentence of a package's docstring."""
    text = ast.get_docstring(ast.parse((PACKAGE / package / "__init__.py").read_text())) or ""
    return " ".join(text.replace("`", "").split("\n\n")[0].split()).split(". ")[0].rstrip(".")


def folders(package: str) -> str:
    """The folders of a package: `formats/ packing/ sources/`."""
    return " ".join(sorted(f"{path.parent.name}/" for path in (PACKAGE / package).glob("*/__init__.py")))


def boxes() -> dict[str, Place]:
    """x, y, width and height of each package and command."""
    places: dict[str, Place] = {}
    inner, y = WIDTH - 4 * PAD, float(PAD + LABEL)
    width = (inner - (COMMANDS_IN_A_ROW - 1) * COMMAND_GAP) / COMMANDS_IN_A_ROW
    for number, name in enumerate(COMMANDS):
        row, column = divmod(number, COMMANDS_IN_A_ROW)
        x = 2 * PAD + column * (width + COMMAND_GAP)
        places[name] = (x, y + row * (COMMAND_HEIGHT + COMMAND_GAP), width, COMMAND_HEIGHT)
    y += -(-len(COMMANDS) // COMMANDS_IN_A_ROW) * (COMMAND_HEIGHT + COMMAND_GAP) - COMMAND_GAP + SPACE + LABEL
    for floor, height in zip(FLOORS, HEIGHTS, strict=True):
        width = (inner - (len(floor) - 1) * GAP) / len(floor)
        for column, name in enumerate(floor):
            places[name] = (2 * PAD + column * (width + GAP), y, width, height)
        y += height + SPACE + LABEL
    return places


def arrows(places: dict[str, Place]) -> Iterator[str]:
    """Curves between packages. Arrows into the ground floors are left out, since nearly everything imports them."""
    wanted = [(one, other) for one, others in sorted(imports().items()) if one in COLOURS for other in sorted(others)]
    wanted = [(one, other) for one, other in wanted if other not in GROUND]
    starts: dict[tuple[str, str], float] = {}
    ends: dict[tuple[str, str], float] = {}
    for one in COLOURS:
        out = sorted((pair for pair in wanted if pair[0] == one), key=lambda pair: _middle(places[pair[1]]))
        into = sorted((pair for pair in wanted if pair[1] == one), key=lambda pair: _middle(places[pair[0]]))
        for ordered, ports in ((out, starts), (into, ends)):
            x, _, width, _ = places[one]
            for number, pair in enumerate(ordered, 1):
                ports[pair] = x + width * number / (len(ordered) + 1)
    for one, other in wanted:
        x, y = starts[one, other], places[one][1] + places[one][3]
        points = [(x, y)]
        for floor in FLOORS[_floor(one) + 1 : _floor(other)]:
            lane = _lane([places[name] for name in floor], ends[one, other])
            points += [(lane, places[floor[0]][1] - 6), (lane, places[floor[0]][1] + places[floor[0]][3] + 6)]
        points.append((ends[one, other], places[other][1] - 7))
        yield (
            f'<path d="{_curve(points)}" stroke="{COLOURS[one]}" marker-end="url(#{one})">'
            f"<title>{one} imports {other}</title></path>"
        )


def _middle(place: Place) -> float:
    return place[0] + place[2] / 2


def _floor(package: str) -> int:
    return next(height for height, names in enumerate(FLOORS) if package in names)


def _lane(floor: list[Place], x: float) -> float:
    """The middle of the gap of a floor that is nearest to x; the space beside its last box is one."""
    gaps = [place[0] + place[2] + GAP / 2 for place in floor]
    gaps[-1] = WIDTH - 1.5 * PAD
    return min(gaps, key=lambda gap: abs(gap - x))


def _curve(points: list[tuple[float, float]]) -> str:
    """A path that is vertical in each of its points."""
    path = f"M{points[0][0]:.0f},{points[0][1]:.0f}"
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        middle = (y + to_y) / 2
        path += f" C{x:.0f},{middle:.0f} {to_x:.0f},{middle:.0f} {to_x:.0f},{to_y:.0f}"
    return path


def _text(x: float, y: float, text: str, kind: str, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}"{more}>{escape(text)}</text>'


def package_box(name: str, place: Place) -> Iterator[str]:
    """A package: its name, its number of modules, its folders and its meaning."""
    x, y, width, height = place
    colour = COLOURS[name]
    yield f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height}" rx="8" fill="#fff" stroke="{colour}"/>'
    yield _text(x + 12, y + 24, f"{name}/", "name", f' fill="{colour}"')
    size = f"{number_of_modules(name)} modules" + f" · {folders(name)}" * bool(folders(name))
    small = textwrap.wrap(size, int((width - 24) / CHARACTER * 12 / 11))
    for number, line in enumerate(small):
        yield _text(x + 12, y + 42 + 14 * number, line, "small")
    lines = textwrap.wrap(meaning(name), int((width - 24) / CHARACTER))
    assert 48 + 14 * len(small) + 16 * (len(lines) - 1) <= height - 6, f"{name}: make its box higher, in HEIGHTS"
    for number, line in enumerate(lines):
        yield _text(x + 12, y + 48 + 14 * len(small) + 16 * number, line, "text")


def command_box(name: str, packages: set[str], place: Place) -> Iterator[str]:
    """A command: its name, what it does, and the packages that it imports."""
    x, y, width, height = place
    yield f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height}" rx="8" fill="#fff" stroke="#94a3b8"/>'
    yield _text(x + 12, y + 20, name, "name")
    yield _text(x + width - 12, y + 20, COMMANDS[name], "text", ' text-anchor="end"')
    ordered = [package for floor in FLOORS for package in floor if package in packages]
    words = "".join(f'<tspan fill="{COLOURS[package]}" dx="6">{package}</tspan>' for package in ordered)
    yield f'<text x="{x + 6:.0f}" y="{y + 39:.0f}" class="small">{words}</text>'


def band(label: str, boxes: list[Place]) -> Iterator[str]:
    """A floor: a band behind its boxes, with a label."""
    top = boxes[0][1] - LABEL
    height = max(y + height for _, y, _, height in boxes) + PAD - top
    yield f'<rect x="{PAD}" y="{top:.0f}" width="{WIDTH - 2 * PAD}" height="{height:.0f}" rx="10" fill="#eef2f7"/>'
    yield _text(2 * PAD, top + 18, label, "floor")


def labels() -> list[str]:
    """What stands above each floor."""
    return [
        "Commands, and the packages that each imports",
        "Trained networks in use, and measurements of a machine",
        "Training",
        "GANs, distances between samples, and pages",
        "Parts",
        "Imported by nearly every package above, without arrows",
        "Ground floor, likewise; a package here imports only those to its right",
    ]


STYLE = """<style>
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,"DejaVu Sans",sans-serif}
.name{font-size:15px;font-weight:700}.text{font-size:12px;fill:#334155}.small{font-size:11px;fill:#64748b}
.floor{font-size:12px;font-weight:600;fill:#64748b}path{fill:none;stroke-width:1.7}marker path{stroke:none}
</style>"""


def picture() -> str:
    """The SVG, as text."""
    places = boxes()
    height = max(y + height for _, y, _, height in places.values()) + 2 * PAD
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}">',
        "<title>The packages of hvdgan and the imports between them</title>",
        *(STYLE, "<defs>"),
        *(
            f'<marker id="{name}" viewBox="0 0 10 10" refX="2" refY="5" markerWidth="6" markerHeight="6" orient="auto">'
            f'<path d="M0,0.5 L10,5 L0,9.5 z" style="fill:{colour}"/></marker>'
            for name, colour in COLOURS.items()
        ),
        *("</defs>", f'<rect width="{WIDTH}" height="{height:.0f}" rx="12" fill="#fff"/>'),
    ]
    for label, names in zip(labels(), [list(COMMANDS), *FLOORS], strict=True):
        parts += band(label, [places[name] for name in names])
    parts += arrows(places)
    found = imports()
    for name, place in places.items():
        own = package_box(name, place) if name in COLOURS else command_box(name, found[name] - GROUND, place)
        parts += own
    return "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    PICTURE.write_text(picture())

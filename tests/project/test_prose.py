"""The rules of prose in CONTRIBUTING.md that a test can check."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "hvdgan").rglob("*.py"))
SCRIPTS = [
    path
    for folder in ("tests", "benchmarks", "examples", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path != Path(__file__)
]
SHELL = [ROOT / "Makefile", *(path for name in (".ci", "launch", "slurm") for path in sorted((ROOT / name).glob("*")))]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NO_NOUNS = frozenset(
    "of what that whether how where whose which who in as called from to for by with so not if".split()
)
PHRASES = {
    r"\bgoes on\b|\bgoing on\b|\bgo on (with|where|from)\b": "resumes, continues",
    r"\b(is|are|was|were) (said|told)\b": "is logged, is reported",
    r"\btells? whether\b": "checks whether",
    r"\ba training\b(?! (set|step|loop|data|image|run|job|command|script|loss))|\btrainings\b": "a run",
    r"\bcomes? to\b": "equals, is",
    r"\b(do|does) without\b": "do not need",
    r"\bso many\b": "the name of the number",
    r"\balike\b": "the same, equally",
    r"\bwhoever\b|\bwhatever (is|it is|has|comes|happens|falls|would)\b": "a noun",
    r"\bbeside (it|them)\b": "next to it, in addition",
}


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def arguments(docstring: str) -> Iterator[tuple[str, str]]:
    """The names and descriptions of the section Args or Attributes."""
    section = re.search(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
    for line in section[1].splitlines() if section else ():
        if entry := re.match(r"    (\*{0,2}\w+(?:, \w+)*): (.*)", line):
            yield entry[1], entry[2]


def words(path: Path) -> Iterator[tuple[int, str]]:
    """The comments and string literals of a module, the paragraphs of a page, or the lines of a shell script."""
    if path.suffix == ".md":
        text = path.read_text()
        for match in re.finditer(r"(?:.+\n)+", re.sub(r"(?s)```.*?```", lambda code: "\n" * code[0].count("\n"), text)):
            yield text.count("\n", 0, match.start()) + 1, match[0]
        return
    if path.suffix != ".py":
        yield from enumerate(path.read_text().splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)):
            yield token.start[0], token.string


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """The names of a module's functions, in words."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name.replace("_", " ")


def test_the_description_of_an_argument_begins_with_a_noun():
    found = [
        f"{path.relative_to(ROOT)}: {name}: {description}"
        for path in SOURCES
        for docstring in docstrings(path)
        for name, description in arguments(docstring)
        if re.match(r"\w*", description)[0].lower() in NO_NOUNS
    ]
    assert not found, "\n".join(found)


def test_the_words_are_those_of_the_field():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}: write {better}"
        for path in [*SOURCES, *SCRIPTS, *PAGES, *filter(Path.is_file, SHELL)]
        for line, text in [*words(path), *(functions(path) if path.suffix == ".py" else ())]
        for phrase, better in PHRASES.items()
        for match in re.finditer(phrase, " ".join(text.split()), re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


def test_wrong_words_would_be_found():
    """Each pattern matches its own example, and an argument without a noun is recognised."""
    examples = "The run goes on. It is said. It tells whether. A training. It comes to. We do without. So many. Alike. "
    examples += "Whoever comes. One beside it."
    assert [phrase for phrase in PHRASES if not re.search(phrase, examples, re.IGNORECASE)] == []
    (found,) = arguments("Do it.\n\nArgs:\n    norm: of all of them together.\n")
    assert found == ("norm", "of all of them together.") and found[1].split()[0] in NO_NOUNS

"""The command hvdgan.features, with archives at addresses of this machine."""

import hashlib
import io
import tarfile

import pytest

from hvdgan import features
from launching import run

GRAPH = b"a frozen graph " * 9999
WRONG = f"holds no file {features.MEMBER}; expected the archive inception-2015-12-05.tgz"


def archive(*names):
    """The bytes of a .tgz whose files all hold the graph."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        for name in names:
            facts = tarfile.TarInfo(name)
            facts.size = len(GRAPH)
            opened.addfile(facts, io.BytesIO(GRAPH))
    return packed.getvalue()


WHOLE = archive("README.md", features.MEMBER, "LICENSE")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The address of a folder with archives."""
    folder = tmp_path_factory.mktemp("served")
    for name, content in (("whole", WHOLE), ("wrong", archive("other.pb")), ("short", WHOLE[: len(WHOLE) // 2])):
        (folder / f"{name}.tgz").write_bytes(content)
    return folder.as_uri()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_writes_the_graph_alone_and_its_checksum(served, folder, capsys):
    assert features.main(["fetch", "--url", f"{served}/whole.tgz"]) == 0
    said, digest = capsys.readouterr().out, hashlib.sha256(GRAPH).hexdigest()
    assert (folder / features.MEMBER).read_bytes() == GRAPH
    assert run(["sha256sum", "--check", f"{features.MEMBER}.sha256"], folder).stdout == f"{features.MEMBER}: OK\n"
    assert {path.name for path in folder.iterdir()} == {features.MEMBER, f"{features.MEMBER}.sha256"}
    assert f"{len(GRAPH):,} bytes, SHA-256 {digest}" in said
    assert "this is not the graph that published FIDs use" in said and "expected 95,673,916 bytes" in said
    assert f"export HVDGAN_INCEPTION={folder / features.MEMBER}" in said


@pytest.mark.parametrize(
    ("path", "said"),
    [("wrong.tgz", WRONG), ("short.tgz", "or is no whole archive .tgz: "), ("gone.tgz", "No such file or directory")],
)
def test_a_failed_download_is_one_line_and_leaves_the_old_file(served, folder, capsys, path, said):
    old = {name: "old" for name in (features.MEMBER, f"{features.MEMBER}.sha256")}
    for name, text in old.items():
        (folder / name).write_text(text)
    assert features.main(["fetch", "--url", f"{served}/{path}", "--overwrite"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hvdgan: {served}/{path}: ") and said in line
    assert {path.name: path.read_text() for path in folder.iterdir()} == old


def test_another_graph_at_the_published_address_is_refused(served, folder, capsys, monkeypatch):
    monkeypatch.setattr(features, "URL", f"{served}/whole.tgz")
    assert features.main(["fetch", "--url", features.URL]) == 1
    assert "this is not the graph" in capsys.readouterr().err and not list(folder.iterdir())

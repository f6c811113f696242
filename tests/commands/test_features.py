"""The command hvdgan.features, with archives that a real HTTP server of this machine serves."""

import functools
import hashlib
import io
import tarfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

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


class Silent(SimpleHTTPRequestHandler):
    """It logs nothing among the messages of the command."""

    def log_message(self, *arguments):
        pass


WHOLE = archive("README.md", features.MEMBER, "LICENSE")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a real server."""
    folder = tmp_path_factory.mktemp("served")
    for name, content in (("whole", WHOLE), ("wrong", archive("other.pb")), ("short", WHOLE[: len(WHOLE) // 2])):
        (folder / f"{name}.tgz").write_bytes(content)
    handler = functools.partial(Silent, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


def test_it_writes_the_graph_alone_and_its_checksum(server, folder, capsys):
    assert features.main(["fetch", "--url", f"{server}/whole.tgz"]) == 0
    said, digest = capsys.readouterr().out, hashlib.sha256(GRAPH).hexdigest()
    assert (folder / features.MEMBER).read_bytes() == GRAPH
    assert run(["sha256sum", "--check", f"{features.MEMBER}.sha256"], folder).stdout == f"{features.MEMBER}: OK\n"
    assert {path.name for path in folder.iterdir()} == {features.MEMBER, f"{features.MEMBER}.sha256"}
    assert f"{len(GRAPH):,} bytes, SHA-256 {digest}" in said
    assert "this is not the graph that published FIDs use" in said and "expected 95,673,916 bytes" in said
    assert f"export HVDGAN_INCEPTION={folder / features.MEMBER}" in said


@pytest.mark.parametrize(
    ("path", "said"),
    [("wrong.tgz", WRONG), ("short.tgz", "or is no whole archive .tgz: "), ("gone.tgz", "HTTP Error 404")],
)
def test_a_failed_download_is_one_line_and_leaves_the_old_file(server, folder, capsys, path, said):
    old = {name: "old" for name in (features.MEMBER, f"{features.MEMBER}.sha256")}
    for name, text in old.items():
        (folder / name).write_text(text)
    assert features.main(["fetch", "--url", f"{server}/{path}", "--overwrite"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hvdgan: {server}/{path}: ") and said in line
    assert {path.name: path.read_text() for path in folder.iterdir()} == old


def test_another_graph_at_the_published_address_is_refused(server, folder, capsys, monkeypatch):
    monkeypatch.setattr(features, "URL", f"{server}/whole.tgz")
    assert features.main(["fetch", "--url", features.URL]) == 1
    assert "this is not the graph" in capsys.readouterr().err and not list(folder.iterdir())

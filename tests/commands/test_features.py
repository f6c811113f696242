"""The command hvdgan.features, with archives that a real HTTP server of this machine serves."""

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hvdgan import features
from launching import run

GRAPH = b"a frozen graph " * 9999


def archive(**members):
    """The bytes of a .tgz; an underscore in a name is a dot."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        for name, content in members.items():
            facts = tarfile.TarInfo(name if name == features.MEMBER else name.replace("_", "."))
            facts.size = len(content)
            opened.addfile(facts, io.BytesIO(content))
    return packed.getvalue()


WHOLE = archive(README_md=b"read", **{features.MEMBER: GRAPH}, LICENSE=b"free")
FILES = {
    "/whole.tgz": WHOLE,
    "/wrong.tgz": archive(other_pb=GRAPH),
    "/short.tgz": WHOLE[: len(WHOLE) // 2],
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        content = FILES.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        # The connection of "short" ends before the length that it announces.
        self.send_header("Content-Length", str(len(WHOLE if self.path == "/short.tgz" else content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
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


def fetch(capsys, *arguments, code=0):
    assert features.main(["fetch", *map(str, arguments)]) == code
    said = capsys.readouterr()
    if code:
        assert said.err.count("\n") == 1
    return said.err if code else said.out


def test_it_writes_the_graph_alone_and_its_checksum(server, folder, capsys):
    said = fetch(capsys, "--url", f"{server}/whole.tgz")
    digest = hashlib.sha256(GRAPH).hexdigest()
    assert (folder / features.MEMBER).read_bytes() == GRAPH
    assert run(["sha256sum", "--check", f"{features.MEMBER}.sha256"], folder).stdout == f"{features.MEMBER}: OK\n"
    assert {path.name for path in folder.iterdir()} == {features.MEMBER, f"{features.MEMBER}.sha256"}
    assert f"{len(GRAPH):,} bytes, SHA-256 {digest}" in said
    assert "this is not the graph that published FIDs use" in said and "expected 95,673,916 bytes" in said
    assert f"export HVDGAN_INCEPTION={folder / features.MEMBER}" in said


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("wrong.tgz", "holds no file classify_image_graph_def.pb; expected"),
        ("short.tgz", "or is no whole archive .tgz: "),
        ("gone.tgz", "HTTP Error 404"),
    ],
)
def test_a_failed_download_is_one_line_and_leaves_the_old_file(server, folder, capsys, path, said):
    (folder / features.MEMBER).write_text("old")
    (folder / f"{features.MEMBER}.sha256").write_text("old")
    line = fetch(capsys, "--url", f"{server}/{path}", "--overwrite", code=1)
    assert line.startswith(f"hvdgan: {server}/{path}: ") and said in line
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        features.MEMBER: "old",
        f"{features.MEMBER}.sha256": "old",
    }

"""What a page takes from the events of a real run: networks, stages, data, ranks and hosts. Modules: cli.events"""

from hvdgan.cli.events import Network, Stage, Update
from hvdgan.pages.reading.journal import read
from hvdgan.pages.reading.untrusted import Folder
from hvdgan.train import main

UPDATES = {"judge": "discriminator", "fool": "generator"}
FLAGS = "--recipe tiny:Staged --image-size 8 --global-batch-size 8 --steps 3 --log-every 1".split()


def test_a_start_is_read_as_it_is_written(tmp_path, monkeypatch):
    words = [*FLAGS, "--run-dir", str(tmp_path / "my run")]
    monkeypatch.setattr("sys.argv", ["/somewhere/hvdgan/train.py", *words])
    assert main([*words, "--max-steps", "4"]) == 0
    assert main(words) == 0
    journal = read(Folder(tmp_path / "my run"))
    start = journal.start
    assert start.command == f"python -m hvdgan.train {' '.join(FLAGS)} --run-dir '{tmp_path}/my run'"
    assert (journal.restarts, journal.end.state, journal.last_step) == ([4], "finished", 9)
    assert (start.ranks, start.launcher, start.step) == (1, "none", 4)
    generator = Network(name="generator", trainable=8 * 16 + 16 + 16 * 64 + 64, other=0, is_frozen=False)
    assert start.networks[0] == generator and start.networks[1].name == "discriminator"
    judge, fool = (Update(name=name, owns=[own], every=1, bytes=0) for name, own in UPDATES.items())
    assert start.stages == [
        Stage(name="generator", steps=3, updates=[fool]),
        Stage(name="discriminator", steps=3, updates=[judge]),
        Stage(name="joint", steps=3, updates=[judge, fool]),
    ]
    assert start.data == ["digits, 1,797 pictures of shape (8, 8, 1) in 10 classes"]
    assert start.machine[0].startswith("hvdgan ") and any("CPU" in line for line in start.machine)
    assert "--recipe tiny:Staged" in start.changed and not any("--norm" in line for line in start.changed)

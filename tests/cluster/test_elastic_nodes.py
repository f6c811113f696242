"""An elastic run continues without a node that crashes, and takes it back after its reboot."""

import json
import subprocess

import pytest

from jobs import SETTINGS, STEPS, last_step
from launching import ROOT, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_it_continues_without_the_node_and_takes_it_in_again(cluster, folder):
    folder.mkdir()
    (folder / "brake").touch()
    command = [ROOT / "launch" / "elastic.sh", "-H", "node1:1,node2:1", "--interface", "eth0"]
    with (folder / "output.txt").open("wb") as output:
        process = cluster.start(
            [*command, *SETTINGS, "--commit-every", "5", "--peer-timeout", "5", "--run-dir", folder / "run"],
            folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            HVDGAN_BRAKE=str(folder / "brake"),
            # A host that is cut off closes no connection: Gloo waits for it that long, launch/elastic.sh says 120.
            HOROVOD_GLOO_TIMEOUT_SECONDS="30",
        )
    said = (folder / "output.txt").read_text

    def wait_for_step(step):
        wait_until(lambda: last_step(folder / "run") >= step or process.poll() is not None, 240, said)
        assert process.poll() is None, said()

    wait_for_step(13)
    cluster.crash("node2")
    try:
        wait_until(lambda: "1 rank(s) resume at step 1" in said(), 180, said)
        lost = last_step(folder / "run")
        wait_for_step(lost + 3)
    finally:
        cluster.boot("node2")
    wait_until(lambda: "2 rank(s) resume at step" in said() or process.poll() is not None, 240, said)
    (folder / "brake").unlink()
    wait_until(lambda: process.poll() is not None, 240, said)
    assert process.returncode == 0 and "2 rank(s) resume at step" in said(), said()
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    cluster.wait_idle()

"""An elastic run continues without a node that crashes, and takes it back after its reboot."""

import json

import pytest

from jobs import STEPS, OverSsh, last_step
from launching import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_it_continues_without_the_node_and_takes_it_in_again(cluster, folder):
    # A host that is cut off closes no connection: Gloo waits for it that long, launch/elastic.sh says 120.
    soon = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "30"}
    arguments = ["--commit-every", "5", "--peer-timeout", "5"]
    run = OverSsh(cluster, folder, "elastic.sh", "--interface", "eth0", arguments=arguments, **soon)
    run.wait_for_step(13)
    cluster.crash("node2")
    try:
        wait_until(lambda: "1 rank(s) resume at step 1" in run.said(), 180, run.said)
        run.wait_for_step(last_step(run.run_dir) + 3)
    finally:
        cluster.boot("node2")
    run.wait_until(lambda: "2 rank(s) resume at step" in run.said())
    assert run.ended() == 0 and "2 rank(s) resume at step" in run.said(), run.said()
    records = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    cluster.wait_idle()

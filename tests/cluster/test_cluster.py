"""The cluster that the tests start is removed whole, also after errors."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cluster import PYTHONPATH, Cluster, wait_until
from launching import environment

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
BEGIN = (
    "import sys; from cluster import Cluster\nwith Cluster() as one: print(one.shared, flush=True); sys.stdin.read()"
)


def test_nothing_is_left_when_its_tests_fail_or_are_killed():
    words = [sys.executable, "-c", BEGIN]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, env=environment(PYTHONPATH=PYTHONPATH), text=True, **streams) as process:
        killed = Path(process.stdout.readline().strip())
        assert processes_of(killed)
        process.kill()
    wait_until(lambda: not processes_of(killed), 60, lambda: processes_of(killed))
    assert str(killed) not in Path("/proc/mounts").read_text()

    with pytest.raises(ZeroDivisionError), Cluster() as second:
        assert not killed.exists()
        raise ZeroDivisionError
    assert not second.shared.exists() and not processes_of(second.shared)


def processes_of(shared: Path) -> list[psutil.Process]:
    """Those that know the cluster's settings, as all of its own do."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SLURM_CONF", "").startswith(str(shared)):
                found.append(process)
        except psutil.Error:  # it has ended, or is the machine's own
            pass
    return found

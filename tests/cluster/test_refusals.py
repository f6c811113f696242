"""Ranks that cannot find each other, or are not as many as they should be, do not train alone: they say what to do."""

import pytest

from jobs import Job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("mpi", "arguments", "line"),
    [
        (
            "none",  # no PMI at all
            [],
            "hvdgan: srun started 2 processes that Open MPI cannot bring together (--mpi=none); start with srun "
            "--mpi=pmix (srun --mpi=list shows what there is), or with launch/multi_node.sh",
        ),
        ("pmi2", [], "hvdgan: srun started 2 processes that Open MPI cannot bring together (--mpi=pmi2); start with"),
        ("pmix_v9", [], "srun --mpi=list shows what there is"),
        ("pmix", ["--expect-size", "4"], "hvdgan: --expect-size 4: there are 2 ranks (launcher: srun)"),
    ],
)
def test_it_is_refused_with_what_to_do(cluster, folder, mpi, arguments, line):
    job = Job(cluster, folder.with_name(f"refused_{mpi}"), arguments=arguments, SRUN_MPI=mpi)
    facts = job.ended("FAILED")
    assert line in job.said(), job.said()
    assert facts["ExitCode"] == "2:0" and facts["Restarts"] == "0"
    assert "Traceback" not in job.said() and not job.run_dir.exists()

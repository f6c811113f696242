"""Ranks that cannot reach each other, or whose number is wrong, do not train alone: they say what to do."""

import pytest

from jobs import Job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
APART = "srun started 2 processes that Open MPI cannot bring together (--mpi={}); start with srun --mpi=pmix"
APART += " (srun --mpi=list shows the choices), or with hvdgan launch"
TWO = "--expect-size 4: there are 2 ranks (launcher: srun); start as many processes as are expected"


@pytest.mark.parametrize(
    ("mpi", "arguments", "complaint"),
    [
        # No PMI, and one that this MPI does not speak.
        ("none", [], APART.format("none")),
        ("pmi2", [], APART.format("pmi2")),
        ("pmix", ["--expect-size", "4"], TWO),
    ],
)
def test_they_are_refused_with_what_to_do(cluster, folder, mpi, arguments, complaint):
    job = Job(cluster, folder.with_name(f"refused_{mpi}"), arguments=arguments, SRUN_MPI=mpi)
    facts = job.ended("FAILED")
    said = [line for line in job.said().splitlines() if line.startswith("hvdgan: rank")]
    # The first that ends may take the other with it before that has said so too.
    assert said and set(said) <= {f"hvdgan: rank {rank}: {complaint}" for rank in (0, 1)}, job.said()
    assert facts["Restarts"] == "0"
    assert "Traceback" not in job.said() and not job.run_dir.exists()

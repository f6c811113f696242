import pytest

from cluster import Cluster
from jobs import on_this_host


@pytest.fixture(scope="session")
def cluster():
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def folder(cluster, request):
    """A folder that all hosts see."""
    return cluster.shared / request.node.name.partition("[")[0]


@pytest.fixture(scope="session")
def one_host(tmp_path_factory):
    """What two ranks of one host train, by the controller between them."""
    made = {}

    def of(controller: str):
        if controller not in made:
            made[controller] = on_this_host(tmp_path_factory.mktemp("one_host") / controller, controller)
        return made[controller]

    return of

"""A Ray cluster of two nodes, which are two raylets of this machine, gives the model of one process to the last bit."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from torch import nn

from polyclinic.inspection.result import RunResult
from polyclinic.models.tabular import mlp

# The folder in which each node of Ray that trains leaves a file of its name.
SEEN = "POLYCLINIC_TEST_NODES"


def placed(features: int, classes: int, widths: Sequence[int]) -> nn.Module:
    """The built-in perceptron, which leaves word of the node where it is made."""
    if SEEN in os.environ and ray.is_initialized():
        (Path(os.environ[SEEN]) / ray.get_runtime_context().get_node_id()).touch()
    return mlp(features, classes, widths)


@pytest.mark.slow
def test_two_nodes_give_the_model_of_one_process_to_the_last_bit(
    quick: Callable[..., RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"model": "tests.sim.test_two_nodes:placed", "sites": 5, "rounds": 3}
    alone = quick(**options, out=str(tmp_path / "alone"))
    seen = tmp_path / "seen"
    seen.mkdir()
    monkeypatch.setenv(SEEN, str(seen))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        apart = quick(**options, workers=2, ray_address=cluster.address, out=str(tmp_path / "apart"))
        nodes = {node["NodeID"] for node in _nodes(cluster)}
    finally:
        cluster.shutdown()
    trained = {path.name for path in seen.iterdir()}
    assert len(nodes) == 2 and nodes <= trained
    assert apart.summary["model_sha256"] == alone.summary["model_sha256"]
    assert apart.privacy == alone.privacy
    assert list(apart.sites.epsilon) == list(alone.sites.epsilon)


def _nodes(cluster: Any) -> list[dict[str, Any]]:
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        return list(ray.nodes())
    finally:
        ray.shutdown()

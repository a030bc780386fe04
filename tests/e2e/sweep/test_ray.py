"""A real Ray cluster of two nodes: a sweep that loses a node, what every node answers, and what is refused."""

import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from enginebench.core.errors import BackendUnavailable
from enginebench.features.sweep import ray_fleet
from enginebench.features.sweep.ray_fleet import MACHINE, is_of_kind, name_resources, part
from enginebench.features.sweep.reading import read_group
from enginebench.features.sweep.schedule import run_job
from enginebench.features.sweep.spec import MachineEntry, SweepSpec, list_groups, read_spec
from enginebench.features.sweep.store import open_store
from enginebench.features.sweep.verb import run_sweep
from enginebench.models.zoo import DATA_DIR
from enginebench.verbs.doctor import command as doctor
from enginebench.verbs.doctor import read_response
from processes import ROOT
from reporters import Silent

OBJECT_STORE_BYTES = 80_000_000
SPEC = """
engines = ["fake:latency_us=2000,waiting=asleep", "fake:latency_us=1000,waiting=asleep"]
batches = [1]
processes = 1
iters = 5
warmup = 1
[[model]]
name = "one.onnx"
[[model]]
name = "two.onnx"
[[machine]]
kind = "box"
[[machine]]
kind = "moon"
"""


class Nodes:
    """A cluster of processes on this machine, each node with a folder for temporary files of its own."""

    def __init__(self, folder: Path, cluster: Any, port: int) -> None:
        self._folder = folder
        self.cluster = cluster
        self.outside = f"ray://127.0.0.1:{port}"
        self.running: list[Any] = []

    def add(self) -> None:
        place = self._folder / f"node-{len(list(self._folder.iterdir()))}"
        place.mkdir()
        variables = {"TMPDIR": str(place), "PYTHONPATH": str(ROOT / "src")}
        resources = {MACHINE: 1, "box": 1}
        size = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}
        self.running.append(self.cluster.add_node(resources=resources, env_vars=variables, **size))
        self.cluster.wait_for_nodes()  # one that was killed is listed as alive until the cluster notices


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    short = tempfile.mkdtemp(prefix="eb-", dir="/tmp")  # the path of a socket has 107 bytes at most
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", short)
        patch.setenv("PYTHONPATH", str(ROOT / "src"))  # of the head's own workers
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={**head, "ray_client_server_port": port})
        patch.setenv("RAY_ADDRESS", cluster.address)
        found = Nodes(tmp_path_factory.mktemp("nodes"), cluster, port)
        found.add()
        found.add()
        yield found
        cluster.shutdown()
    shutil.rmtree(short, ignore_errors=True)


def write_spec(tmp_path: Path) -> SweepSpec:
    for name in ("one.onnx", "two.onnx"):
        (tmp_path / name).write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    (tmp_path / "sweep.toml").write_text(SPEC)
    return read_spec(tmp_path / "sweep.toml")


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_node_that_goes_in_the_middle_costs_no_configuration(nodes: Nodes, tmp_path: Path) -> None:
    spec, folder = write_spec(tmp_path), tmp_path / "store"

    def take_away() -> None:
        deadline = time.monotonic() + 120
        while not list(folder.glob("groups/*/rows/*.json")) and time.monotonic() < deadline:
            time.sleep(0.1)
        nodes.cluster.remove_node(nodes.running.pop(0), allow_graceful=False)

    thief = threading.Thread(target=take_away)
    thief.start()
    document = run_sweep(spec, str(folder), on="auto", reporter=Silent())
    thief.join()
    nodes.add()
    assert {cell.machine_kind for cell in document.failed} == {"moon"} and len(document.failed) == 4
    assert "is of the kind 'moon'" in document.failed[0].reason
    rows = [row for g in list_groups(spec) if (m := read_group(open_store(str(folder)), g.id)) for row in m.results]
    assert len(rows) == 4 and all(row.status == "ok" and len(row.measurements) == 1 for row in rows)


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_cluster_is_reached_from_outside(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ray://HOST:PORT, by somebody who is not of the cluster: every node answers, and a sweep is measured."""
    monkeypatch.delenv("RAY_ADDRESS")
    told = CliRunner().invoke(doctor, ["--on", nodes.outside, "--json"])
    assert told.exception is None, told.stderr
    answers = json.loads(told.stdout)["nodes"]
    assert len(answers) == 3 and [one["reason"] for one in answers if one["document"] is None] == []
    assert sum("box" in one["node"] for one in answers) == 2
    assert all("fake" in [engine["engine"] for engine in one["document"]["engines"]] for one in answers)
    spec = write_spec(tmp_path)
    document = run_sweep(spec, str(tmp_path / "store"), on=nodes.outside, reporter=Silent())
    assert {cell.machine_kind for cell in document.failed} == {"moon"}
    assert [cell.row.status for cell in document.cells if cell.row] == ["ok"] * 4


def test_a_server_that_gives_up_on_a_client_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(**settings: object) -> None:
        asked.append(settings["address"])
        if len(asked) == 1:
            raise ConnectionAbortedError("Initialization failure from server:")

    asked: list[object] = []
    monkeypatch.setattr(ray, "init", init)
    assert ray_fleet.connect("auto") is ray and asked == ["auto", "auto"]


def test_responses_that_are_none_and_what_is_no_cluster_say_so() -> None:
    for told, said in ((b"{", "cannot be read"), ("it is gone", "it is gone")):
        told_by = read_response("node", told)
        assert told_by.document is None and said in told_by.reason
    assert b'"ok":false' in run_job(b"{") and b"DecodeError" in run_job(b"{")
    with pytest.raises(BackendUnavailable, match=r"no Ray cluster responds at ray://127\.0\.0\.1:1"):
        ray_fleet.connect("ray://127.0.0.1:1")


def test_a_kind_is_known_by_its_resource_and_parts_fit_into_it() -> None:
    node = {"Resources": {MACHINE: 1.0, "h200": 1.0, "GPU": 8.0}, "Labels": {"zone": "a"}}
    assert is_of_kind(node, MachineEntry(kind="h200"))
    assert is_of_kind(node, MachineEntry(kind="local")), "nobody named a kind"
    assert not is_of_kind(node, MachineEntry(kind="epyc"))
    assert is_of_kind(node, MachineEntry(kind="any", labels={"zone": "a"}))
    assert not is_of_kind(node, MachineEntry(kind="any", labels={"zone": "b"}))
    assert not is_of_kind(node, MachineEntry(kind="any", resources={"GPU": 16}))
    assert name_resources(MachineEntry(kind="h200"))["h200"] < 1 / 8, "eight tasks of one machine find it"
    assert all(count * part(count) <= 1 for count in range(1, 257))

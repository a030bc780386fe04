"""The machines of a Ray cluster. Ray places jobs and reports lost nodes; results never travel through it.

Each node that may measure has the resource `machine` once. A measuring task takes it whole, so that nothing of ours
runs beside it; tasks that make graphs take a fraction of it each.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec

from enginebench.core.engine_api import Closing
from enginebench.core.errors import BackendUnavailable, importing
from enginebench.core.text import clean_text
from enginebench.features.sweep.records import GroupJob, Job, JobEnd
from enginebench.features.sweep.schedule import Outcome, run_job
from enginebench.features.sweep.spec import HERE, Group, MachineEntry

INSTALL = 'pip install "enginebench[ray]"'
# The resource of a machine, and how much of the resource of its kind a task takes: as good as nothing.
MACHINE = "machine"
TRACE = 0.001
# A response has how a job ended; results are in the store.
RESPONSE_LIMIT_BYTES = 1 << 20
# How often machines are counted while nothing ends, and how long jobs wait for one of a kind that has gone: spot
# instances come back within minutes, or not.
POLL_S = 2.0
KNOCK_S = 5.0
PATIENCE_S = 300.0

START = (
    'start each node with: ray start --address=HEAD:6379 --resources=\'{"machine": 1, "KIND": 1}\', with the KIND of '
    "a [[machine]]"
)


def connect(address: str) -> Any:
    """Ray, connected to the cluster at `auto` or ray://HOST:PORT."""
    with importing("Ray", INSTALL, ImportError):
        import ray
    parts = urlsplit(address)
    settings = {"address": address, "log_to_driver": False, "configure_logging": False, "ignore_reinit_error": True}
    try:
        if parts.scheme == "ray":  # knock: Ray itself tries for half a minute
            socket.create_connection((parts.hostname or "", parts.port or 10001), timeout=KNOCK_S).close()
        try:
            ray.init(**settings)
        except ConnectionAbortedError:
            # A server starts a process for each client, and gives up on it after 30 s, which a busy machine may take.
            ray.init(**settings)
    except Exception as error:  # ConnectionError, RuntimeError, ImportError of grpc, ...
        raise BackendUnavailable(
            f"no Ray cluster responds at {address}: {type(error).__name__}: {_cut(error)}. Is it running (ray status), "
            "with the same versions of Ray and Python?"
        ) from error
    return ray


def _cut(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def fetch_response(ray: Any, reference: Any, timeout_s: float | None = None) -> bytes | str:
    """Return the result of a task; or why there is none of ours."""
    try:
        data = ray.get(reference, timeout=timeout_s)
    except ray.exceptions.RayError as error:
        return clean_text(f"{type(error).__name__}: {_cut(error)}")[:400]
    fits = isinstance(data, bytes) and len(data) <= RESPONSE_LIMIT_BYTES
    return data if fits else "worker returned an invalid response"


class RayFleet(Closing):
    """The nodes of a cluster with the resource `machine`; `shared`: on one of several GPUs, a task for each."""

    def __init__(self, address: str, *, shared: bool = False, patience_s: float = PATIENCE_S) -> None:
        self._ray, self._shared, self._patience_s = connect(address), shared, patience_s
        self._running: dict[Any, Job] = {}
        self._missing_since: dict[str, float] = {}

    def close(self) -> None:
        for reference in self._running:
            with suppress(Exception):  # the cluster may be gone
                self._ray.cancel(reference, force=True)
        self._running = {}
        self._ray.shutdown()

    def list_nodes(self, machine: MachineEntry | None = None) -> list[Mapping[str, Any]]:
        nodes = [n for n in self._ray.nodes() if n.get("Alive") and n.get("Resources", {}).get(MACHINE, 0) > 0]
        return [n for n in nodes if machine is None or is_of_kind(n, machine)]

    def refuse(self, group: Group) -> str:
        machine = group.machine
        if not self.list_nodes():
            return f"no node of the cluster has the resource {MACHINE!r}; {START}"
        nodes = self.list_nodes(machine)
        if not nodes:
            return f"no node of the cluster is of the kind {machine.kind!r}; {START}"
        if self._shared and min(n["Resources"].get("GPU", 0) for n in nodes) < 1:
            return f"--share-machine needs GPUs, and a node of the kind {machine.kind!r} reports none to Ray"
        return ""

    def start(self, job: Job) -> None:
        if isinstance(job, GroupJob):
            # The whole machine; with --share-machine one of its GPUs, and as much of the machine.
            machine, share = job.group.machine, 1.0
            options: dict[str, Any] = {"label_selector": dict(machine.labels)} if machine.labels else {}
            if self._shared and job.shared:
                gpus = [int(n["Resources"].get("GPU", 1)) for n in self.list_nodes(machine)]
                share, options["num_gpus"] = part(min(gpus, default=1)), 1
            options["resources"] = {MACHINE: share, **name_resources(machine)}
        else:
            # A core of a machine that is not measuring: as many of these as it has cores, and none beside a whole one.
            cores = [int(n["Resources"].get("CPU", 1)) for n in self.list_nodes()]
            options = {"resources": {MACHINE: part(max(1, min(cores, default=1)))}}
        task = self._ray.remote(max_retries=0, num_cpus=0, **options)(run_job)
        self._running[task.remote(msgspec.json.encode(job))] = job

    def wait(self) -> list[tuple[Job, Outcome]]:
        while True:
            done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=POLL_S)
            if done:
                return [(self._running.pop(reference), self._read(reference)) for reference in done]
            if stranded := self._find_stranded():
                return stranded

    def _read(self, reference: Any) -> Outcome:
        data = fetch_response(self._ray, reference)
        if isinstance(data, str):
            return data
        try:
            return msgspec.json.decode(data, type=JobEnd)
        except msgspec.DecodeError as error:
            return f"its response cannot be read: {error}"

    def _find_stranded(self) -> list[tuple[Job, Outcome]]:
        now = time.monotonic()
        stranded: list[tuple[Job, Outcome]] = []
        for reference, job in list(self._running.items()):
            machine = job.group.machine if isinstance(job, GroupJob) else None
            kind = machine.kind if machine else MACHINE
            if self.list_nodes(machine):
                self._missing_since.pop(kind, None)
            elif now - self._missing_since.setdefault(kind, now) > self._patience_s:
                with suppress(Exception):
                    self._ray.cancel(reference, force=True)
                del self._running[reference]
                reason = f"no node of the kind {kind!r} has been in the cluster for {self._patience_s:.0f} s"
                stranded.append((job, JobEnd(ok=False, reason=reason)))
        return stranded


def name_resources(machine: MachineEntry) -> dict[str, float]:
    """The resources by which Ray finds a node of this kind, next to nothing of each."""
    named = machine.resources or ({} if machine.labels or machine.kind == HERE else {machine.kind: TRACE})
    return {name: min(amount, TRACE) if name == machine.kind else amount for name, amount in named.items()}


def is_of_kind(node: Mapping[str, Any], machine: MachineEntry) -> bool:
    resources, labels = node.get("Resources", {}), node.get("Labels", {})
    return all(resources.get(name, 0) >= amount for name, amount in name_resources(machine).items()) and all(
        labels.get(name) == value for name, value in machine.labels.items()
    )


def part(count: int) -> float:
    return int(10_000 / max(1, count)) / 10_000


def ask_nodes(address: str, ask: Callable[[bytes], bytes], *, timeout_s: float) -> Sequence[tuple[str, bytes | str]]:
    """Yield (the node by its id and its resources, its response or why there is none) of every node that is alive."""
    ray = connect(address)
    try:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        tasks = []
        hidden = ("node:", "object_store", "memory")
        for node in [node for node in ray.nodes() if node.get("Alive")]:
            there = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
            task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(ask)
            own = sorted(name for name in node.get("Resources", {}) if not name.startswith(hidden))
            tasks.append((f"{str(node['NodeID'])[:8]} ({', '.join(own)})", task.remote(b"")))
        deadline = time.monotonic() + timeout_s
        return [(name, fetch_response(ray, task, max(0.1, deadline - time.monotonic()))) for name, task in tasks]
    finally:
        ray.shutdown()

"""What a sweep survives, what it costs, and how large a store may grow.

python benchmarks/fleet.py faults --times 30     # workers killed, nodes stopped, drivers killed: every row once
python benchmarks/fleet.py overhead              # 200 rows of 1 s on 1, 2 and 4 nodes, and over `run`
python benchmarks/fleet.py rows --count 100000   # report and history of a large store
python benchmarks/fleet.py gpus                  # a machine of several GPUs: rows alone and in company

Nodes of Ray are processes of this machine, each with a folder for temporary files of its own: the locks of devices lie
there, so that they do not wait for each other as they would on one machine.

The claims of docs/fleet.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import psutil

from enginebench.core.records import Estimate, Result
from enginebench.core.store import encode, write_atomic
from enginebench.features.sweep.document import Environment, SweepCell, SweepRow
from enginebench.features.sweep.reading import read_group, read_sweep
from enginebench.features.sweep.records import Finished, SweepRecord
from enginebench.features.sweep.spec import SweepSpec, list_groups, read_spec
from enginebench.features.sweep.store import open_store
from enginebench.models.zoo import DATA_DIR

KIND = "box"
OBJECT_STORE_BYTES = 80_000_000
# Of each sweep that is disturbed; one that hangs is a failure.
PATIENCE_S = 600.0


class Nodes:
    """A Ray cluster of processes, each node with a folder of its own."""

    def __init__(self, root: Path) -> None:
        from ray.cluster_utils import Cluster

        self.root = root
        self._count = 0
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.running: list[Any] = []

    def add(self, gpus: int = 0) -> None:
        self._count += 1
        place = self.root / f"node-{self._count}"
        place.mkdir(parents=True)
        self.running.append(
            self._cluster.add_node(
                num_cpus=1,
                num_gpus=gpus,
                object_store_memory=OBJECT_STORE_BYTES,
                resources={"machine": 1, KIND: 1},
                env_vars={"TMPDIR": str(place)},
            )
        )

    def stop(self, node: Any) -> None:
        """Takes a node away without a word."""
        self.running.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def close(self) -> None:
        self._cluster.shutdown()


@contextmanager
def open_nodes(count: int, gpus: int = 0) -> Iterator[Nodes]:
    with TemporaryDirectory(prefix="fleet-") as folder:
        nodes = Nodes(Path(folder))
        try:
            for _ in range(count):
                nodes.add(gpus)
            yield nodes
        finally:
            nodes.close()


def write_spec(folder: Path, models: int, engines: Sequence[str], **more: object) -> Path:
    """A sweep of copies of one small graph: each copy is a group."""
    for i in range(models):
        shutil.copy(DATA_DIR / "digits-mlp.onnx", folder / f"m{i:02}.onnx")
    names = [{"name": f"m{i:02}.onnx"} for i in range(models)]
    spec = {"engines": list(engines), "model": names, "machine": [{"kind": KIND}], **more}
    path = folder / "sweep.toml"
    write_toml(path, spec)
    return path


def write_toml(path: Path, table: dict[str, Any]) -> None:
    """Writes a table, its own tables on one line each."""
    path.write_text("".join(f"{name} = {_spell(value)}\n" for name, value in table.items()), encoding="utf-8")


def _spell(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_spell(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_spell, value)) + "]"
    return json.dumps(value)


def start_driver(spec: Path, store: Path, address: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "enginebench", "sweep", str(spec), "--on", "auto", "--out", str(store), "--json"]
    if (store / "sweep.json").exists():
        command.append("--resume")
    with log.open("ab") as out:
        return subprocess.Popen(
            command, env={**os.environ, "RAY_ADDRESS": address}, stdout=subprocess.DEVNULL, stderr=out
        )


# Faults ---------------------------------------------------------------------------------------------------------------


def list_workers(root: Path) -> list[psutil.Process]:
    """Processes of Ray's workers that are at a group, by the scratch folder in their node's folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words, variables = process.info["cmdline"] or [], process.info["environ"] or {}
        if words and words[0].startswith("ray::") and str(root) in variables.get("TMPDIR", ""):
            found.append(process)
    return found


class Watched:
    """The trials in a store, looked at while the sweep is at work: one that is replaced by another was lost.

    The store at the end would not show it: a row that was measured again and written over its first figures has one
    trial, too.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._seen: dict[tuple[str, str], list[int]] = {}  # (model, row) -> times of its first trial
        self._stamps: dict[Path, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.replaced: set[str] = set()

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def count(self) -> int:
        return len(self._seen)

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self._look()

    def _look(self) -> None:
        for path in self._store.glob("groups/*/rows/*.json"):
            with suppress(OSError, msgspec.DecodeError):
                stamp = path.stat().st_mtime_ns
                if self._stamps.get(path) == stamp:
                    continue
                row = msgspec.json.decode(path.read_bytes(), type=Result)
                self._stamps[path] = stamp
                key = (row.model, row.id)
                if row.measurements:
                    times = row.measurements[0].latency_ns
                    if self._seen.setdefault(key, times) != times:
                        self.replaced.add(" ".join(key))


def disturb_once(seed: int) -> tuple[str, Sequence[str]]:
    """(what was wrong at the end, or nothing; the faults that met it) of one sweep of 60 rows on three nodes."""
    rng = random.Random(seed)
    with open_nodes(3) as nodes, TemporaryDirectory(prefix="sweep-") as folder:
        place, store = Path(folder), Path(folder) / "store"
        engines = [f"fake:latency_us={n},waiting=asleep" for n in range(2000, 2010)]
        spec = write_spec(place, 6, engines, processes=1, iters=5, warmup=1)
        log, met = place / "log", []
        driver = start_driver(spec, store, nodes.address, log)
        deadline = time.monotonic() + PATIENCE_S
        with Watched(store) as watched:
            for what in rng.sample(["worker", "node", "driver"], 3):
                # Between the first row and the last, so that each meets a sweep at work.
                wait_for_rows(watched, driver, rng.randrange(1, 50), deadline)
                if driver.poll() is not None:
                    break
                before = watched.count()
                if what == "worker" and (workers := list_workers(nodes.root)):
                    rng.choice(workers).kill()
                elif what == "node":
                    nodes.stop(rng.choice(nodes.running))
                    nodes.add()
                elif what == "driver":
                    driver.send_signal(signal.SIGKILL)
                    driver.wait()
                    driver = start_driver(spec, store, nodes.address, log)
                else:
                    continue
                met.append(f"{what} at row {before}")
            try:
                code = driver.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                driver.kill()
                return f"did not end within {PATIENCE_S:.0f} s: {log.read_text()[-600:]}", met
        wrong = check_rows(store, read_spec(spec), code, log)
        if watched.replaced:
            wrong = "; ".join(filter(None, [wrong, f"measured twice: {sorted(watched.replaced)}"]))
        return wrong, met


def wait_for_rows(watched: Watched, driver: subprocess.Popen[bytes], more: int, deadline: float) -> None:
    """Waits until some more rows are there, of those that are left, or the sweep has ended."""
    wanted = watched.count() + max(1, min(more, (58 - watched.count()) // 2))
    while watched.count() < wanted and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)


def check_rows(store: Path, spec: SweepSpec, code: int, log: Path) -> str:
    """Whether every row is there once, with one trial each."""
    opened = open_store(str(store))
    parts = [part for group in list_groups(spec) if (part := read_group(opened, group.id))]
    rows = [(part.record.request.model, row.id) for part in parts for row in part.results]
    repeated = [row.id for part in parts for row in part.results if len(row.measurements) != 1]
    document = read_sweep(opened)
    wrong = []
    if len(rows) != 60 or len(set(rows)) != 60:
        wrong.append(f"{len(rows)} rows, {len(set(rows))} different")
    if repeated:
        wrong.append(f"{len(repeated)} rows without exactly one repetition")
    if document.failed:
        wrong.append(f"{len(document.failed)} failed: {document.failed[0].reason}")
    if code:
        wrong.append(f"exit code {code}: {log.read_text()[-600:]}")
    return "; ".join(wrong)


def measure_faults(times: int, first: int) -> bool:
    wrong = faults = 0
    for seed in range(first, first + times):
        began = time.monotonic()
        said, met = disturb_once(seed)
        wrong += bool(said)
        faults += len(met)
        told = f"{said or 'every row once, none lost'} ({', '.join(met)}; {time.monotonic() - began:.0f} s)"
        print(f"  seed {seed:2}: {told}", flush=True)
    print(f"{times - wrong} of {times} sweeps of 60 rows, met by {faults} faults, have every row once, none lost")
    return not wrong


# Overhead -------------------------------------------------------------------------------------------------------------


def time_sweep(nodes: int, rows: int) -> float:
    """Seconds from the first to the last trial of a sweep of rows that take a second each."""
    with open_nodes(nodes) as cluster, TemporaryDirectory(prefix="sweep-") as folder:
        place = Path(folder)
        engines = [f"fake:latency_us={50_000 + n},waiting=asleep" for n in range(5)]
        spec = write_spec(place, rows // 5, engines, processes=1, iters=19, warmup=1)
        log = place / "log"
        began = time.monotonic()
        driver = start_driver(spec, place / "store", cluster.address, log)
        if driver.wait(3600):
            raise SystemExit(log.read_text()[-2000:])
        return time.monotonic() - began


def time_run(rows: int) -> float:
    """Seconds of `run` over as many such rows, five at a time as a group of the sweep has them."""
    with TemporaryDirectory(prefix="run-") as folder:
        place = Path(folder)
        shutil.copy(DATA_DIR / "digits-mlp.onnx", place / "m.onnx")
        engines = ",".join(f"fake:latency_us={50_000 + n},waiting=asleep" for n in range(5))
        options = ["--engines", engines, "--processes", "1", "--iters", "19", "--warmup", "1", "--json"]
        began = time.monotonic()
        for i in range(rows // 5):
            command = [sys.executable, "-m", "enginebench", "run", "m.onnx", *options, "--out", f"r{i}"]
            subprocess.run(command, cwd=place, check=True, capture_output=True, env={**os.environ, "TMPDIR": folder})
        return time.monotonic() - began


def measure_overhead(rows: int) -> bool:
    alone = time_run(rows)
    print(f"run: {alone:.1f} s, {alone / rows:.2f} s a row")
    fine, one = True, 0.0
    for nodes in (1, 2, 4):
        seconds = time_sweep(nodes, rows)
        one = one or seconds
        share = one / seconds / nodes
        fine &= share >= 0.9
        print(f"{nodes} nodes: {seconds:.1f} s, {seconds / rows:.2f} s a row, {share:.2f} of ideal (limit 0.9)")
    cost = (one - alone) / rows
    print(f"cost of a row over run: {cost:.2f} s (limit 0.3)")
    return fine and cost <= 0.3


# Rows -----------------------------------------------------------------------------------------------------------------


def fill_store(folder: Path, count: int) -> None:
    """A store with so many rows that one small sweep on this machine really measured, under other names."""
    small = folder / "small"
    small.mkdir()
    spec = write_spec(small, 1, ["fake:latency_us=200"], processes=2, iters=50, warmup=2)
    subprocess.run(
        [sys.executable, "-m", "enginebench", "sweep", str(spec), "--out", str(small / "store")],
        check=True,
        capture_output=True,
        env={**os.environ, "TMPDIR": str(small)},
    )
    store = open_store(str(small / "store"))
    (group,) = list_groups(read_spec(spec))
    part = read_group(store, group.id)
    assert part is not None
    done = msgspec.json.decode(store.read(f"groups/{group.id}/done.json") or b"", type=Finished)
    per_group = 100
    engines = [f"fake:latency_us={n}" for n in range(1, per_group // 10 + 1)]
    batches = list(range(1, 11))
    big = write_spec(folder, count // per_group // 10 or 1, engines, batches=batches)
    asked = msgspec.toml.decode(big.read_bytes(), type=dict[str, Any])
    asked["machine"] = [{"kind": f"box{k}", "price_per_hour": 1.0 + k} for k in range(10)]
    write_toml(big, asked)
    spec_read = read_spec(big)
    out = folder / "store"
    record = SweepRecord(spec=spec_read, salt="0", started_utc="2026-01-01T00:00:00+00:00")
    write_atomic(out / "sweep.json", encode(record))
    row, figures = part.results[0], done.cells[0].row
    assert figures is not None and figures.p50_ms is not None
    for number, made in enumerate(list_groups(spec_read)):
        place = out / "groups" / made.id
        (place / "rows").mkdir(parents=True)
        cells: list[SweepCell] = []
        for i, cell in enumerate(made.cells):
            name = f"row-{i}"
            stored = msgspec.structs.replace(row, id=name, model=Path(made.model).name)
            (place / "rows" / f"{name}.json").write_bytes(encode(stored))
            cells.append(fill_cell(cell, figures, name, made.id, number + i))
        there = part.record.machine
        gpus = tuple(gpu.name for gpu in there.gpus)
        machine = Environment(
            id="0", machine_kind=made.machine.kind, cpu_model=there.cpu_model, gpus=gpus, versions=there.versions
        )
        (place / "done.json").write_bytes(encode(Finished(cells=tuple(cells), machines=(machine,))))


def fill_cell(cell: Any, row: SweepRow, name: str, group: str, salt: int) -> SweepCell:
    assert row.p50_ms is not None
    p50: Estimate = msgspec.structs.replace(row.p50_ms, value=row.p50_ms.value * (1 + salt % 17 / 10))
    return SweepCell(
        model=Path(cell.model).name,
        machine_kind=cell.machine,
        engine=cell.engine,
        precision=cell.precision,
        batch=cell.batch,
        scope=cell.scope,
        row=msgspec.structs.replace(row, id=name, p50_ms=p50, result=f"groups/{group}/rows/{name}.json"),
    )


def measure_rows(count: int) -> bool:
    with TemporaryDirectory(prefix="rows-") as folder:
        place = Path(folder)
        fill_store(place, count)
        store = place / "store"
        size = sum(path.stat().st_size for path in store.rglob("*.json"))
        print(f"{count} rows, {size / 1e6:.0f} MB in files")
        for verb in (["report", str(store)], ["history", str(store), "--last", "0"], ["history", str(store)]):
            seconds, megabytes = time_verb(verb, place)
            print(f"{verb[0]}: {seconds:.1f} s, {megabytes:.0f} MB of memory")
        pages = list((store / "sweep-pages").iterdir())
        total = sum(path.stat().st_size for path in pages) / 1e6
        page = store / "report.html"
        print(f"page {page.stat().st_size / 1e6:.1f} MB, {len(pages)} pages of groups, {total:.0f} MB")
        return open_page(page)


def time_verb(words: Sequence[str], place: Path) -> tuple[float, float]:
    """(seconds, peak of memory in MB) of a command."""
    code = "import resource,sys;from enginebench.door import main\ntry: main(sys.argv[1:])\nfinally: "
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    began = time.monotonic()
    variables = {**os.environ, "XDG_CACHE_HOME": str(place / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], check=True, capture_output=True, text=True, env=variables
    )
    return time.monotonic() - began, int(done.stderr.split()[-1]) / 1024


def open_page(page: Path) -> bool:
    """Whether Chromium shows the first lines within 3 s, and answers a filter."""
    chromium = os.environ.get("ENGINEBENCH_CHROMIUM") or shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        print("page in Chromium: not measured, since there is no Chromium or no Playwright")
        return False
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page()
        began = time.monotonic()
        tab.goto(f"file://{page}")
        tab.wait_for_selector("#matrix tbody tr")
        opened = time.monotonic() - began
        began = time.monotonic()
        tab.fill("#filters input", "m03.onnx box7")
        tab.wait_for_function("document.querySelectorAll('#matrix tbody tr').length < 300")
        print(f"page in Chromium: open after {opened:.1f} s (limit 3), filtered {time.monotonic() - began:.1f} s later")
        print(f"  {tab.inner_text('#count')}")
        browser.close()
    return opened <= 3


# GPUs -----------------------------------------------------------------------------------------------------------------

GPU_MODELS = ("resnet18", "resnet50", "mobilenet_v3_small", "efficientnet_b0")


def measure_gpus(processes: int, engines: str, precisions: str) -> bool:
    """Four models over all GPUs of this machine, in company; of each the row named first once more alone."""
    import ray
    import torch

    with TemporaryDirectory(prefix="gpus-") as folder:
        place = Path(folder)
        spec = {
            "engines": engines.split(","),
            "precisions": precisions.split(","),
            "baseline": "pytorch",
            "processes": processes,
            "time_limit_s": 1.0,
            "model": [{"name": name, "weights": "random"} for name in GPU_MODELS],
            "machine": [{"kind": KIND, "device": "cuda:0"}],
        }
        write_toml(place / "sweep.toml", spec)
        gpus = torch.cuda.device_count()
        ray.init(num_gpus=gpus, resources={"machine": 1, KIND: 1}, include_dashboard=False)
        address = ray.get_runtime_context().gcs_address
        command = [sys.executable, "-m", "enginebench", "sweep", str(place / "sweep.toml"), "--on", "auto"]
        command += ["--share-machine", "--out", str(place / "store"), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "RAY_ADDRESS": address})
        ray.shutdown()
        if done.returncode:
            print(done.stderr[-2000:])
            return False
        document = json.loads(done.stdout)
    for cell in document["cells"]:
        print(json.dumps(cell))
    for found in document["interference"]:
        ratio = found["ratio"]
        print(f"{found['model']:20} company / alone {ratio['value']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})")
    print(f"{len(document['cells'])} cells, {len(document['failed'])} without figures")
    return len(document["interference"]) == len(GPU_MODELS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["faults", "overhead", "rows", "gpus"])
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="seed of the first of the disturbed sweeps")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--processes", type=int, default=10, help="of each row of gpus")
    parser.add_argument(
        "--engines", default="pytorch,pytorch-cudagraph", help="of gpus; the first is measured alone, too"
    )
    parser.add_argument("--precisions", default="fp32,fp16", help="of gpus")
    given = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit[1], 65536), limit[1]))
    fine = {
        "faults": lambda: measure_faults(given.times, given.first),
        "overhead": lambda: measure_overhead(given.rows),
        "rows": lambda: measure_rows(given.count),
        "gpus": lambda: measure_gpus(given.processes, given.engines, given.precisions),
    }[given.what]()
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()

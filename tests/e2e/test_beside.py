"""Two engines beside each other: each is really called while the other one is timed, in a process and in a thread."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from enginebench.core.errors import EngineBenchError
from enginebench.core.protocols import Engine
from enginebench.core.records import EngineSpec, TrafficCell
from enginebench.models.onnx.source import read_onnx
from enginebench.runs.child.jobs import Neighbour
from enginebench.runs.child.opening import open_cells
from enginebench.runs.child.perform import beside
from enginebench.runs.child.perform.beside import keep_busy
from graphs import write_text
from processes import Cli


def write_product(folder: Path) -> Path:
    weights = {"w": np.random.default_rng(0).standard_normal((64, 64), np.float32)}
    return write_text(
        folder / "product é 1.onnx", "(float[batch, 64] x) => (float[batch, 64] y) { y = MatMul(x, w) }", weights
    )


def find_descendants(pid: str = "self") -> set[str]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = {child for task in tasks for child in task.read_text().split()}
    return children.union(*(find_descendants(child) for child in children))


def make_neighbour(folder: Path, **changes: object) -> Neighbour:
    model = write_product(folder)
    settings = {"engine": EngineSpec(backend="ort"), "placing": "process"} | changes
    return Neighbour(
        model=str(model),
        artifact=read_onnx(model),
        out_dir=str(folder),
        seed=0,
        **settings,  # type: ignore[arg-type]
    )


def read_ticks(pids: set[str]) -> int:
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(own[11]) + int(own[12]) for own in fields)


def test_a_process_is_busy_in_the_block_and_gone_after_it(tmp_path: Path) -> None:
    before = find_descendants()
    with keep_busy(make_neighbour(tmp_path)):
        (pid,) = find_descendants() - before
        ticks, end = read_ticks({pid}), time.monotonic() + 60
        while read_ticks({pid}) < ticks + 5 and time.monotonic() < end:
            time.sleep(0.01)
        assert read_ticks({pid}) >= ticks + 5
    assert find_descendants() == before


def test_a_thread_is_busy_in_the_block_and_gone_after_it(tmp_path: Path) -> None:
    before = threading.active_count()
    with keep_busy(make_neighbour(tmp_path, placing="thread")):
        assert threading.active_count() == before + 1
        used, end = time.process_time(), time.monotonic() + 60
        while time.process_time() < used + 0.05 and time.monotonic() < end:
            time.sleep(0.01)
        assert time.process_time() >= used + 0.05
    assert threading.active_count() == before


@pytest.mark.parametrize("placing", ["process", "thread"])
def test_a_neighbour_that_cannot_run_is_an_error_not_a_figure(tmp_path: Path, placing: str) -> None:
    wrong = make_neighbour(tmp_path, placing=placing, engine=EngineSpec(backend="ort", options={"opt": "nosuch"}))
    with pytest.raises(EngineBenchError, match="nosuch"), keep_busy(wrong):
        raise AssertionError("the block must not be entered")


def test_a_neighbour_that_serves_a_mix_is_called_in_each_of_its_shapes(tmp_path: Path) -> None:
    mix = (TrafficCell(weight=0.75, batch=1), TrafficCell(weight=0.25, batch=8))
    engine = EngineSpec(backend="ort", options={"sessions": "each"}, traffic=mix)
    opened: list[Engine] = []
    counts: Counter[int] = Counter()

    @contextmanager
    def open_counted(*arguments: Any) -> Iterator[list[Any]]:
        with open_cells(*arguments) as engines:
            opened.extend(engines)

            def count(place: int) -> Callable[[], None]:
                return lambda: counts.update([place])

            yield [SimpleNamespace(bind=one.bind, run=count(place)) for place, one in enumerate(engines)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beside, "open_cells", open_counted)
        with beside.open_bound(make_neighbour(tmp_path, engine=engine)) as call:
            assert counts == {0: 1, 1: 1}  # the first output of each
            for _ in range(400):
                call()
    assert len(opened) == 2 and counts == {0: 301, 1: 101}


def test_both_sides_alone_and_beside_each_other(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    other = write_product(tmp_path)
    few = ("--threads", "1", "--processes", "2", "--time-limit", "0.1", "--out", tmp_path / "b", "--json")
    done = cli("bench", tiny_onnx, "--engine", "ort", "--beside", f"openvino@{other}", *few)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    first, second = document["beside"]
    assert first["name"] == "openvino fp32" and second["name"] == "ort fp32" and second["model"].endswith("tiny.onnx")
    assert document["row"]["engine"] == "ort" and document["comparison"] is None
    for side in (first, second):
        assert side["alone_ms"]["value"] > 0
        assert side["process"] or side["reasons"]
    stored = [json.loads(path.read_text()) for path in (tmp_path / "b" / "rows").glob("*.json")]
    assert sorted(str(one["beside"]) for one in stored) == ["None", "None", "process", "process", "thread", "thread"]
    assert all(len(one["measurements"]) == 2 for one in stored)
    shown = cli("report", tmp_path / "b")
    assert shown.returncode == 0 and "beside, own" in shown.stdout and "USE" not in shown.stdout
    assert "no file was written" in shown.stderr and not (tmp_path / "b" / "report.html").exists()
    assert json.loads(cli("report", tmp_path / "b", "--json").stdout)["beside"] == document["beside"]
    unnamed = cli("deliver", tmp_path / "b", "--out", tmp_path / "none")
    assert unnamed.returncode == 2 and f"name one: --row {first['id']} or {second['id']}" in unnamed.stderr
    disturbed = cli("deliver", tmp_path / "b", "--row", f"{second['id']}-beside-thread", "--out", tmp_path / "none")
    assert disturbed.returncode == 2 and not (tmp_path / "none").exists()
    # No run of the models' outputs was compared with the other's.
    assert all(one["drift"] is None or not one["drift"]["unlike"] for one in stored)


def test_beside_a_bundle_a_graph_keeps_the_batch_that_it_fixes(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    run, bundle = tmp_path / "run", tmp_path / "ship é 1"
    assert cli("run", tiny_onnx, "--engines", "ort", "--quick", "--iters", "20", "--out", run).returncode == 0
    assert cli("deliver", run, "--out", bundle).returncode == 0
    fixed = write_text(tmp_path / "fixed.onnx", "(float[4, 3] x) => (float[4, 3] y) { y = Neg(x) }", {})
    few = ("--processes", "1", "--iters", "20", "--out", tmp_path / "b", "--json")
    done = cli("bench", bundle, "--beside", f"ort@{fixed}", *few)
    assert done.returncode == 0, done.stderr
    other, own = json.loads(done.stdout)["beside"]
    assert (other["size"], own["size"]) == ("batch 4", "batch 1") and other["alone_ms"] and own["process"]


def test_beside_a_side_that_does_not_run_nothing_is_timed(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    """The engine of one cannot be built; that of the other one would still run."""
    few = ("--processes", "1", "--time-limit", "0.02", "--json", "--out", tmp_path / "out")
    done = cli("bench", tiny_onnx, "--engine", "ort", "--beside", "fake:fault=raise,at=build", *few)
    sides = json.loads(done.stdout)["beside"]
    assert done.returncode != 0 and [side["process"] or side["thread"] for side in sides] == [None, None]
    assert any("is not run: " in reason for reason in sides[1]["reasons"])


def test_a_side_that_fixes_another_batch_is_refused_before_anything_is_stored(
    cli: Cli, tiny_onnx: Path, tmp_path: Path
) -> None:
    fixed = tmp_path / "fixed.onnx"
    assert cli("export", "digits-mlp", "--out", fixed).returncode == 0
    done = cli(
        *("bench", tiny_onnx, "--engine", "ort", "--beside", f"ort@{fixed}", "--batch", "4", "--out", tmp_path / "out")
    )
    assert done.returncode == 2 and "has a fixed batch of 1" in done.stderr and not (tmp_path / "out").exists()

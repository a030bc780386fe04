"""Named baselines: saved, listed, compared with, removed; names and links that would lead elsewhere."""

from pathlib import Path

import pytest

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.runs.baselines import are_neighbours, delete_baseline, read_baselines, read_side, store_baseline
from enginebench.stats.trials import count_timed
from samples import make_implausible, make_result
from stored_run import make_results, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", make_results())


def test_a_baseline_is_a_copy_of_what_was_measured(run: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    saved = store_baseline("v1.0", run, store)
    assert (saved.rows, saved.model, saved.cpu_model) == (4, "resnet18", "Xeon")
    assert read_side("v1.0", store) == read_side(str(run))[:4]
    assert [b.name for b in read_baselines(store).baselines] == ["v1.0"]
    with pytest.raises(UsageError, match="--force"):
        store_baseline("v1.0", run, store)
    store_baseline("v1.0", run, store, force=True)
    assert [p.name for p in store.iterdir()] == ["v1.0"]
    assert delete_baseline("v1.0", store) == store / "v1.0"
    assert read_baselines(store).baselines == ()


def test_a_side_of_a_comparison_holds_no_samples(run: Path) -> None:
    whole = {result.id: result for result in make_results()}
    for side in read_side(str(run)):
        for kept, measured in zip(side.measurements, whole[side.id].measurements, strict=True):
            assert len(kept.latency_ns) <= 1
            assert count_timed(kept) == len(measured.latency_ns)


def test_implausible_times_are_no_baseline(tmp_path: Path) -> None:
    honest, cheat = make_result(median_ms=20), make_implausible(make_result("ort", median_ms=1, seed=2))
    saved = store_baseline("main", write_run(tmp_path / "run", [honest, cheat]), tmp_path / "store")
    assert (saved.rows, saved.left_out) == (1, (cheat.id,))
    assert [row.id for row in read_side("main", tmp_path / "store")] == [honest.id]
    with pytest.raises(ArtifactError, match=f"implausible times alone .{cheat.id}: "):
        store_baseline("other", write_run(tmp_path / "cheat", [cheat]), tmp_path / "store")


@pytest.mark.parametrize("name", ["", "..", "a/b", "Main", "-x", "a b", "../run", "ö"])
def test_names_that_are_no_plain_names(run: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="lower-case"):
        store_baseline(name, run, tmp_path / "store")
    with pytest.raises(UsageError):
        delete_baseline(name, tmp_path / "store")


def test_only_baselines_are_removed(run: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "photos").mkdir(parents=True)
    (store / "linked").symlink_to(run)
    for name in ("photos", "linked", "absent"):
        with pytest.raises(UsageError, match="no baseline"):
            delete_baseline(name, store)
    assert (run / "run.json").exists() and (store / "photos").exists()


def test_damaged_baselines_are_listed_with_the_reason(run: Path, tmp_path: Path) -> None:
    store_baseline("x", run, tmp_path / "store")
    (tmp_path / "store" / "x" / "run.json").write_text("{")
    (one,) = read_baselines(tmp_path / "store").baselines
    assert one.reason and "run.json" in one.reason


def test_configurations_of_one_run_are_neighbours(run: Path, tmp_path: Path) -> None:
    one, other = sorted((run / "rows").glob("*.json"))[:2]
    store_baseline("main", run, tmp_path / "store")
    assert are_neighbours(str(one), str(other))
    copied = tmp_path / "store" / "main" / "rows" / other.name
    for apart in (str(copied), "main", str(run)):
        assert not are_neighbours(str(one), apart, tmp_path / "store")
    with pytest.raises(ArtifactError, match="baselines: main"):
        are_neighbours(str(one), "mian", tmp_path / "store")

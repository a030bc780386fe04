"""Which row of a run is delivered, and what an engine brings into a bundle: its own files, and next to nothing else."""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.records import TEXT, Artifact, TensorSpec
from enginebench.features.deliver.verb import (
    DeliverDocument,
    check_bundle,
    choose_configuration,
    format_delivery,
    refuse_changed,
)
from enginebench.features.deliver.writing import (
    CPU,
    GPU,
    MODULE,
    PACKAGE,
    PROGRAMS,
    check_free,
    explain_refusal,
    list_sources,
    write_check,
)
from enginebench.runs.folder import read_results
from enginebench.runs.reporting import describe_stored
from samples import make_implausible
from stored_run import write_final


@pytest.mark.parametrize(("winner", "challenger_ms"), [("default", 4.7), ("challenger", 3.0)])
def test_of_the_final_of_a_search_what_the_search_says_to_take(tmp_path, winner, challenger_ms) -> None:
    record, results = read_results(write_final(tmp_path / "t", winner, challenger_ms))
    document = describe_stored(record, results)
    assert choose_configuration(document, results, None)[0].id == winner
    assert choose_configuration(document, results, "challenger")[0].id == "challenger"


@pytest.mark.parametrize("lose", [False, True])
def test_of_a_search_that_named_no_winner_none(tmp_path: Path, lose: bool) -> None:
    root = write_final(tmp_path / "t", None)
    if lose:
        (root / "tune.json").unlink()
    record, results = read_results(root)
    with pytest.raises(UsageError, match=r"the search named no winner.*continue it with `tune --resume`"):
        choose_configuration(describe_stored(record, results), results, None)


def test_what_a_bundle_does_not_do_is_refused(tmp_path: Path) -> None:
    result = read_results(write_final(tmp_path / "t", None))[1][0]
    pipelined = replace(result, measure=replace(result.measure, scope="pipelined"))
    assert "scope pipelined overlaps them" in (explain_refusal(pipelined) or "") and not explain_refusal(result)
    assert "its times are implausible: calls on new inputs" in (explain_refusal(make_implausible(result)) or "")
    died = replace(result, status="failed", reason="the child died")
    assert explain_refusal(died) == "it is failed (the child died), not ok"
    label = TensorSpec(name="label", dtype=TEXT, shape=("batch",))
    graph = Artifact(kind="onnx", model="m", path="", sha256="0", files=(), inputs=(), outputs=(label,))
    refused = [
        explain_refusal(replace(result, artifacts=(graph,), engine=replace(result.engine, backend=name)))
        for name in ("openvino", "ort")
    ]
    assert "label holds text" in str(refused[0]) and refused[1] is None
    engine = replace(result.engine, backend="pytorch-compile", precision="int8", recipe="pt2e")
    assert "torchao quantized its module" in (explain_refusal(replace(result, engine=engine)) or "")


def test_what_needs_a_package_that_is_not_here_is_written_unchecked_and_says_so(tmp_path: Path) -> None:
    """Pillow, which prepares images, is missing where no engine brought it; that is no fault of the bundle."""
    engine, packages = SimpleNamespace(backend="fake"), {"numpy": "2", "no-such-package": "1"}
    bundle: Any = SimpleNamespace(row="r", engine=engine, runtime={}, requirements=packages)
    warning = check_bundle(tmp_path, bundle, force=False)
    assert warning is not None and "not checked: it needs no-such-package, not installed here" in warning
    document = DeliverDocument(bundle="ship", row="r", files=(), checked=False, notes=(warning,))
    assert not [line for line in format_delivery(document) if line.startswith("Try it")], "typed, it would fail"
    *_, last = format_delivery(replace(document, checked=True, notes=()))
    assert last == "Try it: python ship/predict.py --check"


# What it may bring beside them.
KERNEL = {"core/aoti.py", "core/engine_api.py", "core/judging.py", "core/sums.py", "core/trees.py"}
ENGINES = {contents.engine for family in (CPU, GPU) for contents in family.values()}


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_an_engine_imports_the_interface_and_engines_alone(engine: str) -> None:
    others = {source for source in list_sources(f"engines/{engine}.py") if not source.startswith("engines/")}
    assert "core/engine_api.py" in others and others <= KERNEL


COPIED = {PACKAGE / source for source in list_sources(*(f"engines/{engine}.py" for engine in ENGINES), *MODULE)}


@pytest.mark.parametrize("source", sorted({*COPIED, *PROGRAMS.glob("*.py")}), ids=lambda source: source.stem)
def test_what_is_copied_imports_ours_by_relative_paths_alone(source: Path) -> None:
    """Else it would not find it in a bundle, where this package is not."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        named += [str(node.module)] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert not [name for name in named if name.partition(".")[0] in ("enginebench", "msgspec", "click", "rich")]


def test_the_programs_around_it_stay_a_few_pages() -> None:
    lines = {path.name: len(path.read_text("utf-8").splitlines()) for path in PROGRAMS.glob("*.py")}
    assert lines["predict.py"] <= 60 and sum(lines.values()) <= 460, lines


def test_outputs_that_are_none_of_the_graphs_are_a_damaged_run(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="output 'y' is none of its graph's: z; the run is damaged"):
        write_check(tmp_path, [{"x": np.zeros(1)}], {"y": np.zeros(1)}, {"z": 1})


def test_what_the_run_found_changed_needs_force(tmp_path: Path) -> None:
    record, results = read_results(write_final(tmp_path / "t", "default"))
    (row, *_) = describe_stored(record, results).rows
    refuse_changed(row)
    with pytest.raises(UsageError, match=r"changes the outputs \(y: snr is 5\).*--row.*--force"):
        refuse_changed(replace(row, outputs="changed", outputs_reason="y: snr is 5"))


def test_a_bundle_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    check_free(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    check_free(tmp_path / "empty")
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    (tmp_path / "file").touch()
    for name in ("link", "file", ""):
        with pytest.raises(UsageError, match=r"is not empty.*Choose another"):
            check_free(tmp_path / name)

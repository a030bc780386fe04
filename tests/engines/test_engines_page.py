"""`docs/engines.md` against the registry, the options, and what engines accept and refuse."""

import re
import zipfile
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from enginebench.core.errors import BackendUnavailable
from enginebench.core.names import parse_precision
from enginebench.core.recipes import RECIPES
from enginebench.core.records import Artifact, Availability, EngineSpec, Precision
from enginebench.engines.registry import ENTRIES, open_backend
from enginebench.models.onnx.source import read_onnx
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.folder import RunRequest
from enginebench.runs.plan import plan_configurations, resolve
from intel import skip_without_provider
from pages import Table, find_section, find_tables, read_page

PAGE = read_page("engines.md")
SECTION = find_section(PAGE, "## Engine and precision")
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SHIPPED = list(ENTRIES)
# Those that need no GPU.
PRESENT = [name for name in SHIPPED if not ENTRIES[name].device]


def matrix() -> dict[str, dict[str, str]]:
    (table,) = find_tables(SECTION)
    return {row["engine"].strip("`"): row for row in table}


def reasons() -> dict[str, str]:
    """{key: the words of the program behind it} of the list below the table."""
    return dict(re.findall(r"^- \*\*\[(\w+)\]\*\* `([^`]+)`", SECTION, re.MULTILINE))


def reason_of(cell: str) -> str:
    found = re.fullmatch(r"no \[(\w+)\]", cell)
    assert found, cell
    return reasons()[found[1]]


def make_artifact(name: str, precision: Precision) -> Artifact:
    """What an engine starts from, labelled with a precision."""
    path = DATA_DIR / "digits-mlp.onnx"
    found = read_onnx(path)
    if ENTRIES[name].takes == "torch":
        found = replace(found, kind="torch", path="", sha256="0" * 64, files=())
    return replace(found, model="digits-mlp", precision=precision)


def test_the_page_has_every_engine_precision_and_reason() -> None:
    assert {name: row["starts from"] for name, row in matrix().items()} == {n: e.takes for n, e in ENTRIES.items()}
    for row in matrix().values():
        assert tuple(row) == ("engine", "starts from", *PRECISIONS)
    cells = [cell for row in matrix().values() for cell in row.values() if cell.startswith("no ")]
    assert {reason_of(cell) for cell in cells} == set(reasons().values())
    assert re.findall(r"^## `([\w-]+)`$", PAGE, re.MULTILINE) == SHIPPED


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", PRESENT)
def test_an_engine_accepts_and_refuses_as_the_matrix_says(name, precision, tmp_path, monkeypatch) -> None:
    skip_without_provider(name)
    backend = open_backend(name)
    forced = {"force": "1"} if "force" in ENTRIES[name].options else {}  # also on an older CPU
    spec = EngineSpec(backend=name, precision=precision, options=forced)
    if name == "pytorch-aoti":  # it builds by compiling

        def compile_nothing(*given: Any) -> tuple[()]:
            zipfile.ZipFile(given[-1], "w").writestr("m/x", "")
            return ()

        monkeypatch.setattr(type(backend), "_compile", compile_nothing)
    if matrix()[name][precision] == "runs":
        backend.build(make_artifact(name, precision), spec, tmp_path)
    else:
        with pytest.raises(BackendUnavailable, match=f"{reason_of(matrix()[name][precision])} {precision}"):
            backend.build(make_artifact(name, precision), spec, tmp_path)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_run_plans_every_engine_that_is_there_and_no_other(precision, monkeypatch) -> None:
    """With every graph made."""
    monkeypatch.setattr("enginebench.runs.plan.find_spec", lambda name: object())
    request = RunRequest(
        model="digits-mlp", engines=tuple((name, {}) for name in SHIPPED), precisions=(parse_precision(precision),)
    )
    sources = [make_artifact("pytorch", "fp32"), graph := make_artifact("ort", "fp32")]
    plan = resolve(request, sources)
    made = [(p, r, RECIPES[r].makes if r in RECIPES else "onnx") for p, r in plan.transforms]
    sources += [replace(graph, precision=p, recipe=r, kind=kind) for p, r, kind in made]
    for row in plan_configurations(plan, sources, probe=lambda name: Availability(engine=name, available=True)):
        assert (row.skip is None) == (matrix()[row.engine.backend][precision] == "runs"), row.skip


@pytest.mark.parametrize("name", SHIPPED)
def test_options_are_those_of_the_entry(name: str) -> None:
    (table,) = find_tables(find_section(PAGE, f"## `{name}`"))
    expected: Table = [
        {"option": f"`{key}`", "default": o.default, "choices": ", ".join(o.choices), "meaning": o.meaning}
        for key, o in ENTRIES[name].options.items()
    ]
    assert table == expected

"""What a sweep asks for: its cells, its groups, and what is refused."""

import importlib.util
import sys
import zipfile
from pathlib import Path
from typing import Annotated

import pytest

from enginebench.core.errors import EngineBenchError, ParseError, UsageError
from enginebench.features.sweep import spec as specs
from enginebench.features.sweep.spec import (
    MOST_CELLS,
    OF_MACHINE,
    OPTIONS,
    format_model,
    list_cells,
    list_groups,
    read_spec,
)
from enginebench.options import Opt
from enginebench.runs.folder import RunRequest
from enginebench.verbs import run
from pages import read_page
from processes import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import option_tables

MATRIX = """
engines = ["fake", "fake:latency_us=100", "ort"]
precisions = ["fp32", "int8"]
batches = [1, 8]
[[model]]
name = "digits-cnn"
[[model]]
name = "digits-mlp"
max_metric_drop = 0.02
[[machine]]
kind = "big"
[[machine]]
kind = "small"
threads = 1
"""

ONE = 'engines = ["fake"]\n[[model]]\nname = "digits-cnn"\n{}\n'


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def test_an_include_adds_beside_the_matrix_what_no_axis_has(tmp_path: Path) -> None:
    text = MATRIX + '[[include]]\nmodel = "digits-mlp"\nengine = "openvino"\nbatch = 32\nprecision = "fp32"\n'
    spec = read_spec(write(tmp_path, text))
    added = [c for c in list_cells(spec) if c.engine == "openvino"]
    assert [(c.model, c.machine, c.batch) for c in added] == [("digits-mlp", "big", 32), ("digits-mlp", "small", 32)]


# What an option is set to where its type alone does not say what it may be.
SET = {"dynamic_axes": '["x:2"]', "input_shape": "{x = [1, 64]}", "limit": '"cosine=0.9"', "normalize": '"0.5/0.25"'}
SET |= {"metric": '["top5"]', "warmup": '"200ms"', "device": '"cuda:1"', "baseline": '"fake"', "task": '"text"'}
SET |= {"cache": '"cold"', "calibration_method": '"entropy"', "input_dtype": '"uint8"'}
SET |= {"need": '{memory = "512MB"}'}


@pytest.mark.feature("load", "load_p99_ms")
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_run_stands_at_the_top_in_a_model_or_where_graphs_stay_equal_in_a_machine(
    tmp_path: Path, name: str
) -> None:
    value = SET.get(name, {bool: "true", int: "7", float: "2"}.get(OPTIONS[name].kind, '"x"'))
    line = f"{name} = {value}\n" + 'input_dtype = "uint8"\n' * (name == "normalize")

    def ask(*places: str) -> list[RunRequest]:
        text = "engines = ['fake']\n{}[[model]]\nname = 'digits-cnn'\n{}[[machine]]\nkind = 'a'\n{}"
        load = 'steps = ["measure", "load"]\n' * (name == "load_p99_ms" and any(places))
        groups = list_groups(read_spec(write(tmp_path, load + text.format(*places))))
        return [group.request for group in groups]

    plain = ask("", "", "")
    everywhere = [ask(line, "", ""), ask("", line, "")]
    if name in OF_MACHINE:
        everywhere.append(ask("", "", line))
    else:
        with pytest.raises(UsageError, match=f"machine a: .*{name} would change what is measured, .*at the top"):
            ask("", "", line)
    assert plain not in everywhere and everywhere[1:] == everywhere[:1] * (len(everywhere) - 1)


def test_a_limit_of_a_model_goes_before_the_other_spelling_of_it_at_the_top(tmp_path: Path) -> None:
    text = "max_top1_drop = 5\n" + MATRIX
    assert [g.request.max_metric_drop for g in list_groups(read_spec(write(tmp_path, text)))] == [0.05] * 2 + [0.02] * 2


def test_a_new_option_of_run_is_a_field_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class More(run.RunOptions, total=False):
        colours: Annotated[int, Opt("How many.", 1, ge=1)]

    monkeypatch.setattr(run, "RunOptions", More)
    found = importlib.util.find_spec(specs.__name__)
    assert found is not None and found.loader is not None
    anew = importlib.util.module_from_spec(found)
    found.loader.exec_module(anew)
    spec = anew.read_spec(write(tmp_path, "colours = 2\n" + ONE.format("colours = 3")))
    assert anew.merge_run_options(spec, *spec.model)["colours"] == 3
    with pytest.raises(ParseError, match=r"model\[0\]: found colours=0; expected a whole number, at least 1"):
        anew.read_spec(write(tmp_path, ONE.format("colours = 0")))


def test_the_page_names_the_options() -> None:
    page = read_page("fleet.md")
    assert option_tables.write_fields(page) == page, "make tables"


def test_files_beside_the_specification_are_found_from_anywhere(tmp_path: Path, tiny_onnx: Path) -> None:
    text = f'engines = ["fake"]\n[[model]]\nname = "{tiny_onnx.name}"\nweights = "random"\n'
    (tiny_onnx.parent / "sweep.toml").write_text(text)
    (tiny_onnx.parent / "random").mkdir()
    spec = read_spec(tiny_onnx.parent / "sweep.toml")
    assert spec.model[0].weights == "random"  # which is no path
    assert spec.model[0].name == str(tiny_onnx)
    assert format_model(spec.model[0].name) == "tiny.onnx"
    assert list_groups(spec)[0].id.startswith("tiny-")
    with zipfile.ZipFile(tiny_onnx, "w") as archive:
        archive.writestr("m/data/aotinductor/model/c.so", "")
    with pytest.raises(UsageError, match=r"tiny\.onnx is a package, compiled for one machine"):
        list_groups(spec)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("engines = [", ParseError, "expected TOML"),
        ('engines = ["fake"]\n', ParseError, "model"),
        (MATRIX + "colour = 1\n", ParseError, "colour"),
        (MATRIX.replace('"ort"', '"orrt"'), UsageError, "orrt"),
        (MATRIX.replace('"ort"', '"fake:colour=1"'), UsageError, "colour"),
        (MATRIX.replace('"int8"', '"int2"'), UsageError, "int2"),
        (MATRIX.replace("[1, 8]", "[0]"), ParseError, r"batches\[0\]: found 0; expected `int` >= 1"),
        (MATRIX.replace("digits-mlp", "digits-cnn"), UsageError, "there twice"),
        (MATRIX + '[[exclude]]\nengine = "openvino"\n', UsageError, "meets no cell"),
        (MATRIX + '[[include]]\nmodel = "resnet18"\n', UsageError, "resnet18"),
        (MATRIX.replace("[1, 8]", str(list(range(1, MOST_CELLS // 20)))), UsageError, "Part it"),
        ('steps = ["load"]\n' + MATRIX, UsageError, '"load"|load_p99_ms'),
        ('baseline = "openvino"\n' + MATRIX, UsageError, "not among the engines"),
        ("load_p99_ms = nan\n" + MATRIX, ParseError, "found load_p99_ms=nan; expected a finite number, more than 0"),
        (ONE.format("metric = [1]"), ParseError, r"model\[0\].metric\[0\]: found `int`; expected `str`"),
        (
            ONE.format("time_limit = 1\ntime_limit_s = 1"),
            ParseError,
            r"\[0\]: found both; .*time_limit and time_limit_s",
        ),
        (ONE.format("time_limit_s = 0"), ParseError, "found time_limit=0; expected"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, error: type[EngineBenchError], said: str) -> None:
    with pytest.raises(error, match=said):
        list_cells(read_spec(write(tmp_path, text)))

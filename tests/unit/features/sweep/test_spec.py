"""What a sweep asks for: its cells, its groups, and what is refused."""

import zipfile
from pathlib import Path

import pytest

from enginebench.core.errors import EngineBenchError, ParseError, UsageError
from enginebench.core.records import Normalize
from enginebench.features.sweep.spec import MOST_CELLS, list_cells, list_groups, read_spec, show_model
from enginebench.runs.request import Timing

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

TIMING = {"warmup": None, "iters": None, "time_limit": 1.0, "processes": None, "scope": "compute", "cache": "hot"}
ONE = 'engines = ["fake"]\n[[model]]\nname = "digits-cnn"\n{}\n'


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def test_an_exclude_takes_what_agrees_in_every_field(tmp_path: Path) -> None:
    text = MATRIX + '[[exclude]]\nengine = "fake"\nmachine = "small"\nbatch = 8\n'
    cells = list_cells(read_spec(write(tmp_path, text)))
    assert len(cells) == 48 - 8  # both spellings of fake, two models, two precisions
    assert not [c for c in cells if c.engine.startswith("fake") and c.machine == "small" and c.batch == 8]
    assert [c for c in cells if c.engine.startswith("fake") and c.machine == "small" and c.batch == 1]


def test_an_include_adds_beside_the_matrix_what_no_axis_has(tmp_path: Path) -> None:
    text = MATRIX + '[[include]]\nmodel = "digits-mlp"\nengine = "openvino"\nbatch = 32\nprecision = "fp32"\n'
    spec = read_spec(write(tmp_path, text))
    added = [c for c in list_cells(spec) if c.engine == "openvino"]
    assert [(c.model, c.machine, c.batch) for c in added] == [("digits-mlp", "big", 32), ("digits-mlp", "small", 32)]


def test_a_group_has_the_rows_of_one_model_on_one_kind_and_its_own_settings(tmp_path: Path) -> None:
    groups = list_groups(read_spec(write(tmp_path, MATRIX)))
    models = ("digits-cnn", "digits-mlp")
    assert [(g.model, g.machine.kind) for g in groups] == [
        (model, kind) for model in models for kind in ("big", "small")
    ]
    assert len({g.id for g in groups}) == 4
    assert [g.request.threads for g in groups] == [0, 1, 0, 1]
    assert [g.request.max_metric_drop for g in groups] == [None, None, 0.02, 0.02]
    assert {g.request.measure for g in groups} == {Timing(**TIMING).make_measure(0)}  # as `run` without options
    more = 'input_dtype = "uint8"\nnormalize = "0.5/0.25"\ndynamic_axes = ["x:2"]\nort_extension = ["a.so"]\n'
    (one,) = list_groups(read_spec(write(tmp_path, "builds = 2\n" + ONE.format(more))))
    assert (one.request.normalize, one.request.dynamic_axes) == (Normalize(mean=(127.5,), std=(63.75,)), {"x": (2,)})
    assert one.request.operator_libraries == ("a.so",) and one.request.measure.builds == 2
    assert all(len(g.request.wanted) == 12 == len(set(g.cells)) for g in groups)


def test_files_beside_the_specification_are_found_from_anywhere(tmp_path: Path, tiny_onnx: Path) -> None:
    text = f'engines = ["fake"]\n[[model]]\nname = "{tiny_onnx.name}"\n'
    (tiny_onnx.parent / "sweep.toml").write_text(text)
    spec = read_spec(tiny_onnx.parent / "sweep.toml")
    assert spec.model[0].name == str(tiny_onnx)
    assert show_model(spec.model[0].name) == "tiny.onnx"
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
        (MATRIX.replace('"int8"', '"int2"'), UsageError, "int2"),
        (MATRIX.replace("[1, 8]", "[0]"), ParseError, r"batches\[0\]: found 0; expected `int` >= 1"),
        (MATRIX.replace("[1, 8]", "[]"), ParseError, r"batches: found \[\]; expected `array` of length >= 1"),
        (MATRIX.replace("digits-mlp", "digits-cnn"), UsageError, "there twice"),
        (MATRIX + '[[exclude]]\nengine = "openvino"\n', UsageError, "meets no cell"),
        (MATRIX + '[[include]]\nmodel = "resnet18"\n', UsageError, "resnet18"),
        (MATRIX + '[[include]]\nmachine = "huge"\n', UsageError, "huge"),
        (MATRIX.replace("[1, 8]", str(list(range(1, MOST_CELLS // 20)))), UsageError, "Part it"),
        ('steps = ["load"]\n' + MATRIX, UsageError, '"load"|load_p99_ms'),
        ('baseline = "openvino"\n' + MATRIX, UsageError, "not among the engines"),
        ("load_p99_ms = nan\n" + MATRIX, ParseError, "load_p99_ms: found nan; expected `float` > 0"),
        ("seed = 'x'\n" + MATRIX, ParseError, "seed: found `str`; expected `int`"),
        (ONE.format("max_metric_drop = nan"), ParseError, "max_metric_drop: found nan; expected"),
        (ONE.format("max_metric_drop = -1"), ParseError, "expected `float` >= 0"),
        (ONE.format("p99_limit_ms = 0"), ParseError, r"model\[0\].p99_limit_ms"),
        (ONE.format("load_p99_ms = inf"), ParseError, r"model\[0\].load_p99_ms"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str, error: type[EngineBenchError], said: str) -> None:
    with pytest.raises(error, match=said):
        list_cells(read_spec(write(tmp_path, text)))

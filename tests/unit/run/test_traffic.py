"""A mix of requests as users write it, and what its shapes are for the inputs of a model."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.core.shapes import format_mix, format_traffic, name_cells, name_size
from enginebench.core.warnings import make_warning
from enginebench.runs import traffic
from enginebench.runs.folder import RunRequest
from enginebench.runs.targets import sources
from enginebench.runs.traffic import LONGEST_LINE, MOST_CELLS, read_traffic, settle_traffic

IDS = TensorSpec(name="ids", dtype="int64", shape=("batch", "length"), sizes=(0, 16))
MASK = TensorSpec(name="mask", dtype="int64", shape=("batch", "length"), sizes=(0, 16))
IMAGE = TensorSpec(name="x", dtype="float32", shape=("batch", 3, "height", "width"), sizes=(0, 0, 8, 8))
QUERY = TensorSpec(name="q", dtype="float32", shape=("batch", "q len", 4), sizes=(0, 5, 0))
KEY = TensorSpec(name="k", dtype="float32", shape=("batch", "k len", 4), sizes=(0, 6, 0))
FIXED = TensorSpec(name="x", dtype="float32", shape=("batch", 3))


def settle(text: str, *inputs: TensorSpec) -> list[tuple[int, dict[str, tuple[int, ...]], float]]:
    cells = settle_traffic(read_traffic(text), inputs)
    return [(cell.batch, cell.shapes, round(cell.weight, 6)) for cell in cells]


def test_batches_with_weights_that_need_not_sum_to_one() -> None:
    assert settle("batch=8:3,batch=1:7", FIXED) == [(1, {}, 0.7), (8, {}, 0.3)]
    assert settle("batch=1,batch=2", FIXED) == [(1, {}, 0.5), (2, {}, 0.5)]
    assert read_traffic({"batch=1": 0.7, "batch=8": 0.3}) == read_traffic("batch=1:0.7,batch=8:0.3")


def test_weights_of_any_size_keep_their_ratio() -> None:
    assert settle("batch=1:1e308,batch=8:1e308", FIXED) == [(1, {}, 0.5), (8, {}, 0.5)]
    assert settle("batch=1:3e-320,batch=8:1e-320", FIXED) == [(1, {}, 0.75), (8, {}, 0.25)]


def test_a_batch_among_lengths_has_the_usual_length() -> None:
    assert settle("length=8:1,batch=2:1", IDS) == [(1, {"ids": (1, 8)}, 0.5), (2, {"ids": (2, 16)}, 0.5)]
    assert settle("length=16:1,batch=1:1,length=8:2", IDS) == [(1, {"ids": (1, 8)}, 0.5), (1, {"ids": (1, 16)}, 0.5)]


def test_no_two_cells_have_one_name() -> None:
    text = "q len=3+k len=4:1,q len=3+k len=8:1,q len=8+k len=2:2"
    cells = settle_traffic(read_traffic(text), (QUERY, KEY))
    assert name_cells(cells) == ["1x3x4+1x4x4", "1x8x4+1x2x4", "1x3x4+1x8x4"]
    # Inputs of one shape, of which it is enough to say it once.
    assert format_traffic(settle_traffic(read_traffic("8:1,16:1"), (IDS, MASK))) == "1x8:0.5,1x16:0.5"


def test_an_axis_by_its_name_sizes_every_input_that_has_it() -> None:
    assert settle("length=128:0.25,length=16:0.75", IDS, MASK) == [
        (1, {"ids": (1, 16), "mask": (1, 16)}, 0.75),
        (1, {"ids": (1, 128), "mask": (1, 128)}, 0.25),
    ]
    assert settle("batch=4+length=7", IDS) == [(4, {"ids": (4, 7)}, 1.0)]
    assert settle("height=32", IMAGE) == [(1, {"x": (1, 3, 32, 8)}, 1.0)]


def test_a_length_is_of_the_only_dynamic_axis_and_a_shape_is_whole() -> None:
    assert settle("16:1,2x64:1", IDS, MASK) == [
        (1, {"ids": (1, 16), "mask": (1, 16)}, 0.5),
        (2, {"ids": (2, 64), "mask": (2, 64)}, 0.5),
    ]
    assert settle("16,2x64", IDS) == [(1, {"ids": (1, 16)}, 0.5), (2, {"ids": (2, 64)}, 0.5)]
    assert settle("2x3x4x5:1", IMAGE) == [(2, {"x": (2, 3, 4, 5)}, 1.0)]
    # Written in two ways, it is one shape.
    assert settle("1x16:1,length=16:3", IDS) == [(1, {"ids": (1, 16)}, 1.0)]


@pytest.mark.parametrize(
    ("text", "inputs", "message"),
    [
        ("batch=1:0", (FIXED,), "not a finite number above 0"),
        ("batch=1:nan,batch=2:1", (FIXED,), "not a finite number above 0"),
        ("batch=1:many", (FIXED,), "expected SHAPE:WEIGHT"),
        ("batch=0:1", (FIXED,), "expected batch=N"),
        ("batch=2+batch=3:1", (FIXED,), "expected batch=N"),
        ("batch:1", (FIXED,), "expected batch=N"),
        ("width=9:1", (IDS,), "no dynamic axis 'width'; it has batch, length"),
        ("9:1", (IMAGE,), "dynamic axes height, width; write AXIS=N"),
        ("9:1", (FIXED,), "no dynamic axis but the batch"),
        ("1x2x3:1", (IDS,), "no input takes this shape; the inputs are ids: batchxlength"),
        (",".join(f"batch={n}:1" for n in range(1, MOST_CELLS + 2)), (FIXED,), "13 shapes, more than 12"),
        ("batch=1:1e-10,batch=2:1", (FIXED,), "a fraction of 1e-10 of the requests is less than 1e-09"),
        ("batch=1+count=8", (TensorSpec(name="x", dtype="float32", shape=("count", 3)),), "two of these are the batch"),
        ("9:1", (FIXED,), "which is written batch=9. Where a PyTorch model is exported, --dynamic-axes x:1 has one"),
        ("x" * 5000, (FIXED,), "neither a file nor a mix"),
        ("nowhere.txt", (IDS,), "neither a file nor a mix such as batch=1:0.7,batch=8:0.3"),
    ],
)
def test_what_cannot_be_served_is_refused(text: str, inputs: Sequence[TensorSpec], message: str) -> None:
    with pytest.raises(UsageError, match="--traffic") as refusal:
        settle_traffic(read_traffic(text), inputs)
    assert message in str(refusal.value)


def test_lines_of_a_file_count_by_their_frequency(tmp_path: Path) -> None:
    path = tmp_path / "lengths é 1.txt"
    path.write_text("16\n128\n\n16\n 16 \n", encoding="utf-8")
    assert settle(str(path), IDS) == [(1, {"ids": (1, 16)}, 0.75), (1, {"ids": (1, 128)}, 0.25)]


@pytest.mark.parametrize("name", ["a=b.txt", "a:1.txt", "8"])
def test_a_file_is_read_whatever_its_name_looks_like(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"16\r\n16\r\n8\r\n16")
    expected = [(1, {"ids": (1, 8)}, 0.25), (1, {"ids": (1, 16)}, 0.75)]
    assert settle(str(tmp_path / name), IDS) == expected
    cells = settle_traffic(read_traffic(tmp_path / name), (IDS,))  # a path, as Python's users have it
    assert [cell.weight for cell in cells] == [0.25, 0.75]


def test_an_axis_of_a_long_name_is_read_from_a_file(tmp_path: Path) -> None:
    name = "length_" * 40
    spec = TensorSpec(name="ids", dtype="int64", shape=("batch", name), sizes=(0, 16))
    (tmp_path / "lengths.txt").write_text(f"{name}=8\n")
    assert settle(str(tmp_path / "lengths.txt"), spec) == [(1, {"ids": (1, 8)}, 1.0)]


@pytest.mark.parametrize("wrong", [["batch=1"], b"batch=1", {}, 8])
def test_what_is_no_mix_is_refused_in_words(wrong: Any) -> None:
    with pytest.raises(UsageError, match="--traffic"):
        read_traffic(wrong)
    assert settle_traffic(read_traffic({16: 1.0}), (IDS,))[0].shapes == {"ids": (1, 16)}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b"16\nx\n", "line 2"), (b"\xff\xfe\x00", "cannot be read as text")]
)
def test_a_file_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "lengths.txt").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_traffic(str(tmp_path / "lengths.txt"))


@pytest.mark.parametrize("kind", ["a folder", "no plain file"])
def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "lengths"
    if kind == "a folder":
        place.mkdir()
    elif hasattr(os, "mkfifo"):
        os.mkfifo(place)  # whose reader would wait for a writer
    else:
        pytest.skip("no named pipes here")
    with pytest.raises(UsageError, match=f"is {kind}; expected a text file with one length or shape a line"):
        read_traffic(str(place))


def test_a_file_without_line_ends_is_refused_by_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1" * (LONGEST_LINE + 1) + "\n16\n")
    with pytest.raises(UsageError, match=r"line 1, '1{100}': expected"):
        read_traffic(str(tmp_path / "log"))


def test_many_lengths_become_groups_of_equal_frequency_around_their_middle(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 381, 5000)
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(map(str, lengths)))
    cells = settle_traffic(read_traffic(str(path)), (IDS,))
    assert len(cells) == MOST_CELLS and sum(cell.weight for cell in cells) == pytest.approx(1)
    chosen = [cell.shapes["ids"][1] for cell in cells]
    assert chosen == sorted(chosen)
    *groups, longest = cells
    assert longest.shapes["ids"] == (1, 380), "a bundle has to run it"
    assert longest.weight == pytest.approx(float(np.mean(lengths == 380))), "as often as it comes"
    assert all(0.07 < cell.weight < 0.11 for cell in groups)
    # What they stand for: the quantiles of the lengths, and so their mean.
    expected = np.quantile(lengths, [(i + 0.5) / len(groups) for i in range(len(groups))])
    assert np.abs(np.array(chosen[:-1]) - expected).max() < 5
    mean = sum(cell.weight * cell.shapes["ids"][1] for cell in cells)
    assert mean == pytest.approx(float(lengths.mean()), rel=0.01)


@pytest.mark.parametrize(
    ("mix", "inputs", "warned"),
    [
        ("16,32", (IDS,), False),
        ("1x16,length=8", (IDS,), False),
        ("length=16,batch=2", (IDS,), True),
        ("height=9+width=9", (IMAGE,), False),
        ("height=9", (IMAGE,), True),
        ("", (IDS,), True),
    ],
)
def test_lengths_of_a_mix_are_not_reported_as_chosen(mix: str, inputs: Sequence[TensorSpec], warned: bool) -> None:
    chosen = make_warning("chosen_shapes", source="dynamic axes", shapes="ids 1x16", option="ids:1x16")
    graph = Artifact(
        kind="onnx", precision="fp32", model="m", path="m.onnx", inputs=inputs, outputs=(), sha256="", files=()
    )
    request = RunRequest(model="m.onnx", engines=(), traffic=read_traffic(mix or None))
    assert bool(sources._complete(replace(graph, warnings=(chosen,)), request, Path()).warnings) is warned


def test_a_heading_counts_the_shapes_of_a_large_mix() -> None:
    cells = settle_traffic(read_traffic("8:0.7,16:0.3"), (IDS,))
    assert format_mix(cells) == "1x8:0.7,1x16:0.3" and format_mix(()) == ""
    many = settle_traffic(read_traffic(",".join(str(n) for n in range(1, 8))), (IDS,))
    assert format_mix(many) == "mix of 7 shapes" == name_size(EngineSpec(backend="ort", traffic=many))


def test_of_many_shapes_the_longest_along_each_axis_stay_as_they_are(tmp_path: Path) -> None:
    shapes = [(n, m) for n in range(2, 9) for m in range(2, 9)] + [(1, 90), (70, 1)]
    path = tmp_path / "sizes.txt"
    path.write_text("\n".join(f"height={n}+width={m}" for n, m in shapes))
    parts = read_traffic(str(path))
    assert len(parts) == MOST_CELLS and sum(part.weight for part in parts) == pytest.approx(1)
    assert {"height": 1, "width": 90} in [part.axes for part in parts]
    assert {"height": 70, "width": 1} in [part.axes for part in parts]
    assert [p.weight for p in parts if max(p.axes.values()) > 8] == [pytest.approx(1 / len(shapes))] * 2


def test_a_length_that_most_requests_have_is_a_group_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("\n".join(["128"] * 900 + [str(n) for n in range(1, 101)]))
    cells = settle_traffic(read_traffic(str(path)), (IDS,))
    heaviest = max(cells, key=lambda cell: cell.weight)
    assert heaviest.shapes["ids"] == (1, 128) and heaviest.weight >= 0.9
    assert len(cells) >= 2


def test_a_file_of_too_many_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MOST_LINES", 3)
    (tmp_path / "lengths.txt").write_text("16\n" * 3)
    assert len(read_traffic(str(tmp_path / "lengths.txt"))) == 1
    (tmp_path / "lengths.txt").write_text("16\n" * 4)
    with pytest.raises(UsageError, match="more than 3 lines; give a sample of them"):
        read_traffic(str(tmp_path / "lengths.txt"))

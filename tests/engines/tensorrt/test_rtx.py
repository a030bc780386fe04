"""NVIDIA's own TensorRT for RTX: what is built with it here, without a GPU, and what it refuses."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import enginebench
from calls import read_document, succeed
from enginebench.engines.registry import probe
from enginebench.models.precision.macs import list_quantized_products
from enginebench.models.torch.export import export_onnx
from enginebench.models.torch.source import make_torch_artifact
from enginebench.models.zoo import DATA_DIR
from graphs import write_graph, write_text
from in_process import run_here
from processes import ROOT, Cli, environment
from refusal_graphs import CHANGED, make_broken, make_left_to_parser, make_sound
from rtx import Judge, needs_rtx

pytestmark = needs_rtx
THREE_GPUS = ("--compute-capability", "8.6,8.9,12.0")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "mein netz.onnx"
    path.write_bytes((DATA_DIR / "digits-cnn.onnx").read_bytes())
    return path


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Runs `enginebench ARGS` in this process; the builder, which crashes on some graphs, in one of its own."""
    return partial(run_here, tmp_path)


@pytest.fixture
def build(cli: Cli) -> Callable[..., Any]:
    """Builds and gives the JSON document; with `code` of another kind the whole process."""

    def run(path: Path, *options: object, code: int = 0) -> Any:
        done = cli("build", path, "--engine", "tensorrt-rtx", "--json", *options)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if code == 0 else done

    return run


def templates(document: Any) -> list[str]:
    return [warning["template"] for warning in document["caveats"]]


def test_a_plan_is_built_for_gpus_that_are_not_here_as_the_builder_says(build: Callable[..., Any], graph: Path) -> None:
    document = build(graph, *THREE_GPUS, "--out", "net.plan")
    plan = graph.with_name("net.plan")
    assert plan.read_bytes()[:4] == b"vtrt" and document["artifact"]["kind"] == "plan"
    assert document["tensorrt_version"] == probe("tensorrt-rtx").version
    assert document["effective_precision"] is None, "nothing ran"
    ahead = document["artifact"]["ahead_of_time"]
    assert ahead["products"] == {"fp32": 3}, "its two linear layers are generated code"
    assert templates(document) == ["unverified_engine.rtx", "unproved_precision"]
    build(graph, "--precision", "fp16", "--compute-capability", "7.5", "--out", "net.plan")
    done = build(graph, "--compute-capability", "7.5", "--out", "other.plan", code=5)
    assert "FP32 GEMM is not supported" in done.stderr and "catchCudaError" not in done.stderr
    assert not graph.with_name("other.plan").exists() and not list(graph.parent.rglob("*.part"))


@pytest.mark.parametrize("precision", ["tf32", "fp8"])  # all of them: test_a_model_in_every_precision
def test_a_precision_is_reported_with_the_products_that_have_it(build, graph, precision, cli) -> None:
    targets = "8.9,12.0"
    calib = []
    if precision == "fp8":
        succeed(cli, "calibrate", graph, "--data", "fake", "--n", 16, "--out", "calib.json")
        calib = ["--calib", "calib.json"]
    document = build(graph, "--precision", precision, *calib, "--compute-capability", targets, "--out", "net.plan")
    products = document["artifact"]["ahead_of_time"]["products"]
    assert list(products) == ["fp32" if precision == "tf32" else precision]
    (told,) = [c["message"] for c in document["caveats"] if c["template"] == "unproved_precision"]
    count = products[next(iter(products))]
    name = "fp32 or tf32" if precision == "tf32" else precision
    decided = f"decided ahead of time: {count} of {count} products in {name}"
    assert told.startswith(f"requested {precision}, not verified: {decided}")


def test_targets_and_settings_are_part_of_the_plans_key(graph: Path, tmp_path: Path) -> None:
    shapes = {"min_shapes": "input:1x1x8x8", "opt_shapes": "input:4x1x8x8", "max_shapes": "input:8x1x8x8"}
    asked = (
        {},
        {"compute_capability": "8.9,8.6"},
        {"compute_capability": "8.6,8.9"},  # the same
        shapes,
        {**shapes, "profiles": "input:16x1x8x8/16x1x8x8/32x1x8x8"},
        {"version_compatible": "1"},
        {"workspace_mb": "64"},
        {"weight_streaming": "1", "graph": "0"},
        {"graph": "rtx"},
    )
    with closing(Judge(tmp_path)) as judge:
        found = [judge.build(graph, **{"compute_capability": "8.9", **options}) for options in asked]
    assert all("products" in one for one in found), found
    copy = tmp_path / "again" / "copy.onnx"  # another process, folder and file name: the same bytes
    copy.parent.mkdir()
    copy.write_bytes(graph.read_bytes())
    with closing(Judge(copy.parent)) as judge:
        assert judge.build(copy, compute_capability="8.9")["sha256"] == found[0]["sha256"]
    plans = list(tmp_path.glob("plans/*.plan"))
    assert len(plans) == len({path.read_bytes() for path in plans}) == 8, "each of them is another plan"
    assert not list(tmp_path.rglob("*.part"))


def test_the_layers_are_read_like_those_of_trtexec_and_a_plan_that_is_there_is_not_built_again(build, graph, cli):
    document = build(graph, *THREE_GPUS, "--out", "net.plan")
    (layers,) = graph.parent.glob("net.plan.build/plans/*.layers.json")
    parsed = read_document(cli, "parse", "layers", layers, "--json")
    assert [layer["name"] for layer in parsed["layers"]] == [
        layer["name"] for layer in document["artifact"]["ahead_of_time"]["layers"]
    ]
    nodes = {name for layer in parsed["layers"] for name in layer["onnx_nodes"]}
    named = {node.name for node in onnx.load(graph).graph.node if node.op_type in ("Conv", "Gemm")}
    assert named <= nodes, "every product of the graph is some layer's"
    assert {tensor["name"] for tensor in parsed["io"]} == {"input", "output"}
    made = {p: p.stat().st_mtime_ns for p in layers.parent.iterdir()}
    assert build(graph, *THREE_GPUS, "--out", "net.plan")["artifact"] == document["artifact"]
    assert {p: p.stat().st_mtime_ns for p in layers.parent.iterdir()} == made


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--optimization-level", 3], "takes no optimization_level: its builder takes any level"),
        (["--hardware-compatibility", "ampere+"], "takes no hardware_compatibility: .*--compute-capability"),
        (["--timing-cache", "t.cache"], "takes no timing_cache: its builder times nothing"),
        (["--refit"], "takes no refit: .* needs a GPU"),
        (["--strip"], "takes no strip: .* needs a GPU"),
        (["--weak-typing"], "takes no weak_typing: .* strongly typed"),
        (["--trtexec", "t"], "the engine trtexec, which this command does not use"),
        (["--engine", "tensorrt-rtx:weight_streaming=1"], "add graph=0 or graph=rtx"),
    ],
)
def test_what_does_nothing_there_is_refused_by_name(build, graph, options, words) -> None:
    done = build(graph, *options, "--out", "net.plan", code=2)
    assert re.search(words, " ".join(done.stderr.split())), done.stderr
    assert not graph.with_name("net.plan").exists()


ENDS = "g (float[1, 3, 8, 8] x) => (float[n, c, h, w] y)"


UNREADABLE = {
    "cut": "Failed to parse the ONNX model",
    "empty": "finds no output in .*: it is empty, or no ONNX model",
    "unknown": r"node 0 \(Unheard 'n'\): .*Plugin not found",
    "external": "Failed to open file",
}


def test_a_graph_that_cannot_be_read_says_what_is_wrong_with_it(tmp_path: Path, graph: Path) -> None:
    """The library's refusal, met as the engine meets it, past what looks at the file before."""
    paths = {name: tmp_path / f"{name}.onnx" for name in UNREADABLE}
    paths["cut"].write_bytes(graph.read_bytes()[:-2000])
    paths["empty"].write_bytes(b"")
    write_text(paths["unknown"], f"{ENDS} {{ [n] y = my.own.Unheard (x) }}")
    beside = {"save_as_external_data": True, "location": "away.data", "size_threshold": 0}
    onnx.save(onnx.load(graph), paths["external"], **beside)
    (tmp_path / "away.data").unlink()
    code = (
        "import sys; from pathlib import Path\n"
        "from enginebench.engines.backends.tensorrt.rtx import LIBRARY\n"
        "from enginebench.engines.backends.tensorrt.builder import build_plan\n"
        "from enginebench.engines.backends.tensorrt.settings import BuildSettings\n"
        "from enginebench.core.errors import ArtifactError\n"
        "for path in sys.argv[2:]:\n"
        "    try:\n"
        "        build_plan(LIBRARY, Path(path), BuildSettings(targets=('8.9',)), Path(sys.argv[1]))\n"
        "    except ArtifactError as error:\n"
        "        print(' '.join(str(error).split()))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "never.plan"), *map(str, paths.values())]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "never.plan").exists()
    for words, told in zip(UNREADABLE.values(), done.stdout.splitlines(), strict=True):
        assert re.search(words, told), told
        assert "node -1" not in told and "catchCudaError" not in told


def quantized_convolution(path: Path, shape: tuple[int, ...]) -> Path:
    """A convolution with Q/DQ nodes on both sides; the activation's scale has this shape."""
    w = np.random.default_rng(0).integers(-100, 100, (8, 3, 3, 3)).astype(np.int8)
    weights = {"s": np.full(shape, 0.02, np.float32), "z": np.zeros(shape, np.int8), "w": w}
    weights |= {"ws": np.full(8, 0.01, np.float32), "wz": np.zeros(8, np.int8)}
    text = f"""{ENDS} {{
        [q] q = QuantizeLinear (x, s, z)
        [d] d = DequantizeLinear (q, s, z)
        [wd] wd = DequantizeLinear <axis = 0> (w, ws, wz)
        [conv] y = Conv (d, wd)
    }}"""
    return write_text(path, text, weights)


def test_an_integer_kernel_that_is_given_up_is_reported(tmp_path: Path) -> None:
    """With a scale of shape [1] in place of [] the builder convolves in floats, and says nothing."""
    good, bad = (quantized_convolution(tmp_path / f"{shape}.onnx", shape) for shape in ((), (1,)))
    enginebench.quantize(bad, "int8@tensorrt", tmp_path / "mended.onnx")
    with closing(Judge(tmp_path)) as judge:
        found = [judge.build(path, "int8", compute_capability="8.9") for path in (good, bad, tmp_path / "mended.onnx")]
    assert [one["products"] for one in found] == [{"int8": 1}, {"fp32": 1}, {"int8": 1}]
    told = "1 of 1 products with Q/DQ nodes on both sides are planned in floats: conv"
    assert [one["warnings"] for one in found] == [[], [told], []]


def test_a_program_has_its_plan_built_in_another_process(graph: Path, tmp_path: Path) -> None:
    """The builder crashes on some graphs: a program that loads an engine must outlive it."""
    code = (
        "import sys, enginebench\n"
        "from enginebench.core.errors import BackendUnavailable\n"
        "try:\n"
        "    with enginebench.load_engine(sys.argv[1], 'tensorrt-rtx', options={'compute_capability': '8.9'}): pass\n"
        "except BackendUnavailable as error:\n"
        "    print(error)\n"
        "from enginebench.engines.backends.tensorrt.rtx import LIBRARY\n"
        "assert LIBRARY.log.layers == '', 'it was built here'\n"
    )
    command = [sys.executable, "-c", code, str(graph)]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert probe("tensorrt-rtx").available or "cannot run here" in done.stdout


def test_a_run_skips_the_configuration_with_the_reason(cli: Cli, graph: Path) -> None:
    if probe("tensorrt-rtx").available:
        pytest.skip("there is a GPU here that runs plans of TensorRT for RTX")
    done = cli("run", graph, "--engines", "ort,ort:opt=basic,tensorrt-rtx", "--quick", "--json", "--out", "r")
    rows = {row["engine"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["tensorrt-rtx"]["status"] == "skipped" and "cannot run here" in rows["tensorrt-rtx"]["reason"]


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    """Interrupted in the middle of a build: exit code 130, no plan, no folder, no process."""
    path = write_deep_graph(tmp_path / "deep.onnx")
    command = [sys.executable, "-m", "enginebench", "build", str(path), "--engine", "tensorrt-rtx", *THREE_GPUS]
    before = set(tmp_path.iterdir())
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "building: " in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130, rest
    assert {p.name for p in set(tmp_path.iterdir()) - before if not p.name.startswith((".", "enginebench"))} == set()


def write_deep_graph(path: Path) -> Path:
    """Many convolutions, so that the builder takes seconds."""
    rng, widths = np.random.default_rng(0), [3, *range(33, 113)]
    names = ["x", *(f"t{i}" for i in range(79)), "y"]
    weights = {f"w{i}": rng.standard_normal((widths[i + 1], widths[i], 3, 3)).astype(np.float32) for i in range(80)}
    nodes = [f"{names[i + 1]} = Conv <pads = [1, 1, 1, 1]> ({names[i]}, w{i})" for i in range(80)]
    write_graph(path, f"{ENDS} {{ {' '.join(nodes)} }}", weights)
    return path


def test_the_names_of_the_stand_in_are_those_of_the_library() -> None:
    code = (
        "import json, sys, tensorrt_rtx_bindings as trt\n"
        "wanted = json.load(open(sys.argv[1]))['rtx-1.7']\n"
        "members = lambda thing: sorted(n for n in vars(thing) if not n.startswith('_'))\n"
        "assert wanted['version'] == trt.__version__\n"
        "for name, known in wanted['classes'].items(): assert members(getattr(trt, name)) == known, name\n"
        "for name, known in wanted['enums'].items(): assert sorted(getattr(trt, name).__members__) == known, name\n"
        "assert all(hasattr(trt, name) for name in wanted['functions'])\n"
        "d = trt.EngineInvalidityDiagnostics\n"
        "assert [int(d.VERSION_MISMATCH), int(d.UNSUPPORTED_CC), int(d.MALFORMED_ENGINE)] == [1, 2, 32]\n"
    )
    names = ROOT / "tests" / "fakes" / "modules" / "tensorrt" / "names.json"
    own = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code, str(names)], capture_output=True, text=True, env=own)
    assert done.returncode == 0, done.stderr


# Every graph that we write for TensorRT, read and built by NVIDIA's own parser and builder (TensorRT for RTX).
#
# A refusal, a crash, or a product that the graph gives in 8 bits and the plan computes in floats is a fault of ours, or
# one of the exceptions below.

TARGETS = "8.6+8.9+12.0"
FP8_TARGETS = "8.9+12.0"


# Model, image size, and where the builder plans fewer products in 8 bits than the graph has, how many are left out: it
# plans no convolution of 7x7 or 16x16 in FP8, and one of 1x1 as generated code in floats.
MODELS: list[tuple[str, int | None, dict[str, int]]] = [
    ("digits-cnn", None, {}),
    ("resnet18", 64, {"fp8": 1}),
    ("mobilenet_v3_small", 64, {}),
    ("short_models:make_short_efficientnet", None, {"int8": 1}),
    ("short_models:make_short_vit", None, {"fp8": 1}),
    ("short_models:make_short_convnext", None, {"fp8": 8}),
]


# A graph in 8 bits has every operator of its floats; casts are seen on these, and TF32, which is FP32 built otherwise.
FLOATS = ("tf32", "fp32", "fp16", "bf16")
IN_FLOATS = ("digits-cnn", "short_models:make_short_vit")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with closing(Judge(tmp_path_factory.mktemp("plans"))) as made:
        yield made


def export(name: str, size: int | None, folder: Path) -> Path:
    """The FP32 graph with an open batch; the digits have theirs in the package."""
    if name == "digits-cnn":
        return DATA_DIR / f"{name}.onnx"
    out = folder / "fp32.onnx"
    export_onnx(make_torch_artifact(name, folder, weights="random", input_size=size), out, dynamic_batch=True)
    return out


@pytest.mark.long
@pytest.mark.parametrize(("name", "size", "in_floats"), MODELS, ids=[name for name, _, _ in MODELS])
def test_a_model_in_every_precision(judge, tmp_path, name, size, in_floats) -> None:
    fp32 = export(name, size, tmp_path)
    enginebench.calibrate(str(fp32), "fake", tmp_path / "calib.json", n=4)
    for precision in (*(FLOATS if name in IN_FLOATS else ()), "int8@tensorrt", "fp8"):
        graph = fp32
        if precision not in ("fp32", "tf32"):
            calib = tmp_path / "calib.json" if precision in ("int8@tensorrt", "fp8") else None
            graph = tmp_path / f"{precision}.onnx"
            enginebench.quantize(fp32, precision, graph, calib=calib)
        short = precision.split("@")[0]
        found = judge.build(graph, short, compute_capability=FP8_TARGETS if short == "fp8" else TARGETS)
        assert "products" in found, (precision, found)
        check_products(found, graph, short, in_floats.get(short, 0))


def check_products(found: dict[str, Any], graph: Path, precision: str, in_floats: int) -> None:
    """The products are planned in the precision of the graph, those in 8 bits one by one."""
    products = found["products"]
    if precision in ("int8", "fp8"):
        wanted = list_quantized_products(onnx.load(graph))
        planned = {node for _, ran, nodes in found["layers"] if ran == precision for node in nodes}
        assert len([node for node in wanted if node not in planned]) == in_floats, found["warnings"]
        assert bool(found["warnings"]) == bool(in_floats)
        assert max(products, key=lambda key: products[key]) == precision
    elif products:  # a batch of one makes generated code of small products
        assert list(products) == ["fp32" if precision == "tf32" else precision], products


@pytest.mark.parametrize("opset", [13, 19, 21, 23, 26])
def test_every_opset(judge: Judge, tmp_path: Path, opset: int) -> None:
    """From the first that the recipes write to the newest that onnx knows, by way of those that changed Q/DQ nodes."""
    source = onnx.load(DATA_DIR / "digits-cnn.onnx")
    given = tmp_path / "given.onnx"
    onnx.save(convert(source, opset), given)
    assert "products" in judge.build(given, compute_capability=TARGETS)
    enginebench.calibrate(str(given), "fake", tmp_path / "calib.json", n=4)
    for precision in ("int8@tensorrt", "fp8"):
        made = tmp_path / f"{precision}.onnx"
        enginebench.quantize(given, precision, made, calib=tmp_path / "calib.json")
        short = precision.split("@")[0]
        found = judge.build(made, short, compute_capability=FP8_TARGETS)
        assert found.get("products") == {short: 5}, found


def convert(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The digits' CNN at another opset: but for one attribute its operators are alike from 13 to 26."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node in made.graph.node if opset < 14 else ():
        for attribute in [a for a in node.attribute if a.name == "allowzero"]:
            node.attribute.remove(attribute)
    del made.opset_import[:]
    made.opset_import.append(onnx.helper.make_opsetid("", opset))
    made.ir_version = max(8, onnx.helper.find_min_ir_version_for(made.opset_import))
    onnx.checker.check_model(made, full_check=True)
    return made


def test_dynamic_shapes(judge: Judge, tmp_path: Path) -> None:
    """An open batch and open images, in one profile and in two."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.Conv2d(16, 32, 3)
            self.head = torch.nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))  # type: ignore[no-any-return]

    path = tmp_path / "net.onnx"
    enginebench.export(Net().eval(), path, example_inputs=torch.zeros(1, 3, 32, 32), dynamic_batch=True)
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        for place, axis in enumerate(value.type.tensor_type.shape.dim):
            if place in (0, 2, 3):
                axis.dim_param = ("batch", "", "height", "width")[place]
    del model.graph.value_info[:]
    onnx.save(model, path)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((4, 3, 32, 32), dtype=np.float32))
    enginebench.calibrate(str(path), tmp_path / "x.npy", tmp_path / "calib.json", n=4)
    enginebench.quantize(path, "int8@tensorrt", tmp_path / "q.onnx", calib=tmp_path / "calib.json")
    (name,) = [value.name for value in model.graph.input]
    shapes = {"min_shapes": f"{name}:1x3x16x16", "opt_shapes": f"{name}:4x3x32x32", "max_shapes": f"{name}:8x3x64x64"}
    for more in ({}, {"profiles": f"{name}:16x3x32x32/16x3x32x32/32x3x32x32"}):
        found = judge.build(tmp_path / "q.onnx", "int8", compute_capability=TARGETS, **shapes, **more)
        assert found.get("products", {}).get("int8", 0) >= 2 and not found["warnings"], found


# Our rules for quantized graphs against NVIDIA's own parser and builder: TensorRT for RTX judges, without a GPU.

BROKEN, LEFT = make_broken(), make_left_to_parser()
GRAPHS = {
    kind: {name: model for name, (model, _) in made.items()} for kind, made in (("broken", BROKEN), ("left", LEFT))
}
GRAPHS["sound"] = make_sound()
# A scale that is no constant ends the builder with a segmentation fault.
CRASHING = ("scale is an input", "scale is computed")


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """{kind: {graph: what RTX says}}, by the script that asks any of NVIDIA's parsers."""
    folder = tmp_path_factory.mktemp("graphs")
    for kind, graphs in GRAPHS.items():
        (folder / kind).mkdir()
        for name, model in graphs.items():
            (folder / kind / f"{name}.onnx").write_bytes(model.SerializeToString())
    command = [ROOT / "benchmarks" / "parser_verdicts.py", folder, folder / "out.json", "--build"]
    command += ["--module", "tensorrt_rtx_bindings", "--jobs", "1"]
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads((folder / "out.json").read_bytes())["graphs"]
    return {kind: {name: said[f"{kind}/{name}.onnx"] for name in graphs} for kind, graphs in GRAPHS.items()}


def test_rules_are_broken_by_all_that_is_refused_or_given_another_meaning(verdicts: dict[str, dict[str, Any]]) -> None:
    assert {name: said for name, said in verdicts["sound"].items() if said["verdict"] != "taken"} == {}
    # The list of what may differ is no longer than it must be.
    assert {name for name, said in verdicts["broken"].items() if said["verdict"] == "taken"} == set(CHANGED)
    assert tuple(name for name, said in verdicts["broken"].items() if said["verdict"] == "crashed") == CRASHING


def test_the_parser_names_the_node_of_what_is_left_to_it(verdicts: dict[str, dict[str, Any]]) -> None:
    for name, said in verdicts["left"].items():
        assert (said["verdict"], said["by"]) == ("refused", "parser"), (name, said)
        assert LEFT[name][1] in [error["node_name"] for error in said["errors"]], (name, said)

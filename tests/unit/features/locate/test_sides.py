"""A side on ONNX Runtime: the fault, its optimizer, the reproduction that stands alone, the way around."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest

from enginebench.core.records import Artifact, EngineSpec
from enginebench.features.locate.describing import LONGER
from enginebench.features.locate.graph_program import GraphProgram
from enginebench.features.locate.jobs import SideJob
from enginebench.features.locate.judging import Deviation
from enginebench.features.locate.openvino_passes import list_changing
from enginebench.features.locate.repro import explain_deviation, find_free_folder, rename
from enginebench.models.onnx.source import read_onnx
from enginebench.report.located import FoundFault, LocatedSide
from enginebench.runs.child.arrays import save_arrays
from graphs import UNKEPT_NORM, run_graph, write_graph

HOSTILE = ["a'b\"c", "line\nbreak", "tick`s```", "<b>&amp;</b>|", "ünï/çödé", "{x} % \\ $(id)"]


def search(
    artifact: Artifact, folder: Path, repro: Path | None = None, *, backend: str = "ort", **options: str
) -> LocatedSide:
    rng = np.random.default_rng(0)
    calls = folder / "call.npz"
    save_arrays(calls, {s.name: rng.standard_normal(s.shape, np.float32).astype(s.dtype) for s in artifact.inputs})
    engine = EngineSpec(backend=backend, options=options, precision=artifact.precision, recipe=artifact.recipe)
    job = SideJob(
        text="ort@m.onnx",
        artifact=artifact,
        engine=engine,
        calls=(str(calls),),
        out_dir=str(folder / "scratch"),
        slice_mb=2000,
        repro_dir=str(repro) if repro else None,
    )
    return job.perform(lambda text: None, lambda answer: None)


def find(artifact: Artifact, folder: Path, repro: Path | None = None) -> FoundFault:
    side = search(artifact, folder, repro)
    assert side.state == "leaves" and side.fault is not None
    return side.fault


def test_a_wrong_fusion_is_named_and_reproduced_without_us(tmp_path: Path) -> None:
    repro = tmp_path / "repro"
    fault = find(write_graph(tmp_path / "m.onnx", UNKEPT_NORM, opset=13), tmp_path, repro)
    assert set(fault.optimizations) == {"LayerNormFusion", "SimplifiedLayerNormFusion"}
    assert fault.hidden_by and len(fault.nodes) > 1
    assert fault.reproduction is not None and fault.reproduction.nodes <= 6 and fault.reproduction.shown
    assert fault.ways[0].engine == "ort:disable=LayerNormFusion+SimplifiedLayerNormFusion"
    assert {way.engine for way in fault.ways} >= {"ort:opt=basic"}
    assert all(way.slowdown is not None for way in fault.ways)
    # A graph of which one tensor more is an output: it is right in the same engine.
    apart = fault.ways[-1]
    assert (apart.engine, apart.change) == ("ort", "squares is an output")
    inputs = {"x": np.random.default_rng(5).standard_normal((8, 8), np.float32)}
    np.testing.assert_allclose(
        run_graph(Path(apart.graph), inputs), run_graph(tmp_path / "m.onnx", inputs, optimize=False), rtol=1e-4
    )
    assert len((repro / "repro.py").read_text().splitlines()) <= 40
    assert "enginebench" not in (repro / "repro.py").read_text().lower()
    # It ends with 0 where the fault is gone.
    settings = json.loads((repro / "settings.json").read_text())
    (repro / "settings.json").write_text(json.dumps({**settings, "opt": "none"}))
    done = subprocess.run([sys.executable, "-I", "repro.py"], cwd=repro, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "largest difference 0;" in done.stdout


@pytest.mark.parametrize("kind", [onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT16])
def test_types_that_arrays_do_not_have_neither_end_the_search_nor_look_wrong(tmp_path: Path, kind: int) -> None:
    """The scale comes through a cast to them, which is right; the fault is the fusion, as without it."""
    text = UNKEPT_NORM.replace("<axes = [-1], keepdims = 0> (x)", "<keepdims = 0> (x, last)")
    text = text.replace("<axes = [-1], keepdims = 0> (squares)", "<keepdims = 0> (squares, last)")
    text = text.replace("<float two", "<int64[1] last = {-1}, float two")
    graph = write_graph(tmp_path / "m.onnx", text, opset=19)
    model = onnx.load(graph.path)
    there = onnx.helper.make_node("Cast", ["g"], ["g_short"], to=kind)
    back = onnx.helper.make_node("Cast", ["g_short"], ["g_again"], to=onnx.TensorProto.FLOAT)
    (scale,) = (node for node in model.graph.node if "g" in node.input)
    scale.input[list(scale.input).index("g")] = "g_again"
    before = [*model.graph.node].index(scale)
    nodes = [there, *model.graph.node[:before], back, *model.graph.node[before:]]  # a cut between has the short one
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    # An input, so that it is not computed beforehand.
    model.graph.input.append(onnx.helper.make_tensor_value_info("g", onnx.TensorProto.FLOAT, [8]))
    del model.graph.initializer[[tensor.name for tensor in model.graph.initializer].index("g")]
    onnx.save(model, graph.path)
    fault = find(read_onnx(Path(graph.path)), tmp_path)
    assert fault.kind in ("Div", "Mul") and not fault.node.startswith("Cast")


def write_beyond_fp16(path: Path) -> Artifact:
    """A graph in FP16 whose second tensor overflows, and whose third would be small again."""
    text = "(float16[2, 8] x) => (float16[2, 8] y) { a = Mul (x, k) b = Mul (a, k) c = Mul (b, s) y = Add (c, a) }"
    return write_graph(path, text, {"k": np.float16(1000), "s": np.float16(0.001)})


def test_an_engine_in_fp16_is_held_to_a_reference_that_is_rounded_behind_each_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime on a CPU keeps FP32 between nodes; an engine that computes in FP16 is neither wrong nor random."""
    graph = write_beyond_fp16(tmp_path / "m.onnx")

    def compute(program: GraphProgram, model: onnx.ModelProto, values: Any, *others: object) -> Any:
        evaluator = onnx.reference.ReferenceEvaluator(model)
        with np.errstate(all="ignore"):
            outputs = evaluator.run(None, program.pick_fed(model, values))
        return dict(zip(evaluator.output_names, outputs, strict=True))

    with monkeypatch.context() as patch:
        patch.setattr(GraphProgram, "run", compute)
        side = search(graph, tmp_path)
    assert (side.state, side.why) == ("keeps", "") and "b" in side.overflowed
    # What keeps FP32 does not give what the graph says; it is found where the overflow is gone, and not called random.
    fault = find(graph, tmp_path)
    assert (fault.tensor, fault.tamed, len(fault.nodes)) == ("c", 14, 2)


def test_a_graph_that_is_right_has_no_fault(tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "m.onnx", UNKEPT_NORM.replace("keepdims = 0", "keepdims = 1"), opset=13)
    assert search(graph, tmp_path).state == "keeps"
    assert search(write_graph(tmp_path / "w.onnx", UNKEPT_NORM, opset=13), tmp_path, opt="none").state == "keeps"


def test_names_of_the_graph_are_data(tmp_path: Path) -> None:
    """They are neither text of the program nor markup of the report."""
    model = onnx.load(write_graph(tmp_path / "m.onnx", UNKEPT_NORM, opset=13).path)
    names = {old: f"{HOSTILE[i % len(HOSTILE)]}{i}" for i, old in enumerate(("x", "mean", "centred", "squares", "g"))}
    names["y"] = f"{HOSTILE[0]}y"
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = names.get(value.name, value.name)
    for i, node in enumerate(model.graph.node):
        node.name, node.doc_string = f"{HOSTILE[i % len(HOSTILE)]} {i}", "secret"
        for listed in (node.input, node.output):
            listed[:] = [names.get(name, name) for name in listed]
    path = tmp_path / "hostile.onnx"
    onnx.save(model, path)
    repro = tmp_path / "repro"
    fault = find(read_onnx(path), tmp_path, repro)
    assert fault.reproduction is not None and fault.reproduction.shown
    kept = onnx.load(repro / "model.onnx")
    texts = [kept.graph.name, *(n.name for n in kept.graph.node), *(t for n in kept.graph.node for t in n.output)]
    assert all(text.isalnum() for text in texts) and b"secret" not in kept.SerializeToString()
    report = (repro / "report.md").read_text("utf-8")
    assert "<b>" not in report and "```s" not in report.replace("```sh", "")


def test_bodies_of_nodes_are_renamed_with_what_they_read(tmp_path: Path) -> None:
    text = """
    g (bool c, float[2] x) => (float[2] y) {
        twice = Add (x, x)
        y = If (c) <then_branch = a () => (float[2] p) { p = Neg (twice) },
                    else_branch = b () => (float[2] q) { q = Abs (twice) }>
    }
    """
    model = onnx.load(write_graph(tmp_path / "m.onnx", text).path)
    renamed, names = rename(model)
    onnx.checker.check_model(renamed)
    body = renamed.graph.node[1].attribute[0].g
    assert body.node[0].input[0] == names["twice"] == renamed.graph.node[0].output[0]


@pytest.mark.parametrize("slice_bytes", [1, 100, 10_000])
def test_slices_hold_what_fits_and_every_step_once(tmp_path: Path, slice_bytes: int) -> None:
    graph = write_graph(tmp_path / "m.onnx", UNKEPT_NORM, opset=13)
    program = GraphProgram(graph, EngineSpec(backend="ort"), tmp_path / "scratch", lambda text: None)
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 8), np.float32)}
    program.record(feeds, slice_bytes)
    slices = program.slice_steps(range(9))
    assert [i for places in slices for i in places] == list(range(9))
    assert (len(slices) == 9) == (slice_bytes == 1) and (len(slices) == 1) == (slice_bytes == 10_000)
    whole = program.expect(range(9), ["y"], feeds)["y"]
    np.testing.assert_array_equal(program.values["y"], whole)


def test_a_reproduction_takes_no_folder_that_has_other_files(tmp_path: Path) -> None:
    assert find_free_folder(tmp_path, 0) == tmp_path / "repro"
    (tmp_path / "repro").mkdir()
    (tmp_path / "repro" / "report.md").write_text("of an earlier search")
    assert find_free_folder(tmp_path, 0) == tmp_path / "repro"
    (tmp_path / "repro" / "precious.txt").write_text("mine")
    (tmp_path / "repro-2").write_text("a file")
    assert find_free_folder(tmp_path, 0) == tmp_path / "repro-3"


def test_a_difference_without_a_size_is_told_by_what_it_is() -> None:
    assert explain_deviation(Deviation(leaves=True, nonfinite=3)) == "3 values are not finite"
    assert explain_deviation(Deviation(leaves=True, shape="[2] in place of [3]")) == "the shape is [2] in place of [3]"
    assert explain_deviation(Deviation(leaves=True, largest=0.5)) == "the largest difference is 0.5"


@pytest.mark.parametrize(
    ("nodes", "drawing"),
    [
        ("n = RandomNormalLike (x) y = Add (x, n)", "n"),
        ("n = Relu (x) s, m = Dropout (n, half, on) y = Neg (s)", "s"),
        ("p = Sigmoid (x) d = Bernoulli (p) y = Neg (d)", "d"),
        ("y = If (on) <then_branch = b () => (float[64] r) { r = RandomUniformLike (x) }, else_branch = c () => "
         "(float[64] q) { q = Neg (x) }>", "y"),
    ],
)  # fmt: skip
def test_what_a_graph_draws_is_no_fault_and_is_named(tmp_path: Path, nodes: str, drawing: str) -> None:
    constants = {"half": np.float32(0.5), "on": np.array(True)}
    path = tmp_path / "m.onnx"
    graph = write_graph(path, f"g (float[64] x) => (float[64] y) {{ {nodes} }}", constants)
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, path)
    side = search(graph, tmp_path)
    assert side.drawn == (drawing,)
    # What is drawn at the end leaves nothing to compare.
    assert side.state == ("unknown" if drawing == "y" else "keeps") and side.fault is None


def test_outputs_that_are_no_arrays_are_said_to_be_left_out(tmp_path: Path) -> None:
    text = "g (float[8] x) => (float[8] y, seq(float[4]) z) { z = SplitToSequence <axis = 0> (x, four) y = Neg (x) }"
    side = search(write_graph(tmp_path / "m.onnx", text, {"four": np.array(4)}), tmp_path)
    assert (side.state, side.uncompared) == ("keeps", ("z",))


@pytest.mark.parametrize("kind", ["If", "Loop", "Scan"])
def test_a_fault_inside_of_a_node_is_found_there(tmp_path: Path, kind: str) -> None:
    """The condition is computed; the body reads a tensor of the graph around it as well."""
    body = UNKEPT_NORM[UNKEPT_NORM.index("{\n") + 1 : UNKEPT_NORM.rindex("}")].replace("y = Add", "o = Add")
    body = body.replace("(x", "(v")
    graphs = {
        "If": f"If (c) <then_branch = a () => (float[8, 8] o) {{ v = Mul (r, two) {body} }}, "
        "else_branch = b () => (float[8, 8] q) { q = Neg (r) }>",
        "Loop": f"Loop (n, c, r) <body = a (int64 i, bool d, float[8, 8] p) => (bool e, float[8, 8] o) "
        f"{{ e = Identity (d) v = Mul (p, x) {body} }}>",
        "Scan": "Scan <num_scan_inputs = 1, body = a (float[8, 8] p, float[8] q) => (float[8, 8] o) "
        f"{{ v = Mul (p, q) {body} }}> (r, x)",
    }
    head = UNKEPT_NORM[UNKEPT_NORM.index("<float") : UNKEPT_NORM.index("{\n")]
    text = (
        f"g (float[8, 8] x) => (float[8, 8] y) {head} {{ r = Sin (x) s = ReduceMax <keepdims = 0> (r) "
        f"c = Greater (s, low) t = {graphs[kind]} y = Neg (t) }}"
    )
    side = search(write_graph(tmp_path / "m.onnx", text, {"n": np.array(3), "low": np.float32(-2)}, opset=13), tmp_path)
    assert side.fault is not None and side.state == "leaves"
    # The constants around it are constants in it, too: as inputs they would be part of another, longer fusion.
    assert side.fault.kind == "Mul" and len(side.fault.nodes) == 6
    assert [place.split(" ")[0] for place in side.fault.within] == ["then_branch" if kind == "If" else "body"]
    assert "LayerNormFusion" in side.fault.optimizations


NAN_RELU = "g (float[8, 8] x) => (float[8, 8] y) { t = Tanh (x) l = Log (t) r = Relu (l) y = Neg (r) }"


def test_values_that_should_not_be_finite_are_reproduced_and_followed_to_where_they_begin(tmp_path: Path) -> None:
    """OpenVINO's Relu makes 0 of NaN."""
    pytest.importorskip("openvino")
    repro = tmp_path / "repro"
    side = search(write_graph(tmp_path / "m.onnx", NAN_RELU), tmp_path, repro, backend="openvino")
    assert side.fault is not None and (side.fault.node, side.fault.kind) == ("Relu_1", "Relu") and side.fault.tamed
    assert side.fault.overflowed.startswith("Values that are not finite begin at Log_1 (Log): it makes NaN")
    assert LONGER not in side.fault.overflowed  # nothing is in FP16 here
    assert side.fault.reproduction is not None and side.fault.reproduction.shown
    assert np.isnan(np.load(repro / "expected.npz")["y0"]).any()
    model = onnx.load(repro / "model.onnx")
    model.graph.node[0].op_type = "Neg"  # which keeps NaN: equal on both sides, and no fault
    onnx.save(model, repro / "model.onnx")
    save_arrays(repro / "expected.npz", {"y0": -np.load(repro / "inputs.npz")["x0"]})
    assert subprocess.run([sys.executable, "repro.py"], cwd=repro, capture_output=True, check=False).returncode == 0


def test_in_fp16_an_engine_may_mean_what_is_finite(tmp_path: Path) -> None:
    """ONNX Runtime keeps FP32 between nodes on a CPU: 250 * 400 does not overflow there, in the graph it does."""
    text = (
        "g (float16[4] x) => (float16[4] y) { e = Mul (x, zero) a = Add (e, big) b = Mul (a, far) y = Mul (b, near) }"
    )
    constants = {"zero": np.float16(0), "big": np.float16(250), "far": np.float16(400), "near": np.float16(0.01)}
    side = search(write_graph(tmp_path / "m.onnx", text, constants), tmp_path, tmp_path / "repro")
    assert side.fault is not None and side.fault.tamed == 4
    assert side.fault.overflowed.startswith("Values that are not finite begin at Mul_2 (Mul): it makes infinity")
    assert side.fault.overflowed.endswith(LONGER) and side.fault.reproduction is None


def test_an_engine_that_refuses_the_file_itself_is_no_way_around(tmp_path: Path) -> None:
    """ONNX Runtime takes no graph in which two nodes have one name; what is cut out of it has other names."""
    pytest.importorskip("openvino")
    artifact = write_graph(tmp_path / "m.onnx", UNKEPT_NORM, opset=13)
    kept = search(artifact, tmp_path, backend="openvino")
    assert kept.fault is not None and [way.engine for way in kept.fault.ways] == ["ort:opt=basic"]
    model = onnx.load(artifact.path)
    for node in model.graph.node:
        node.name = "same"
    onnx.save(model, artifact.path)
    refused = search(artifact, tmp_path, backend="openvino")
    assert refused.fault is not None and refused.fault.ways == ()


def test_a_way_around_has_a_time_where_an_input_is_read_by_nothing(tmp_path: Path) -> None:
    text = UNKEPT_NORM.replace("float[8, 8] x)", "float[8, 8] x, int64[4] unread)", 1)
    ways = find(write_graph(tmp_path / "m.onnx", text, opset=13), tmp_path, tmp_path / "repro").ways
    assert len(ways) > 1 and ways[-1].change.endswith("is an output")
    assert all(way.slowdown is not None for way in ways)


def test_both_of_two_faults_are_named(tmp_path: Path) -> None:
    body = UNKEPT_NORM[UNKEPT_NORM.index("{\n") + 1 : UNKEPT_NORM.rindex("}")]
    again = body.replace("(x", "(v")
    for name in ("mean", "centred", "squares", "variance", "safe", "deviation", "normed", "scaled"):
        again = again.replace(name, f"{name}2")
    first = body.replace("y = Add", "u = Add")
    text = UNKEPT_NORM.replace(body, f"{first} v = Sigmoid (u) {again}")
    side = search(write_graph(tmp_path / "m.onnx", text, opset=13), tmp_path)
    assert side.fault is not None and side.fault.tensor in ("normed", "scaled", "u")
    assert [fault.tensor for fault in side.further] in (["scaled2"], ["normed2"], ["y"])


def test_every_cut_has_a_hash_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder of plans takes what it has built of the same hash: on an H200 all cuts were the plan of the first."""
    from enginebench.features.locate import graph_program

    hashes = list[str]()
    build = graph_program.build_graph

    def record(backend: Any, artifact: Artifact, *rest: Any) -> Artifact:
        hashes.append(artifact.sha256)
        return build(backend, artifact, *rest)

    monkeypatch.setattr(graph_program, "build_graph", record)
    graph = write_graph(tmp_path / "m.onnx", UNKEPT_NORM, opset=13)
    program = graph_program.GraphProgram(graph, EngineSpec(backend="ort"), tmp_path / "s", lambda text: None)
    program.record({"x": np.random.default_rng(0).standard_normal((8, 8), np.float32)}, 1 << 20)
    for wanted in ("mean", "centred", "mean"):
        program.compute([], [wanted], {"x": program.values["x"]}, program.values)
    assert hashes[0] == hashes[2] != hashes[1] and all(len(text) == 64 for text in hashes)


def test_a_fault_inside_of_a_function_is_found_there(tmp_path: Path) -> None:
    inner = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 13]> {UNKEPT_NORM}').graph
    constants = [onnx.helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in inner.initializer]
    opset = onnx.helper.make_opsetid("", 13)
    function = onnx.helper.make_function("own", "Norm", ["x"], ["y"], [*constants, *inner.node], [opset])
    text = """<ir_version: 9, opset_import: ["" : 13, "own" : 1]>
    g (float[8, 8] x) => (float[8, 8] y) { t = Tanh (x) [call] n = own.Norm (t) y = Relu (n) }"""
    model = onnx.parser.parse_model(text)
    model.functions.append(function)
    onnx.save(model, tmp_path / "m.onnx")
    repro = tmp_path / "repro"
    fault = find(read_onnx(tmp_path / "m.onnx"), tmp_path, repro)
    assert fault.kind == "Mul" and fault.within == ("function of call (Norm)",)
    assert not onnx.load(repro / "model.onnx").functions
    assert fault.reproduction is not None and fault.reproduction.shown


def test_transformations_that_change_the_operators_are_listed_in_order(tmp_path: Path) -> None:
    """As OpenVINO records them: the graph after each transformation, ten after two."""

    def record(name: str, *kinds: str) -> None:
        layers = "".join(f'<layer type="{kind}"/>' for kind in kinds)
        (tmp_path / f"{name}.xml").write_text(f"<net><layers>{layers}</layers></net>")

    record("Model2_000_ov::pass::Validate", "Add", "Sqrt")
    record("Model2_010_ov::pass::RMSFusion", "RMS")
    record("Model2_002_ov::pass::CommonDecompositions", "Add", "Power")
    record("Model2_003_ov::pass::Nothing", "Power", "Add")
    record("Model3_004_Other", "Add")  # another graph
    (tmp_path / "Model2_011_Broken.xml").write_text("<net>")
    assert list_changing(tmp_path) == ("CommonDecompositions", "RMSFusion")

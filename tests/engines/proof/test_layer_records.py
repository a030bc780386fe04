"""Layers from the runtimes' own records: named, typed, in the precision that ran, once for proof and layers."""

from collections.abc import Callable
from typing import Any

import pytest

from enginebench.core.errors import MeasurementError
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import LayerProfiler
from enginebench.engines.backends.torch.operators import WATCHED_MODULE, mark_modules, name_modules, read_operator_times
from enginebench.engines.proof import Operator, summarize_layers
from events import make_event

Load = Callable[..., Any]
# On a fast CPU the layers of a single sample are shorter than OpenVINO's counters can tell.
BATCH = 64


def test_operators_of_one_name_are_one_layer_of_the_calm_runs() -> None:
    calm = [Operator("f32", 4.0, "a", "Conv"), Operator("I8", 2.0, "b", "Gemm"), Operator("I8", 1.0, "a", "Conv")]
    noisy = [operator._replace(time_ns=99.0) for operator in calm]
    found = summarize_layers([noisy, calm, calm, noisy], "p", ("n",))
    assert (found.runs, found.profiler, found.notes) == (2, "p", ("n",))
    assert [(x.name, x.kind, x.mean_ns, x.median_ns, x.precision) for x in found.layers] == [
        ("a", "Conv", 5.0, 5.0, "fp32"),
        ("b", "Gemm", 2.0, 2.0, "int8"),
    ]


def test_a_layer_whose_record_names_no_precision_has_none() -> None:
    (layer,) = summarize_layers([[Operator("int64", 1.0, "shape", "Shape")]], "p").layers
    assert layer.precision is None
    for runs, told in (([[]], "1 run"), ([[], []], "2 runs")):
        with pytest.raises(MeasurementError, match=f"p recorded no layer in {told}$"):
            summarize_layers(runs, "p")


@pytest.mark.parametrize("name", ["pytorch", "ort", "openvino"])
def test_layers_and_proof_are_of_one_record(name: str, load_engine: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with load_engine(name, batch=BATCH) as engine:
        assert isinstance(engine, LayerProfiler)
        engine.bind(random_feeds(engine.inputs, BATCH, 0))
        profile, proof = engine.profile_layers(), engine.effective_precision()
        monkeypatch.setattr(f"{type(engine).__module__}.record_profile", None)
        assert engine.profile_layers() == profile  # the record is kept
        engine.bind(random_feeds(engine.inputs, BATCH, 1))
        with pytest.raises(TypeError):
            engine.profile_layers()  # and forgotten with its inputs
    total = sum(layer.mean_ns for layer in profile.layers)
    assert total > 0 and all(layer.name and layer.kind for layer in profile.layers)
    fp32 = sum(layer.mean_ns for layer in profile.layers if layer.precision == "fp32")
    assert fp32 / total == pytest.approx(proof["fp32"], abs=0.02)


def test_eager_layers_are_modules_and_leave_no_hooks() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    modules = name_modules(model)
    assert list(modules) == ["", "0", "1"] and name_modules(lambda x: x) == {}
    hooks = torch.nn.modules.module
    with torch.autograd.profiler.profile(use_kineto=True) as profiler, mark_modules(modules):
        assert hooks._global_forward_pre_hooks and hooks._global_forward_hooks
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules.values())
        torch.nn.Tanh()(model(torch.zeros(1, 2)))  # another's module is none of ours
    spans = [e.name() for e in profiler.kineto_results.events() if e.name().startswith(WATCHED_MODULE)]
    assert sorted(spans) == [WATCHED_MODULE + path for path in ("", "0", "1")]
    assert not hooks._global_forward_pre_hooks and not hooks._global_forward_hooks


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_the_wrapper_that_casts_is_no_part_of_a_path() -> None:
    import torch

    from enginebench.engines.pytorch_module import _CastModule

    model = torch.nn.Sequential(torch.nn.ReLU())
    assert list(name_modules(_CastModule(model, torch.bfloat16, []))) == ["", "0"]
    assert name_modules(torch.jit.script(torch.nn.ReLU())) == {}


def test_operators_belong_to_the_innermost_module_around_them() -> None:
    span = "enginebench module "
    events = [
        make_event(span, 0, 100),
        make_event(f"{span}block", 10, 60),
        make_event(f"{span}block.conv", 20, 10),
        make_event("aten::conv2d", 21, 5, "float"),
        make_event("aten::add", 40, 2, "float"),
        make_event("aten::add", 45, 3, "float"),
        make_event("aten::flatten", 80, 1, "float"),
    ]
    found = read_operator_times(events, {"block.conv": "Conv2d"})
    assert [(x.name, x.kind, x.time_ns) for x in found] == [
        ("block.conv", "Conv2d", 5.0),
        ("block: add", "add", 2.0),
        ("block: add 2", "add", 3.0),
        ("flatten", "flatten", 1.0),
    ]


def test_a_layer_that_mostly_changes_layouts_is_one_that_computes_all_the_same() -> None:
    run = [
        Operator("reorder", 9.0, "conv1", "Conv2d", kernel="nchwToNhwcKernel"),
        Operator("c10::Half", 1.0, "conv1", "Conv2d", kernel="fprop"),
        Operator("reorder", 2.0, "to", "to"),
    ]
    conv, moved = summarize_layers([run], "a profiler").layers
    assert (conv.precision, moved.precision) == ("fp16", "reorder")
    assert (conv.mean_ns, conv.kernels) == (10.0, ("nchwToNhwcKernel", "fprop"))

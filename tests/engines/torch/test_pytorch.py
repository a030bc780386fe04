"""PyTorch, eager and compiled: strict FP32, its threads, its layouts, and what a module may return."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import torch.fx
from msgspec.structs import replace
from torch._inductor import cpu_vec_isa

from calls import run_on
from enginebench.core.errors import ArtifactError, BackendUnavailable, ModelError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.engines.backends.torch import pytorch_compile
from enginebench.engines.backends.torch.module import fold_batch_norms, make_checks
from enginebench.engines.backends.torch.pytorch import PytorchBackend
from enginebench.engines.backends.torch.pytorch_compile import PytorchCompileBackend
from enginebench.engines.pytorch import TorchEngine, _find_points, prepare_torch
from enginebench.engines.pytorch_module import count_norms, flatten_tensors
from factories import Wrapped

# PyTorch's compiler imports a module of PyTorch's own that still uses what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

SPEC = EngineSpec(backend="pytorch")
COMPILE = EngineSpec(backend="pytorch-compile")


def describe(*names: str) -> Artifact:
    specs = tuple(TensorSpec(name=name, dtype="float32", shape=("batch", 2)) for name in names)
    x = TensorSpec(name="x", dtype="float32", shape=("batch", 2))
    return Artifact(kind="torch", model="m", path="", sha256="", files=(), inputs=(x,), outputs=specs)


def test_fp32_is_strict_and_threads_run_operators_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    prepare_torch(SPEC)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cudnn.allow_tf32
    prepare_torch(replace(SPEC, threads=2))
    assert (torch.get_num_threads(), torch.get_num_interop_threads()) == (2, 1)
    prepare_torch(SPEC)
    assert torch.get_num_threads() == 1

    def refuse(count: int) -> None:
        raise RuntimeError("cannot set number of interop threads after parallel work has started")

    monkeypatch.setattr(torch, "get_num_interop_threads", lambda: 4)
    monkeypatch.setattr(torch, "set_num_interop_threads", refuse)
    with pytest.raises(BackendUnavailable, match="in a new process"):
        prepare_torch(SPEC)


@pytest.mark.parametrize("variable", ["ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"])
def test_environment_that_shortens_fp32_is_refused(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "bf16")
    with pytest.raises(BackendUnavailable, match=f"{variable}=BF16"):
        prepare_torch(SPEC)
    monkeypatch.setenv(variable, "strict")
    prepare_torch(SPEC)


def test_channels_last_changes_layout_and_no_answer(torch_artifact: Artifact, loader: Any, expect: Any) -> None:
    feeds = random_feeds(torch_artifact.inputs, 2, 0)
    spec = replace(SPEC, batch=2, options={"channels_last": "1"})
    with PytorchBackend(loader).load(torch_artifact, spec) as engine:
        engine.bind(feeds)
        assert engine._tensors[0].is_contiguous(memory_format=torch.channels_last)
        engine.run()
        np.testing.assert_allclose(engine.fetch()["scores"], expect(feeds["image"]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_least_time_of_a_call_has_the_kernels_of_all_threads(threads: int) -> None:
    """PyTorch takes others for 1x1 convolutions on one thread, up to twice as slow, but not of those that dilate."""
    point, seen = torch.nn.Conv2d(3, 3, 1), []
    module = torch.nn.Sequential(point)
    module.register_forward_pre_hook(lambda *_: seen.append((torch.get_num_threads(), point.dilation)))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    engine = TorchEngine(module, describe("y"), SPEC, {"channels_last": "0"})
    engine._tensors, engine._bound = (torch.zeros(1, 3, 8, 8),), True
    assert engine.count_least_ns() > 0 and point.dilation == (1, 1) and torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert {*seen} == {(1, (1, 1) if threads == 1 else (2, 2))}


def test_nobody_knows_the_least_time_of_convolutions_that_are_no_modules() -> None:
    exported = torch.export.export(torch.nn.Conv2d(3, 3, 1).eval(), (torch.zeros(1, 3, 8, 8),)).module()
    assert _find_points(exported) is None and _find_points(torch.nn.Linear(2, 2)) == []


def test_outputs_are_found_in_whatever_a_module_returns() -> None:
    a, b, c = torch.zeros(1), torch.ones(1), torch.ones(2)
    assert [*flatten_tensors({"a": a, "rest": [b, (c, None)]})] == [a, b, c]
    engine = PytorchBackend(lambda artifact: Wrapped(lambda x: {"first": x + 1, "second": (x * 2,)})).load(
        describe("first", "second"), SPEC
    )
    with engine:
        answer = run_on(engine, {"x": np.array([[1, 2]], np.float32)})
        np.testing.assert_array_equal(answer["first"], [[2, 3]])
        np.testing.assert_array_equal(answer["second"], [[2, 4]])
    with PytorchBackend(lambda artifact: Wrapped(lambda x: (x, x))).load(describe("y"), SPEC) as engine:
        engine.bind({"x": np.zeros((1, 2), np.float32)})
        engine.run()
        with pytest.raises(ArtifactError, match="returned 2 tensors; its artifact names 1"):
            engine.fetch()
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.ReLU())
    with PytorchBackend(lambda artifact: module).load(describe("y"), SPEC) as engine:
        np.testing.assert_array_equal(run_on(engine, {"x": np.ones((1, 2), np.float32)})["y"], [[1, 1]])
        assert engine._result.is_inference()


@pytest.mark.parametrize("backend", [PytorchBackend, lambda loader: PytorchCompileBackend(loader, None)])
def test_loader_is_needed_and_must_return_a_module(backend: Any, torch_artifact: Artifact) -> None:
    spec = replace(SPEC, backend=backend(None).name)
    with pytest.raises(UsageError, match="open the backend with a module loader"):
        backend(None).load(torch_artifact, spec)
    with pytest.raises(ModelError, match="returned a dict"):
        backend(lambda artifact: {}).load(torch_artifact, spec)


def test_freezing_folds_weights_and_keeps_the_outputs(loader: Any, torch_artifact: Artifact, tmp_path: Path) -> None:
    feeds = random_feeds(torch_artifact.inputs, 1, seed=0)
    answers = []
    for freezing in ("0", "1"):
        spec = replace(COMPILE, options={"freezing": freezing})
        with PytorchCompileBackend(loader, tmp_path).load(torch_artifact, spec) as engine:
            assert pytorch_compile.inductor.freezing == (freezing == "1")
            answers.append(run_on(engine, feeds))
    for name, wanted in answers[0].items():
        np.testing.assert_allclose(answers[1][name], wanted, rtol=1e-4, atol=1e-5)


def make_normed(seed: int = 0) -> torch.nn.Sequential:
    """A convolution and a linear layer, each with a batch norm after it whose statistics are not those of a new one."""
    torch.manual_seed(seed)
    layers = [torch.nn.Conv2d(1, 3, 1), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.Flatten()]
    layers += [torch.nn.Linear(12, 4), torch.nn.BatchNorm1d(4)]
    for layer in layers:
        if hasattr(layer, "running_var"):
            layer.running_mean.uniform_(-1, 1)
            layer.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(layer.weight, 0.5, 2)
    return torch.nn.Sequential(*layers).eval()


@pytest.mark.parametrize(
    "backend", [PytorchBackend, lambda loader: PytorchCompileBackend(loader, None)], ids=["pytorch", "compiled"]
)
def test_batch_norms_are_folded_and_outputs_stay(backend: Any) -> None:
    image = TensorSpec(name="x", dtype="float32", shape=("batch", 1, 2, 2))
    artifact = replace(describe("y"), inputs=(image,))
    feeds = random_feeds(artifact.inputs, 2, seed=1)
    with torch.no_grad():
        wanted = make_normed()(torch.from_numpy(feeds["x"])).numpy()
    spec = EngineSpec(backend=backend(None).name, batch=2, options={"fold_bn": "1"})
    with backend(lambda artifact: make_normed()).load(artifact, spec) as engine:
        np.testing.assert_allclose(run_on(engine, feeds)["y"], wanted, rtol=1e-4, atol=1e-5)


def test_folding_leaves_no_norm_inside_or_beside_others() -> None:
    module = make_normed()
    assert count_norms(fold_batch_norms(module, "m", [[torch.ones(2, 1, 2, 2)]])) == 0
    assert count_norms(torch.fx.symbolic_trace(module)) == 2
    assert torch.equal(module[0].weight, make_normed()[0].weight)
    # As a model from a factory is: its wrapper takes any number of inputs.
    inner = make_normed()
    module = Around(Around(inner)).eval()
    folded = fold_batch_norms(module, "m", [[torch.ones(2, 1, 2, 2)]])
    assert [type(m) for m in folded.modules()].count(torch.nn.BatchNorm2d) == 0
    assert module.inner.inner is inner and isinstance(inner[1], torch.nn.BatchNorm2d)
    layer = torch.nn.Linear(4, 4)
    module = torch.nn.Sequential(make_normed(), layer, torch.nn.ReLU(), layer).eval()
    assert count_norms(fold_batch_norms(module, "m", [[torch.ones(2, 1, 2, 2)]])) == 0


class Pair(torch.nn.Module):
    """A layer and a batch norm, in the order that a function puts them."""

    def __init__(self, forward: Callable[[Any, Any], Any], layer: Any = None, norm: Any = None) -> None:
        super().__init__()
        self.layer, self.norm = layer or torch.nn.Linear(2, 2), norm or torch.nn.BatchNorm1d(2)
        self.function = forward

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


# A batch norm that no inference runs; a weight that is also read without the norm after it; values that decide.
ONLY_IN_TRAINING = partial(Pair, lambda own, x: own.norm(own.layer(x)) if own.training else torch.relu(own.layer(x)))
READ_TWICE = partial(Pair, lambda own, x: own.norm(own.layer(x)) + own.layer.weight.sum(), torch.nn.Linear(2, 4))
BRANCHING = partial(Pair, lambda own, x: own.norm(own.layer(x)) if x.sum() > 0 else x)


class Around(torch.nn.Module):
    """A wrapper that takes any number of inputs."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = self.again = inner
        self.nothing = None
        self.register_module("missing", None)

    def forward(self, *inputs: Any) -> Any:
        return (self.inner(*inputs) + self.again(*inputs)) / 2


def make_shared() -> torch.nn.Sequential:
    layer, norm = torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)
    norm.running_mean = torch.tensor([0.5, -0.5])
    return torch.nn.Sequential(layer, norm, torch.nn.ReLU(), layer, norm)


def make_along_another_axis() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(2, 4), make_normed()[5])


@pytest.mark.parametrize(
    ("make", "shape", "reason"),
    [
        (lambda: torch.nn.Linear(2, 2), (2, 2), "has no batch norm that directly follows"),
        (ONLY_IN_TRAINING, (2, 2), "has no batch norm that directly follows"),
        (BRANCHING, (2, 2), "in what torch.fx can trace: Pair: .*control flow"),
        (make_shared, (2, 2), "gives other outputs once"),
        (lambda: READ_TWICE(make_normed()[5]), (2, 2), "gives other outputs once"),
        (make_along_another_axis, (2, 4, 2), "gives other outputs once"),
        (make_normed, (2, 7), "it cannot be checked that its outputs stay the same"),
    ],
)
def test_what_cannot_be_folded_is_an_error_that_says_why(make: Any, shape: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ModelError, match=f"m.* {reason}.*Leave out fold_bn=1"):
        fold_batch_norms(make().eval(), "m", [[torch.rand(shape)]])


class Counting(torch.nn.Sequential):
    """Notes the batches that it is called with; takes only those in `accepted`."""

    def __init__(self, *accepted: int) -> None:
        super().__init__(torch.nn.Linear(2, 4), make_normed()[5])
        self.accepted, self.seen = accepted, list[int]()

    def forward(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            self.seen.append(len(x))
            if len(x) not in self.accepted:
                raise RuntimeError(f"a batch of {len(x)}")
        return super().forward(x)


@pytest.mark.parametrize(
    ("length", "accepted", "seen"), [("batch", (2, 64), [2]), (64, (2, 64), [2]), (64, (64,), [2, 64]), (1, (1,), [1])]
)
def test_folding_is_checked_on_few_samples_if_the_module_takes_them(length, accepted, seen) -> None:
    inputs = (TensorSpec(name="x", dtype="float32", shape=(length, 2)),)
    module = Counting(*accepted).eval()
    fold_batch_norms(module, "m", make_checks(inputs, length if isinstance(length, int) else 64))
    assert module.seen == seen


class EveryEighth(torch.nn.Sequential):
    """Answers nothing to two samples."""

    def __init__(self) -> None:
        super().__init__(*make_along_another_axis())

    def forward(self, x: Any) -> Any:
        return super().forward(x)[7::8]


@pytest.mark.parametrize(("batch", "reason"), [(8, "gives other outputs once"), (4, "its outputs are empty")])
def test_an_empty_answer_proves_nothing_and_no_common_batch_is_checked_whole(batch: int, reason: str) -> None:
    inputs = (TensorSpec(name="x", dtype="float32", shape=(batch, 4, 2)),)
    with pytest.raises(ModelError, match=reason):
        fold_batch_norms(EveryEighth().eval(), "m", make_checks(inputs, batch))
    inputs = tuple(TensorSpec(name=name, dtype="float32", shape=(n, 2)) for name, n in (("x", 8), ("y", 3)))
    assert [[tuple(t.shape) for t in check] for check in make_checks(inputs, 8)] == [[(8, 2), (3, 2)]]


def test_the_compiler_is_imported_ahead() -> None:
    code = (
        "import sys, psutil, torch; "
        "from enginebench.engines.backends.torch.pytorch_compile import create_backend as create; "
        "name, backend = 'torch._inductor.compile_fx', create(None, None); before = name in sys.modules; "
        "backend.import_ahead(); children = psutil.Process().children(recursive=True); "
        "workers = torch._inductor.config.compile_threads; "
        "print(before, name in sys.modules, len(children), workers, torch.cuda.is_initialized())"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "True", "0", "1", "False"]


def test_compiled_code_is_kept_in_a_folder_whose_path_has_a_space_and_a_quote(tmp_path, monkeypatch) -> None:
    """PyTorch quotes neither: its compiler took half of the path for a file. The environment is left alone."""
    monkeypatch.setenv(pytorch_compile.CACHE_VARIABLE, before := str(tmp_path / "before"))
    folder = tmp_path / "it's größer"
    artifact = replace(describe("y"), inputs=(TensorSpec(name="x", dtype="float32", shape=("batch", 1, 2, 2)),))
    torch.compiler.reset()
    with PytorchCompileBackend(lambda artifact: make_normed(), folder).load(artifact, COMPILE) as engine:
        engine.bind(random_feeds(artifact.inputs, 3, seed=0))
        engine.run()
        assert psutil.Process().children(recursive=True) == [], "no worker of the compiler stays"
    assert list((folder / pytorch_compile.CACHE_NAME).rglob("*.so"))
    assert os.environ[pytorch_compile.CACHE_VARIABLE] == before


def test_each_of_many_batches_is_compiled(tmp_path: Path) -> None:
    """PyTorch gives up after eight, and without fullgraph goes on eagerly."""
    artifact, batches = describe("y"), 10
    torch.compiler.reset()
    with PytorchCompileBackend(lambda artifact: Wrapped(torch.relu), tmp_path).load(artifact, COMPILE) as engine:
        for batch in range(1, batches + 1):
            engine.bind({"x": np.full((batch, 2), -1.0, np.float32)})
            engine.run()
        assert engine.fetch()["y"].shape == (batches, 2)


CPP = "CppCompileError: C++ compile error"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            f"{CPP}\n\nCommand:\ng++ x.cpp\n\nOutput:\n x.h:3: error: no such type\nand",
            f"{CPP}: x.h:3: error: no such type",
        ),
        (CPP, f"{CPP}. With pytorch-compile:fullgraph=0 "),
        ("Branching\n  Hint\n\nmore", "Branching. With pytorch-compile:fullgraph=0 "),
        ("", "RuntimeError. With "),
    ],
)
def test_a_failure_to_compile_is_reported_in_one_line(text: str, wanted: str) -> None:
    told = pytorch_compile.explain_failure(RuntimeError(text))
    assert told.startswith(wanted) and "\n" not in told


def test_a_pytorch_whose_own_path_has_a_space_is_said_to_be_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__file__", "/home/a user/torch/__init__.py")
    found = PytorchCompileBackend(None, None).probe()
    assert not found.available
    assert "/home/a user/torch needs it" in (found.reason or "") and "virtual environment" in (found.fix or "")
    with pytest.raises(BackendUnavailable, match=r"a user/torch needs it\. To fix it: make"):
        pytorch_compile.check_tools()
    # A GPU's code is compiled by Triton, which hands its compiler a list.
    monkeypatch.setattr(pytorch_compile, "find_missing_gpu_tools", dict)
    monkeypatch.setattr(pytorch_compile, "probe_cuda", lambda: ("cuda:0",))
    assert PytorchCompileBackend(None, None).probe().devices == ("cuda:0",)


def test_module_that_is_no_single_graph_is_refused_with_the_way_out(tmp_path: Path) -> None:
    def break_graph(x: Any) -> Any:
        torch._dynamo.graph_break()
        return x + 1

    backend = PytorchCompileBackend(lambda artifact: Wrapped(break_graph), tmp_path)
    words = r"module: [^\n]* \([^ ]*test_pytorch\.py:\d+: torch\._dynamo\.graph_break\(\)\)\. With .*:fullgraph=0"
    with pytest.raises(ModelError, match=words) as failed:
        backend.load(describe("y"), COMPILE)
    assert "from user code" in failed.value.log
    with backend.load(describe("y"), replace(COMPILE, options={"fullgraph": "0"})) as engine:
        np.testing.assert_array_equal(run_on(engine, {"x": np.ones((1, 2), np.float32)})["y"], [[2, 2]])


def test_missing_compiler_and_headers_are_named(monkeypatch, tmp_path, torch_artifact) -> None:
    monkeypatch.setattr(pytorch_compile.sysconfig, "get_path", lambda name: str(tmp_path))
    assert pytorch_compile.find_missing_tools() == {"Python's headers (Python.h)": "apt-get install python3-dev"}
    assert "Python.h" in str(PytorchCompileBackend(None, None).probe().reason)
    monkeypatch.setattr(pytorch_compile.shutil, "which", lambda name: None)
    answer = PytorchCompileBackend(None, None).probe()
    assert not answer.available
    assert "C++ compiler" in str(answer.reason)
    assert str(answer.fix).startswith("apt-get install g++")
    for use in (lambda b: b.load(torch_artifact, COMPILE), lambda b: b.build(torch_artifact, COMPILE, Path())):
        with pytest.raises(BackendUnavailable, match=r"apt-get install g\+\+"):
            use(PytorchCompileBackend(None, None))


# What `pytorch-compile` needs around PyTorch's compiler: a hash of what it made, its questions, plain paths.

KERNEL = "# kernel path: {folder}/ab/cabc.py\ntmp0 = x0 / 8\ntmp1 = x1//16\ntmp2 = (x2)/4\n"
CHOICE = '{{"XBLOCK": {block}, "num_warps": 4, "time_taken_ms": {time}, "found_by_coordesc": false}}'


def build(folder: Path, *, kernel: str = KERNEL, block: int = 256, time: int = 12) -> str | None:
    """The hash of a build that left these files."""
    cache = folder / pytorch_compile.CACHE_NAME / "ab"
    cache.mkdir(parents=True)
    (cache / "cabc.py").write_text(kernel.format(folder=folder))
    (cache / "x.best_config").write_text(CHOICE.format(block=block, time=time))
    (cache / "main.so").write_bytes(b"compiled, with its folder inside: " + str(folder).encode())
    return PytorchCompileBackend(None, folder).hash_code()


def test_builds_that_are_alike_have_one_hash_and_nothing_has_none(tmp_path: Path) -> None:
    assert build(tmp_path / "1") == build(tmp_path / "2", time=99)
    assert PytorchCompileBackend(None, tmp_path).hash_code() is None
    assert PytorchCompileBackend(None, None).hash_code() is None


@pytest.mark.parametrize(
    "changed", [{"block": 512}, {"kernel": KERNEL.replace("/ 8", "/ 9")}, {"kernel": KERNEL.replace("/16", "/17")}]
)
def test_another_kernel_or_choice_is_another_build(tmp_path: Path, changed: dict[str, object]) -> None:
    assert build(tmp_path / "1") != build(tmp_path / "2", **changed)  # type: ignore[arg-type]


Asked = list[tuple[str, str]]


def forget() -> None:
    """As in a process that has asked nothing yet."""
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    kinds = (type(isa) for isa in cpu_vec_isa.supported_vec_isa_list)
    for one in (cpu_vec_isa.VecISA._VecISA__bool__impl, *(kind.__bool__ for kind in kinds)):
        getattr(one, "cache_clear", bool)()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """(flags, program) of each program that was compiled; all but 8 bits and tiles work."""
    found: Asked = []

    def check_build(isa: cpu_vec_isa.VecISA, code: str) -> bool:
        found.append((isa.build_arch_flags(), code))
        return "dpbusd" not in code

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
    forget()
    yield found
    forget()


def test_the_first_process_asks_and_the_next_ones_believe_it(tmp_path: Path, asked: Asked) -> None:
    pytorch_compile.trust_instructions(tmp_path)
    questions, flags = len(asked), cpu_vec_isa.pick_vec_isa().build_arch_flags()
    assert questions == len(set(asked)) == len(list(tmp_path.iterdir())) > 0
    forget()
    pytorch_compile.trust_instructions(tmp_path)
    assert len(asked) == questions and cpu_vec_isa.pick_vec_isa().build_arch_flags() == flags
    pytorch_compile.trust_instructions(None)
    assert bool(cpu_vec_isa.pick_vec_isa()) and asked


@pytest.mark.parametrize("name", ["a b", "it's", 'a"b', "back\\slash", "tab\tbed"])
def test_a_folder_that_a_command_would_split_is_reached_by_a_link(name, tmp_path, monkeypatch) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    folder = tmp_path / name / "cache"
    with pytorch_compile.reach_by_plain_path(folder) as plain:
        assert pytorch_compile.is_one_word(plain)
        (plain / "file").write_text("kept")
    assert (folder / "file").read_text() == "kept"
    assert list(place.iterdir()) == []

"""Modules that a program gives, or a `.pt2` file: what reaches another process, what stays, and what is refused."""

import io
import json
import os
import pickle
import subprocess
import sys
import threading
import types
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import factories
from enginebench.core.errors import ArtifactError, ModelError, UsageError
from enginebench.core.store import hash_files
from enginebench.features.deliver.modules import find_module
from enginebench.models import objects
from enginebench.models.objects import find_object, list_variables, may_open
from enginebench.models.torch.architectures import describe_inputs, examples_of_shapes
from enginebench.models.torch.flat import Flat, find_state, flatten
from enginebench.models.torch.object_source import can_be_imported, offer_module, pack_module, split_examples
from enginebench.models.torch.source import load_module, make_torch_artifact
from processes import environment

FACTOR = 3.0

# What another process makes of the modules that it is offered: their answers, without anything of this one.
READER = """
import sys, torch
from pathlib import Path
from enginebench.models.torch.source import load_module, make_torch_artifact
out = Path(sys.argv[1])
answers = {}
for text in sys.argv[2:]:
    artifact = make_torch_artifact(text, out, batch=2)
    module = load_module(artifact)
    torch.manual_seed(0)
    inputs = [torch.randn(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in artifact.inputs]
    with torch.inference_mode():
        answers[text] = (inputs, module(*inputs), not module.training, [s.name for s in artifact.inputs])
torch.save(answers, out / "answers.pt")
"""


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(3)
        self.same = nn.InstanceNorm1d(3)  # in both modes, as it keeps no statistics

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.drop(self.layer(x))) * FACTOR


class Called(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Buffered(nn.Module):
    """Its buffers are in no state dict, and are changed once it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.second.weight is self.first.weight
        return self.second(self.first(x))


class Keywords(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, shift: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x * scale + shift, "x": x}


def make_closure(offset: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + offset

    return add


def make_buffered() -> nn.Module:
    module = Buffered()
    module.shift += 7
    return module


MODULES: dict[str, tuple[Callable[[], nn.Module], object]] = {
    "in train mode": (lambda: Plain().train(), torch.zeros(5, 4)),
    "a lambda": (lambda: Called(lambda x: x * FACTOR), torch.zeros(5, 4)),
    "a closure": (lambda: Called(make_closure(2.5)), (torch.zeros(5, 4),)),
    "a buffer changed": (make_buffered, torch.zeros(5, 4)),
    "tied weights": (Tied, [torch.zeros(5, 4)]),
    "keyword inputs": (Keywords, {"shift": torch.zeros(5, 4), "scale": torch.zeros(5, 1), "x": torch.zeros(5, 4)}),
    "half precision": (lambda: nn.Linear(4, 2).half(), torch.zeros(5, 4, dtype=torch.float16)),
    "a hook": (lambda: add_hook(nn.Linear(4, 2)), torch.zeros(5, 4)),
    "parametrizations": (
        lambda: nn.Sequential(weight_norm(nn.Linear(4, 2)), spectral_norm(nn.Linear(2, 2))),
        torch.zeros(5, 4),
    ),
    "importable layers": (lambda: nn.Sequential(nn.Linear(4, 2), nn.ReLU()), torch.zeros(5, 4).numpy()),
}


def add_hook(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda module, inputs, output: output * 2)
    return module


def test_modules_answer_in_another_process_as_they_do_here(tmp_path: Path) -> None:
    made = {name: (make(), examples) for name, (make, examples) in MODULES.items()}
    home = tmp_path / "home of the script"
    home.mkdir()
    (home / "layers_beside.py").write_text("import torch\nclass Half(torch.nn.Identity): pass\n")
    texts: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_written", {})
        patch.syspath_prepend(home)
        made["a layer in a file beside the script"] = import_module("layers_beside").Half(), torch.zeros(5, 4)
        offers = [(name, offer_module(module, examples)) for name, (module, examples) in made.items()]
        for name, offer in offers:
            texts[name] = offer.__enter__().text
        variables = {**environment(tmp_path), **list_variables()}
        done = subprocess.run(
            [sys.executable, "-c", READER, str(tmp_path), *texts.values()],
            env=variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        for _, offer in offers:
            offer.__exit__(None, None, None)
        (variables,) = list_variables().values()
        assert json.loads(variables)["objects"] == [], "nothing may be opened once the offer is over"
    assert done.returncode == 0, done.stderr
    answers = torch.load(tmp_path / "answers.pt", weights_only=True)
    for name, text in texts.items():
        inputs, got, evaluated, names = answers[text]
        module = made[name][0]
        here = module.eval()
        wanted = here(**dict(zip(names, inputs, strict=True))) if name == "keyword inputs" else here(*inputs)
        wanted = tuple(wanted.values()) if isinstance(wanted, dict) else (wanted,)
        got = got if isinstance(got, tuple) else (got,)
        assert evaluated, name
        assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True)), name
    assert answers[texts["keyword inputs"]][3] == ["shift", "scale", "x"]


def test_the_module_is_left_as_it_is_and_its_name_distinguishes_it(tmp_path: Path) -> None:
    module = Plain().train()
    module.layer.weight.requires_grad_(False)
    module.norm.eval()
    module(torch.randn(4, 4)).sum().backward()  # grads, and running statistics that would move
    before = {name: (id(t), t.clone(), t.requires_grad) for name, t in module.state_dict(keep_vars=True).items()}
    modes = [part.training for part in module.modules()]
    example = torch.randn(2, 4, requires_grad=True)
    with offer_module(module, example) as offered:
        find_object(offered.text)
    assert [part.training for part in module.modules()] == modes
    after = module.state_dict(keep_vars=True)
    for name, (identity, value, grad) in before.items():
        assert (id(after[name]), after[name].requires_grad) == (identity, grad)
        assert torch.equal(after[name], value)
    assert module.norm.weight.grad is not None
    assert example.requires_grad and example.grad is None
    module, other = Plain(), Plain()
    texts = []
    for one in (module, module, other):
        with offer_module(one, torch.zeros(1, 4)) as offered:
            texts.append(offered.text)
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("Plain@")
    one, listed = torch.zeros(5, 4), ([torch.zeros(5, 4)],)  # in a list each tensor is an entry of its own
    for examples, batch in (((one,), 5), ((one, torch.zeros(3)), None), (listed, None)):
        with offer_module(nn.Identity(), examples) as offered:
            assert offered.batch == batch
    before = cloudpickle.list_registry_pickle_by_value()
    pack_module(Flat(Plain()), ())
    with pytest.raises(ModelError):
        pack_module(Flat(make_holder("guard", threading.Lock())), ())
    assert cloudpickle.list_registry_pickle_by_value() == before
    for trained, layers in ((True, "Dropout, BatchNorm1d"), (False, None)):
        with offer_module(Plain().train(trained), torch.zeros(5, 4)) as offered:
            artifact = make_torch_artifact(offered.text, tmp_path / str(trained), batch=5)
        found = [c.figures["layers"] for c in artifact.warnings if c.code == "eval_mode"]
        assert found == ([layers] if layers else [])


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (None, "a module needs example_inputs"),
        ("text", "there is no tensor among them"),
        ((torch.zeros(1), object()), "'input_1' is an object; expected a tensor, an array, a number, a text or None"),
        ({"x": {"ids": torch.zeros(1), "names": {1}}}, r"'x.names' is a set; expected a tensor"),
    ],
)
def test_examples_that_are_no_tensors_are_refused(examples: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split_examples(Plain(), examples)


LOCK = threading.Lock()


def make_user_of_lock() -> nn.Module:
    class UsesGlobal(nn.Module):  # of a function, so that it travels by value
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with LOCK:
                return x

    return UsesGlobal()


def make_holder(name: str, value: object) -> nn.Module:
    outer = nn.Sequential(nn.Identity())
    setattr(outer[0], name, value)
    return outer


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: make_holder("log", open(os.devnull, "w")), r"attribute '0.log' \(TextIOWrapper\)"),  # noqa: SIM115, PTH123
        (lambda: make_holder("guard", threading.Lock()), r"attribute '0.guard' \(lock\)"),
        (lambda: make_holder("items", (i for i in range(3))), r"attribute '0.items' \(generator\)"),
        (lambda: Called(lambda x: x if LOCK.locked() else -x), r"attribute 'function' \(function\)"),
        (make_user_of_lock, r"'LOCK' \(lock\), which UsesGlobal.forward uses,"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_cannot_travel_is_named_with_what_to_do(make: Callable[[], nn.Module], named: str) -> None:
    with pytest.raises(ModelError, match=rf"{named} cannot leave this process: .*package.module:factory"):
        pack_module(Flat(make()), (torch.zeros(1, 4),))


def test_what_a_new_process_would_import_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_be_imported("torch.nn.modules.linear")
    assert not can_be_imported("__main__")
    made = types.ModuleType("made_by_hand")
    monkeypatch.setitem(sys.modules, "made_by_hand", made)
    assert not can_be_imported("made_by_hand")
    (tmp_path / "beside_a_script.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("beside_a_script")
    assert can_be_imported("beside_a_script")
    sys.modules["beside_a_script"].__file__ = str(tmp_path / "another.py")
    assert not can_be_imported("beside_a_script"), "another file would be read"
    del sys.modules["beside_a_script"]


class Bomb:
    """Opening its pickle makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (str(self.path), "w")


def test_a_pickle_of_another_program_is_never_opened(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"module": Bomb(tmp_path / "went off")}, buffer, pickle_module=pickle)
    with offer_module(Plain(), torch.zeros(1, 4)) as offered:
        artifact = make_torch_artifact(offered.text, tmp_path)
        assert load_module(artifact)(torch.zeros(1, 4)).shape == (1, 3)
        Path(artifact.path).write_bytes(buffer.getvalue())
        with pytest.raises(ArtifactError, match="was changed since it was made"):
            load_module(artifact)
        sha256, files = hash_files([Path(artifact.path)], tmp_path)  # as a stranger's folder would say
        with pytest.raises(ModelError, match="a pickle that this program did not write"):
            load_module(replace(artifact, sha256=sha256, files=files))
    assert not (tmp_path / "went off").exists()
    assert not may_open(artifact.sha256), "the offer is over"


def test_what_is_another_programs_or_in_a_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Net@0123456789ab is a Python object of another program"):
        make_torch_artifact("Net@0123456789ab", tmp_path)
    with offer_module(Plain(), torch.zeros(1, 4)) as offered:
        artifact = make_torch_artifact(offered.text, tmp_path)
    with pytest.raises(ArtifactError, match=r"Plain@\w+ is a module .* handed over: .*package\.module:factory"):
        find_module(artifact)


@pytest.mark.parametrize("arguments", [{"weights": "random"}, {"input_size": 32}])
def test_a_module_brings_weights_and_size(arguments: dict[str, object], tmp_path: Path) -> None:
    with offer_module(Plain(), torch.zeros(1, 4)) as offered, pytest.raises(UsageError, match="does not apply to"):
        make_torch_artifact(offered.text, tmp_path, **arguments)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own import
def test_a_compiled_module_is_not_taken() -> None:
    with pytest.raises(ModelError, match=r"result of torch\.compile"):
        pack_module(Flat(torch.compile(Plain())), ())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript is
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_scripted_module_is_refused_with_what_to_give(wrapped: bool) -> None:
    scripted = torch.jit.script(nn.Linear(4, 2))
    module = nn.Sequential(scripted) if wrapped else scripted
    words = r"scripted or traced .* this process: give the nn\.Module .*\.pt2"
    with pytest.raises(ModelError, match=words), offer_module(module, torch.zeros(1, 4)):
        pass


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.inner(x) * scale}


def save(path: Path) -> nn.Module:
    module = Scaled().eval()
    shapes = {"x": {0: torch.export.Dim("b")}, "scale": None}
    program = torch.export.export(module, (torch.zeros(4, 4),), {"scale": torch.tensor(2.0)}, dynamic_shapes=shapes)
    torch.export.save(program, path)
    return module


def test_a_program_keeps_names_weights_and_its_open_batch(tmp_path: Path) -> None:
    module = save(tmp_path / "m.pt2")
    artifact = make_torch_artifact(str(tmp_path / "m.pt2"), tmp_path / "out", batch=3)
    assert [(s.name, s.shape) for s in artifact.inputs] == [("x", (3, 4)), ("scale", ())]
    assert [(s.name, s.shape) for s in artifact.outputs] == [("outputs.scores", (3, 3))]
    assert (artifact.weights, artifact.kind) == ("file", "torch")
    (tmp_path / "m.pt2").unlink()  # the run's folder has its own
    x, scale = torch.randn(5, 4), torch.tensor(3.0)
    assert torch.allclose(load_module(artifact).eval()(x, scale), module(x, scale=scale)["scores"])


@pytest.mark.filterwarnings("ignore")
def test_a_package_of_native_code_or_what_is_no_program_is_refused(tmp_path, monkeypatch) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=r"m\.pt2 cannot be opened as an exported program .*torch.export.save wrote"):
        make_torch_artifact(str(path), tmp_path / "out")
    with pytest.raises(UsageError, match="which brings its own"):
        make_torch_artifact(str(path), tmp_path / "out", weights="random")
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/data/aotinductor/model/c.wrapper.so", "")
    opened: list[object] = []
    monkeypatch.setattr(torch.export, "load", opened.append)
    with pytest.raises(ModelError, match="package of native code"):
        make_torch_artifact(str(tmp_path / "m.pt2"), tmp_path / "out")
    assert not opened


# A user's module as engines call it: nested inputs and answers, state, values of its examples.


class Whatever(nn.Module):
    """Answers with what it was called with."""

    def forward(self, *positional: Any, **keywords: Any) -> Any:
        return positional, keywords


def test_tensors_reach_the_module_and_shapes_repeat_the_values_of_the_examples() -> None:
    flat, examples = flatten(Whatever(), ({"ids": np.zeros(2), "kind": "text"}, [None, torch.ones(3)]), {"scale": 2})
    assert (flat.names, [tuple(e.shape) for e in examples]) == (("input_0.ids", "input_1.1"), [(2,), (3,)])
    ids, other = torch.full((4,), 7.0), torch.zeros(5)
    positional, keywords = flat.call_module(ids, other)
    assert positional == ({"ids": ids, "kind": "text"}, [None, other]) and keywords == {"scale": 2}
    assert flat(ids, other) == (ids, other), "what is no tensor is no part of the answer"
    flat, examples = flatten(factories.Nested(), ({"ids": torch.tensor([[3, 4]]), "mask": torch.ones(1, 2)},))
    ids, mask = examples_of_shapes(flat, examples, {"input.ids": (2, 3), "input.mask": (2, 3)})
    assert ids.tolist() == [[3, 4, 3], [4, 3, 4]] and mask.min() == 1


def test_a_state_is_found_put_back_and_begun_anew_also_if_it_grows() -> None:
    flat, examples = flatten(*factories.make_counter())
    assert find_state(flat, examples) == ("calls",)
    assert float(flat.module.calls) == 0
    flat.begin_anew(("calls",))
    assert torch.equal(flat(*examples), flat(*examples))
    without = Flat(flat.module)
    assert not torch.equal(without(*examples), without(*examples)), "it does count, left to itself"
    flat, examples = flatten(Growing(), torch.ones(1, 4))
    flat.begin_anew(find_state(flat, examples))
    assert torch.equal(flat(*examples), torch.ones(4)) and torch.equal(flat(*examples), torch.ones(4))


class Growing(nn.Module):
    """Remembers every input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(0, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, x])
        return self.seen.sum(0)


def describe(module: nn.Module, given: Any) -> list[tuple[float, float] | None]:
    flat, examples = flatten(module, given)
    return [spec.values for spec in describe_inputs(flat, examples)]


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (torch.zeros(1, 3, 8, 8), [None]),
        (torch.randn(1, 3, 8, 8), [None]),
        (torch.tensor([[0.25, 0.5]]), [(0.25, 0.5)]),
        ((torch.tensor([[3, 9, 5]]), torch.ones(1, 3), torch.tensor(16000)), [(3, 9), (1, 1), (16000, 16000)]),
        ((torch.tensor([[3, 9]]), torch.tensor([[0, 1]]), torch.tensor([[True, False]])), [(3, 9), (1, 1), (1, 1)]),
        ((torch.tensor([[3, 9]]), torch.zeros(1, 2)), [(3, 9), (0, 0)]),
    ],
)
def test_values_are_those_that_the_examples_show(given: Any, values: list[tuple[float, float] | None]) -> None:
    assert describe(Whatever(), given) == values


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 2)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.bag(ids[0], offsets=offsets[0])


def test_what_looks_up_a_table_stays_within_it_and_offsets_of_bags_are_zeros() -> None:
    assert describe(nn.Sequential(nn.Embedding(7, 2)), torch.zeros(1, 3, dtype=torch.int64)) == [(0, 6)]
    bags = torch.zeros(2, 6, dtype=torch.int64), torch.tensor([[0, 4], [0, 1]])
    assert describe(Bags(), bags) == [(0, 6), (0, 0)]

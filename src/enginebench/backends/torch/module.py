"""The module of a `torch` artifact, made ready for any PyTorch engine: folded, placed, laid out and cast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace

from enginebench.backends.torch.cast import cast_module
from enginebench.backends.torch.fold import fold_batch_norms
from enginebench.core.errors import ModelError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.names import known
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.core.shapes import concrete_shape

if TYPE_CHECKING:
    from enginebench.core.protocols import ModuleLoader

# Two samples show a norm that was folded along the wrong axis; 256 take resnet50 half a minute on four cores.
CHECK_BATCH = 2


def load_ready_module(
    artifact: Artifact, spec: EngineSpec, options: Mapping[str, str], loader: ModuleLoader | None, device: str = "cpu"
) -> Any:
    """The module on `device`, as the options and the precision of the request want it.

    Raises:
        UsageError: the backend was opened without a loader.
        ModelError: the loader returned something else than a module, or its batch norms cannot be folded.
    """
    module = load_module(artifact, loader)
    if options["fold_bn"] == "1":
        module = fold_batch_norms(module, artifact.model, make_checks(artifact.inputs, spec.batch))
    module = module.to(torch.device(device))
    if options["channels_last"] == "1":
        module = module.to(memory_format=torch.channels_last)
    return cast_module(module, artifact, known(spec.precision), autocast=options["cast"] == "autocast")


def make_checks(specs: Sequence[TensorSpec], batch: int) -> Iterator[list[Any]]:
    """Tensors for the inputs: first with few samples, then with all, for a module that takes no other number."""
    shapes = [concrete_shape(spec, batch) for spec in specs]
    if all(shape[:1] == (batch,) for shape in shapes):
        yield _make_tensors([replace(s, shape=(min(batch, CHECK_BATCH), *s.shape[1:])) for s in specs], batch)
    yield _make_tensors(specs, batch)


def _make_tensors(specs: Sequence[TensorSpec], batch: int) -> list[Any]:
    return [torch.from_numpy(array) for array in random_feeds(specs, batch, seed=0).values()]


def load_module(artifact: Artifact, loader: ModuleLoader | None) -> Any:
    """The module of a `torch` artifact, in inference mode.

    Raises:
        UsageError: the backend was opened without a loader.
        ModelError: the loader returned something else than a module.
    """
    if loader is None:
        raise UsageError(f"{artifact.model} is a torch artifact; open the backend with a module loader")
    module = loader(artifact)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"the loader of {artifact.model} returned a {type(module).__name__}, not a torch.nn.Module")
    return module.eval()

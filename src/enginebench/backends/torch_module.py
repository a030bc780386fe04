"""The module of a `torch` artefact, made ready for any PyTorch engine: folded, placed, laid out and cast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from enginebench.backends.request import FORCE, Option
from enginebench.backends.torch_cast import CAST, cast_module
from enginebench.backends.torch_fold import FOLD_BN, fold_batch_norms
from enginebench.core.errors import ModelError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.records import Artifact, EngineSpec

if TYPE_CHECKING:
    from enginebench.core.protocols import ModuleLoader

MODULE_OPTIONS = {
    "channels_last": Option(default="0", choices=("0", "1"), meaning="images and weights with their channels last"),
    "fold_bn": FOLD_BN,
    "cast": CAST,
}
# Two samples show a norm that was folded along the wrong axis; a large batch would only take longer.
CHECK_BATCH = 2
CPU_OPTIONS = {**MODULE_OPTIONS, "force": FORCE}


def load_ready_module(
    artifact: Artifact, spec: EngineSpec, options: Mapping[str, str], loader: ModuleLoader | None, device: str = "cpu"
) -> Any:
    """The module on `device`, as the options and the precision of the request want it.

    Raises:
        UsageError: the backend was opened without a loader.
        ModelError: what the loader returned is no module, or its batch norms cannot be folded.
    """
    module = load_module(artifact, loader)
    if options["fold_bn"] == "1":
        feeds = random_feeds(artifact.inputs, min(spec.batch, CHECK_BATCH), seed=0)
        module = fold_batch_norms(module, artifact.model, [torch.from_numpy(feeds[s.name]) for s in artifact.inputs])
    module = module.to(torch.device(device))
    if options["channels_last"] == "1":
        module = module.to(memory_format=torch.channels_last)
    return cast_module(module, artifact, spec.precision, autocast=options["cast"] == "autocast")


def load_module(artifact: Artifact, loader: ModuleLoader | None) -> Any:
    """The module of a `torch` artefact, in inference mode.

    Raises:
        UsageError: the backend was opened without a loader.
        ModelError: what the loader returned is no module.
    """
    if loader is None:
        raise UsageError(f"{artifact.model} is a torch artefact; open the backend with a module loader")
    module = loader(artifact)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(f"the loader of {artifact.model} returned a {type(module).__name__}, not a torch.nn.Module")
    return module.eval()

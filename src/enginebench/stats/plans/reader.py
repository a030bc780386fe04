"""Reads what TensorRT's inspector and profiler leave, for engines, which may not read files themselves."""

import math
from collections import Counter
from pathlib import Path

from enginebench.core.precisions import REORDER, UNKNOWN
from enginebench.core.records import AheadOfTime, LayerProfile, LayerTime, PlannedLayer
from enginebench.stats.layer_records import EngineLayer
from enginebench.stats.plans.layers import is_product, parse_layers
from enginebench.stats.plans.profile import parse_profile

NS_PER_MS = 1_000_000
# A share below this is what sums of a profile's rounded times leave over, and no layer.
ROUNDING = 1e-9


class PlanFiles:
    """The reader that `open_for` hands in (`engines.abilities.PlanReader`)."""

    def read_precision(self, layers: Path, profile: Path) -> dict[str, float] | None:
        """Shares of time by precision, which add up to 1; reformats and casts, which compute nothing, under `reorder`.

        Layers whose precision the engine does not say are `unknown`, and those of the profile that it does not know.
        """
        document = parse_layers(layers, profile=parse_profile(profile))
        if document.shares_of != "time":
            return None
        shares: dict[str, float] = {}
        for layer in document.layers:
            shares[layer.counted_as] = shares.get(layer.counted_as, 0.0) + (layer.share or 0.0)
        shares[UNKNOWN] = shares.get(UNKNOWN, 0.0) + max(0.0, 1 - math.fsum(shares.values()))
        ranked = sorted(shares.items(), key=lambda item: -item[1])
        return {name: share for name, share in ranked if share > ROUNDING}

    def read_layers(self, layers: Path, profile: Path) -> LayerProfile:
        """The engine's layers in their order, those that the profile has times of; reformats and casts as `reorder`."""
        timed = parse_profile(profile)
        document = parse_layers(layers, profile=timed)
        return LayerProfile(
            layers=tuple(_time_layer(layer, layer.average_ms) for layer in document.layers if layer.average_ms),
            runs=timed.count or 1,
            profiler="trtexec's layer profile",
            notes=document.notes,
        )

    def read_ahead(self, layers: Path) -> AheadOfTime:
        """The layers of a plan that has not run, and how many of those that multiply there are in each precision."""
        found = parse_layers(layers).layers
        products = Counter(_name_input(layer) for layer in found if is_product(layer))
        return AheadOfTime(
            products=dict(products.most_common()),
            layers=tuple(
                PlannedLayer(name=n.name, kind=n.type, precision=_name_input(n), onnx_nodes=n.onnx_nodes) for n in found
            ),
        )


def _name_input(layer: EngineLayer) -> str:
    """The type of what goes into a layer that has not run: whether FP32 is multiplied in TF32, nothing says yet."""
    return layer.precision or layer.precision_in or UNKNOWN


def _time_layer(layer: EngineLayer, average_ms: float) -> LayerTime:
    precision = REORDER if layer.overhead else layer.precision
    return LayerTime(
        name=layer.name,
        mean_ns=average_ms * NS_PER_MS,
        precision=precision,
        kind=layer.type,
        onnx_nodes=layer.onnx_nodes,
    )

"""The precision that ran, by the runtime's own record, and the warnings where it is not the requested one.

A record is the fraction of time of each precision, and three more: "reorder" is time between types and layouts
(quantize, dequantize, cast, reorder), "other" is time on indices, shapes and truth values, "unknown" is time without a
recorded precision (generated code, nodes with graphs of their own, unknown names).
"""

from collections.abc import Mapping
from typing import get_args

from enginebench.core.precisions import OTHER, UNKNOWN
from enginebench.core.records import Precision, ResultWarning
from enginebench.core.warnings import make_warning

# Below half, a row that is named after a precision is mostly something else.
LOW_SHARE = 0.5
# Below a tenth, it is not that precision at all: what now takes a tenth of the time took less than a third in FP32,
# at the four times as many 8-bit as 32-bit products that an instruction holds. So most of the network is as it was.
ABSENT_SHARE = 0.1
# FP32 is a promise about every product. A hundredth is the least that the counters, in whole microseconds, can
# distinguish from none, and too little for a verdict on time to notice.
TRACE_SHARE = 0.01
# Shares below this are not spelt out.
SHOWN_SHARE = 0.005


def check_precision(
    requested: Precision | None,
    shares: Mapping[str, float] | None,
    device: str = "cpu",
    weights: Precision | None = None,
) -> tuple[Precision | None, tuple[ResultWarning, ...]]:
    """Return the precision that the configuration is named after, and the warnings about it.

    A configuration is relabelled where the record contradicts the requested precision: less than a tenth of the time in
    it, and more than half of the time known to be something else. FP32 is contradicted by a tenth of the time in
    anything shorter. Time without a recorded precision contradicts nothing; if it is half of the time, it proves
    nothing either. FP32 of a module that came quantized is contradicted by its weights: the time in short kernels of a
    small network lies around a tenth, now above and now below.

    Args:
        requested: the requested precision; None for a finished plan of unknown precision, which is named after the
            shortest format that took a tenth of the time, as it would be with the note beside it.
        shares: of time, by precision, "reorder", "other" and "unknown", as `effective_precision` of an engine gives
            them; None or empty where it keeps no record.
        weights: the eight-bit precision that most weights of the module are stored in; None: most have more bits.
        device: on which the configuration ran. GPUs shorten FP32 products to TF32 unless that is switched off.
    """
    if requested is None:
        return _name_unrequested(shares or {})
    if weights is not None and requested == "fp32":
        record = f"Requested fp32; most weights of the module are stored in {weights}."
        record += f" It ran {list_shares(shares)}." if shares else ""
        return weights, (make_warning("relabelled", record=record, ran=weights, asked=requested),)
    if not shares:  # FP32 is the default of an engine on a CPU; any other precision needs proof
        if requested == "fp32" and not device.startswith("cuda"):
            return requested, ()
        why = "the engine keeps no record of the precision that ran"
        return requested, (make_warning("unproved_precision", asked=requested, why=why),)
    ran = _find_ran(requested, shares)
    sentence = f"Requested {requested}; ran {list_shares(shares)}."
    if ran != requested:
        return ran, (make_warning("relabelled", record=sentence, ran=ran, asked=requested),)
    if shares.get(UNKNOWN, 0.0) >= LOW_SHARE:
        why = f"it ran {list_shares(shares)}, and the engine's record has no precision for most of the time"
        return requested, (make_warning("unproved_precision", asked=requested, why=why),)
    if not _is_low(requested, shares):
        return requested, ()
    return requested, (make_warning("low_effective_precision", record=sentence, asked=requested),)


def _is_low(named: Precision, shares: Mapping[str, float]) -> bool:
    return _sum_shorter(shares) >= TRACE_SHARE if named == "fp32" else shares.get(named, 0.0) < LOW_SHARE


def _name_unrequested(shares: Mapping[str, float]) -> tuple[Precision | None, tuple[ResultWarning, ...]]:
    fractions: dict[Precision, float] = {p: shares[p] for p in get_args(Precision) if p in shares}
    if not fractions or shares.get(UNKNOWN, 0.0) >= LOW_SHARE:
        return None, (make_warning("unproved_precision.plan"),)
    # TensorRT takes no shorter format than it was allowed: a tenth of the time in INT8 shows a plan built as INT8, even
    # beside a half in FP16. With less, it is named after the rest, as beside a note of INT8. A warning has the figures.
    ran = [p for p in fractions if fractions[p] >= ABSENT_SHARE]  # from the longest to the shortest
    named = ran[-1] if ran else max(fractions, key=lambda p: fractions[p])
    record = (
        f"Labelled {named} from its layers, since nothing says what it was built as (drift and report take "
        "--precision; a plan of enginebench build has a note): "
    )
    low = make_warning("low_effective_precision", record=f"{record}{list_shares(shares)}.", asked=named)
    return named, (low,) if _is_low(named, shares) else ()


def list_shares(shares: Mapping[str, float]) -> str:
    """Format the fractions of a record, largest first: "83% of the time in int8, 12% in fp32, 5% in reorder"."""
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    shown = [(name, share) for name, share in ranked if share >= SHOWN_SHARE]
    parts = [f"{100 * share:.0f}% in {('an unknown precision' if name == UNKNOWN else name)}" for name, share in shown]
    return ", ".join(parts).replace("% in", "% of the time in", 1)


def _find_ran(requested: Precision, shares: Mapping[str, float]) -> Precision:
    others: dict[Precision, float] = {p: shares[p] for p in get_args(Precision) if p in shares and p != requested}
    if requested == "fp32":
        if _sum_shorter(shares) < ABSENT_SHARE:
            return requested
        return max(others, key=lambda p: others[p])
    own, unknown = shares.get(requested, 0.0), shares.get(OTHER, 0.0) + shares.get(UNKNOWN, 0.0)
    if own >= ABSENT_SHARE or own + unknown >= LOW_SHARE or not others:
        return requested
    return max(others, key=lambda p: others[p])


def _sum_shorter(shares: Mapping[str, float]) -> float:
    return sum(shares.get(p, 0.0) for p in get_args(Precision) if p != "fp32")

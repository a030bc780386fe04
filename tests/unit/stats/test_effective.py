"""The judge of precision: what contradicts a label, what is only doubt, and what proves nothing."""

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebench.core.records import Precision
from enginebench.stats.effective import check_precision, list_shares


@pytest.mark.parametrize(
    ("requested", "shares", "ran", "code"),
    [
        ("int8", {"int8": 0.83, "fp32": 0.12, "reorder": 0.05}, "int8", None),
        ("int8", {"int8": 0.5, "fp32": 0.5}, "int8", None),
        ("int8", {"int8": 0.49, "fp32": 0.51}, "int8", "low_effective_precision"),
        ("int8", {"fp32": 0.45, "int8": 0.1, "reorder": 0.45}, "int8", "low_effective_precision"),
        ("int8", {"fp32": 0.84, "reorder": 0.16}, "fp32", "relabelled"),
        ("int8", {"fp32": 0.4, "reorder": 0.55, "int8": 0.05}, "fp32", "relabelled"),
        ("int8", {"fp16": 0.6, "fp32": 0.39, "int8": 0.01}, "fp16", "relabelled"),
        ("bf16", {"fp32": 1.0}, "fp32", "relabelled"),
        ("fp16", {"bf16": 0.9, "fp32": 0.1}, "bf16", "relabelled"),
        # Of a finished plan nobody need know what was asked: then the record names it, or nothing does.
        (None, {"fp16": 0.9, "fp32": 0.04, "other": 0.06}, "fp16", None),
        (None, {"fp32": 0.3, "int8": 0.2, "fp16": 0.5}, "int8", "low_effective_precision"),
        (None, {"fp32": 0.91, "fp16": 0.09}, "fp32", "low_effective_precision"),
        (None, {"fp16": 0.05, "other": 0.95}, "fp16", "low_effective_precision"),
        (None, {"fp16": 0.4, "unknown": 0.6}, None, "unproved_precision"),
        (None, {"other": 1.0}, None, "unproved_precision"),
        (None, None, None, "unproved_precision"),
        # Code without types contradicts nothing, and proves nothing.
        ("bf16", {"other": 0.7, "fp32": 0.3}, "bf16", "low_effective_precision"),
        ("bf16", {"bf16": 0.3, "other": 0.7}, "bf16", "low_effective_precision"),
        ("fp32", {"fp32": 0.04, "unknown": 0.96}, "fp32", "unproved_precision"),
        ("int8", {"int8": 0.04, "unknown": 0.96}, "int8", "unproved_precision"),
        ("int8", {"fp32": 0.5, "unknown": 0.5}, "int8", "unproved_precision"),
        ("int8", {"fp32": 0.52, "unknown": 0.48}, "fp32", "relabelled"),
        ("fp32", {"fp32": 0.51, "unknown": 0.49}, "fp32", None),
        ("fp32", {"fp32": 0.1, "unknown": 0.6, "tf32": 0.3}, "tf32", "relabelled"),
        ("fp32", {"other": 1.0}, "fp32", None),
        ("fp32", {"int32": 0.5, "uint8": 0.5}, "fp32", None),
        ("int8", {"reorder": 1.0}, "int8", "low_effective_precision"),
        ("fp32", {"fp32": 0.7, "other": 0.3}, "fp32", None),
        ("fp32", {"fp32": 0.995, "bf16": 0.005}, "fp32", None),
        ("fp32", {"fp32": 0.95, "bf16": 0.05}, "fp32", "low_effective_precision"),
        ("fp32", {"fp32": 0.8, "bf16": 0.2}, "bf16", "relabelled"),
        ("fp32", {"tf32": 0.9, "fp32": 0.1}, "tf32", "relabelled"),
        ("tf32", {"tf32": 0.9, "fp32": 0.1}, "tf32", None),
        ("fp32", None, "fp32", None),
        ("int8", None, "int8", "unproved_precision"),
        ("int8", {}, "int8", "unproved_precision"),
    ],
)
def test_labels_are_held_to_the_record(requested: Any, shares: Any, ran: str, code: str | None) -> None:
    found, warnings = check_precision(requested, shares)
    assert found == ran
    assert [c.code for c in warnings] == ([code] if code else [])
    assert all(c.advice for c in warnings)


def test_a_label_that_nobody_requested_says_how_to_give_one() -> None:
    ran, (warning,) = check_precision(None, {"fp32": 0.7, "int8": 0.3}, "cuda:0")
    assert ran == "int8" and "drift and report take --precision" in warning.message
    assert warning.message.endswith(": 70% of the time in fp32, 30% in int8.")


def test_the_shares_are_listed_largest_first() -> None:
    shares = {"reorder": 0.05, "int8": 0.83, "fp32": 0.117, "other": 0.003}
    assert list_shares(shares) == "83% of the time in int8, 12% in fp32, 5% in reorder"


def test_fp32_without_a_record_is_warned_about_where_products_are_shortened() -> None:
    for shares in (None, {}):
        ran, (warning,) = check_precision("fp32", shares, "cuda:0")
        assert (ran, warning.code) == ("fp32", "unproved_precision")
        assert check_precision("fp32", shares, "cpu") == ("fp32", ())


def test_what_the_record_does_not_know_and_another_precision_are_said() -> None:
    _, (warning,) = check_precision("fp32", {"unknown": 0.96, "fp32": 0.04})
    assert warning.message.startswith(
        "requested fp32, not verified: it ran 96% of the time in an unknown precision, 4% in fp32, and the engine's"
    )
    _, (warning,) = check_precision("int8", {"fp32": 0.9, "reorder": 0.1})
    assert warning.message == "Requested int8; ran 90% of the time in fp32, 10% in reorder. Reported as fp32"


@pytest.mark.parametrize("shares", [None, {"fp32": 0.93, "int8": 0.07}, {"fp32": 0.8, "int8": 0.2}, {"other": 1.0}])
def test_a_module_that_comes_quantized_is_named_after_its_weights_in_every_run(shares: Any) -> None:
    ran, (warning,) = check_precision("fp32", shares, weights="int8")
    assert (ran, warning.code) == ("int8", "relabelled") and "stored in int8" in warning.message
    assert check_precision("bf16", {"bf16": 1.0}, weights="int8") == ("bf16", ())


@given(
    st.sampled_from(get_args(Precision)),
    st.dictionaries(
        st.sampled_from([*get_args(Precision), "other", "reorder", "unknown"]), st.floats(0.001, 1), min_size=1
    ),
)
@settings(max_examples=200)
def test_a_configuration_is_named_after_what_it_asked_or_what_the_record_holds(
    requested: Any, raw: dict[str, float]
) -> None:
    shares = {name: share / sum(raw.values()) for name, share in raw.items()}
    ran, warnings = check_precision(requested, shares)
    assert ran == requested or shares[ran] > 0
    assert (ran != requested) == any(c.code == "relabelled" for c in warnings)

"""Damaged artifacts: an answer or a ParseError, never anything else. `benchmarks/fuzz_trtexec.py` runs for longer."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enginebench.core.errors import ParseError
from trtexec_mutations import list_targets_once, read_layers_file, read_log_file, read_profile_file, read_times, try_one

NAMES = ("times", "log", "profile", "layers", "gzip")
# Seeds that once ended in another exception, by target. Found by benchmarks/fuzz_trtexec.py.
FOUND: list[tuple[str, int]] = [
    ("times", 30995),  # bytes that are no UTF-8
    ("profile", 15116),  # a whole number that no float holds
]

FAST = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_artifacts(name: str) -> None:
    assert name in list_targets_once()
    for seed in range(150):
        try_one(name, seed)


@pytest.mark.parametrize(("name", "seed"), FOUND)
def test_seeds_that_were_found(name: str, seed: int) -> None:
    try_one(name, seed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ("latencyMs", "times", "name", "timeMs", "averageMs", "Layers", "Name", "Inputs", "count", "s")
            )
            | st.text(max_size=4),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@FAST
@given(JSON)
def test_any_json(document: object) -> None:
    import json

    data = json.dumps(document).encode()
    for read in (read_times, read_profile_file, read_layers_file):
        try:
            read(data)
        except ParseError as error:
            assert "fuzzed" in str(error)


@FAST
@given(st.text(max_size=60), st.integers(-(10**30), 10**30), st.floats())
def test_any_words_inside_a_log(text: str, number: int, value: float) -> None:
    lines = [f"Timing trace has {number} queries over {value} s", f"Batch: {text}", f"Throughput: {value} qps"]
    lines += ["=== Inference Options ===", f"Inference Streams: {number}", f"Created engine with size: {number} MiB"]
    log = "".join(f"[11/21/2026-01:37:39] [I] {line}\n" for line in lines)
    read_log_file((f"&&&& RUNNING TensorRT.trtexec [TensorRT v{number}] # {text}\n" + log).encode("utf-8", "replace"))

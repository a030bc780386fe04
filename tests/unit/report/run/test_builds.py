"""What a report says of several builds of one engine."""

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.records import Build, Result
from enginebench.report.run.builds import make_builds, state_builds
from enginebench.report.run.rows import RunDocument, describe_run
from reports import write_markdown, write_page
from samples import make_result


def make_document(between: float, hashes: str, processes: int = 3) -> RunDocument:
    """A run with a row that was built once, and one that was built as often as there are letters."""
    rng = np.random.default_rng(1)
    factors = np.exp(between * rng.standard_normal(len(hashes)))
    base, cand = make_result("pytorch"), make_result("openvino")
    assert base.measurements and cand.measurements
    first = cand.measurements[0]
    measurements = tuple(
        replace(
            first,
            latency_ns=[round(x * factors[i % len(hashes)] * (1 + 0.001 * (i % 5))) for x in first.latency_ns],
            repetition=i,
            build=i % len(hashes),
        )
        for i in range(processes * len(hashes))
    )
    artifact = cand.artifacts[-1] if cand.artifacts else None
    builds = tuple(
        Build(artifact=artifact, build_s=12.0, fingerprint=letter, max_abs_diff=1e-4)  # type: ignore[arg-type]
        for letter in hashes
    )
    built: Result = replace(cand, measurements=measurements, builds=builds)
    return describe_run(model="m", machine=None, spec={}, results=[base, built])


def test_builds_that_differ_are_told_with_interval_cost_and_gain() -> None:
    document = make_document(0.05, "abcdef")
    first, second = state_builds(document.rows)
    assert "its 6 builds differ: " in first and "between processes of one build" in first
    assert second.startswith("The best of 6 gains") and "the 5 builds more cost 60.0 s, which it saves" in second
    (table,) = make_builds(document.rows)
    texts = {column.title: column.text(table.rows[0]) for column in table.columns}  # type: ignore[union-attr]
    assert (texts["builds"], texts["different"]) == ("6", "6") and " to " in texts["p50 ms"]


def test_identical_builds_are_recognised() -> None:
    (sentence,) = state_builds(make_document(0.0, "aaaa").rows)
    assert sentence.endswith("all 4 builds are identical by their hash.")


def test_what_is_not_shown_is_not_claimed() -> None:
    first, second = state_builds(make_document(0.0, "abab").rows)
    assert "do not differ significantly" in first and "did not gain significantly" in second and "saves" not in second
    (sentence,) = state_builds(make_document(0.0, "ab", processes=1).rows)
    assert "inconclusive" in sentence


@pytest.mark.parametrize("render", [write_markdown, write_page])
def test_page_and_markdown_have_the_section_only_where_there_are_builds(render) -> None:  # type: ignore[no-untyped-def]
    text = render(make_document(0.05, "abcd"))
    assert "Builds" in text and "best gains" in text and "never compare one build with one build" in text
    plain = describe_run(model="m", machine=None, spec={}, results=[make_result("pytorch"), make_result("ort")])
    assert "best gains" not in render(plain)

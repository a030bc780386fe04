"""Which row of a run is delivered."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.features.deliver.verb import choose_row
from enginebench.features.deliver.writing import explain_refusal
from enginebench.runs.folder import read_results
from enginebench.runs.reporting import describe_stored
from stored_run import write_final


@pytest.mark.parametrize(("winner", "challenger_ms"), [("default", 4.7), ("challenger", 3.0)])
def test_of_the_final_of_a_search_what_the_search_says_to_take(
    tmp_path: Path, winner: str, challenger_ms: float
) -> None:
    record, results = read_results(write_final(tmp_path / "t", winner, challenger_ms))
    document = describe_stored(record, results)
    assert choose_row(document, results, None)[0].id == winner
    assert choose_row(document, results, "challenger")[0].id == "challenger"


@pytest.mark.parametrize("lose", [False, True])
def test_of_a_search_that_named_no_winner_none(tmp_path: Path, lose: bool) -> None:
    root = write_final(tmp_path / "t", None)
    if lose:
        (root / "tune.json").unlink()
    record, results = read_results(root)
    with pytest.raises(UsageError, match=r"the search named no winner.*continue it with --resume"):
        choose_row(describe_stored(record, results), results, None)


def test_what_a_bundle_does_not_do_is_refused(tmp_path: Path) -> None:
    result = read_results(write_final(tmp_path / "t", None))[1][0]
    pipelined = replace(result, measure=replace(result.measure, scope="pipelined"))
    assert "scope pipelined overlaps them" in (explain_refusal(pipelined) or "") and not explain_refusal(result)
    engine = replace(result.engine, backend="pytorch-compile", precision="int8", recipe="pt2e")
    assert "torchao quantized its module" in (explain_refusal(replace(result, engine=engine)) or "")

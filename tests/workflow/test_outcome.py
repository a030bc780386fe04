"""How a run ends: with which error, or with none."""

from __future__ import annotations

import pytest

from enginebench.core.errors import BackendUnavailable, MeasurementError
from enginebench.workflow.campaign import judge_outcome
from report.samples import make_result


def test_a_machine_that_can_run_no_row_lacks_an_engine() -> None:
    rows = [make_result(e, status="skipped", reason="there is no GPU") for e in ("pytorch", "ort")]
    with pytest.raises(BackendUnavailable, match=r"no row can run here: there is no GPU$") as caught:
        judge_outcome(rows)
    assert caught.value.exit_code == 3


def test_a_row_that_failed_is_a_failure() -> None:
    rows = [make_result(status="failed", reason="it died"), make_result("ort", status="skipped", reason="no GPU")]
    with pytest.raises(MeasurementError, match="it died"):
        judge_outcome(rows)


def test_a_row_alone_and_a_baseline_with_another_are_fine() -> None:
    judge_outcome([make_result()])
    judge_outcome([make_result(), make_result("ort"), make_result("openvino", status="failed", reason="it died")])

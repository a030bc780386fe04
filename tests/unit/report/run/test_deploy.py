"""Which command deploys a run: of the recommended configuration, or of the best other one, with the reason."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.report.run.deploy import Delivery, Deployment, get_row_file, list_deploy, list_locating
from enginebench.report.run.rows import RunDocument, describe_run
from samples import make_drift, make_implausible, make_machine, make_result

AGREE = make_drift(1e-6)
REWRITTEN = "openvino reads its graph only rewritten"


def describe(*changed: str) -> RunDocument:
    """PyTorch, ORT and OpenVINO, each faster than the one before; outputs of those named changed."""
    gross = make_drift(9.0, passed=False, centred=0.1)
    drifts = {name: gross if name in changed else AGREE for name in ("ort", "openvino")}
    rows = [
        make_result(median_ms=10, seed=1),
        make_result("ort", median_ms=5, drift=drifts["ort"], seed=2),
        make_result("openvino", median_ms=2, drift=drifts["openvino"], seed=3),
    ]
    return describe_run(model="m", machine=make_machine(), spec={}, results=rows)


def deploy(document: RunDocument, **refused: str) -> list[str]:
    options = (("--allow-code", "my models:make"),)
    given = {row.id: Delivery(refusal=refused.get(row.engine), options=options) for row in document.rows}
    deployment = Deployment(folder="out/mel ä", out="ship-2", deliveries=given)
    return [text for notes in list_deploy(document, deployment) for _, text in notes.lines]


def test_the_command_of_the_recommended_configuration_names_the_code_it_needs() -> None:
    (command,) = deploy(describe())
    assert command == ("enginebench deliver 'out/mel ä' --row openvino-fp32 --allow-code 'my models:make' --out ship-2")


def test_where_the_first_is_refused_the_best_other_is_named_and_why() -> None:
    why, command = deploy(describe(), openvino=REWRITTEN)
    assert why == f"openvino fp32 cannot be delivered: {REWRITTEN}. The best that can: ort fp32"
    assert "--row ort-fp32" in command


def test_what_changes_the_outputs_is_no_other_choice() -> None:
    _, command = deploy(describe("ort"), openvino=REWRITTEN)
    assert "--row pytorch-fp32" in command


def test_what_skipped_its_work_is_no_other_choice() -> None:
    rows = [
        make_result(median_ms=10, seed=1),
        make_result("ort", median_ms=5, drift=AGREE, seed=2),
        make_implausible(make_result("openvino", median_ms=1, drift=AGREE, seed=3)),
    ]
    _, command = deploy(describe_run(model="m", machine=make_machine(), spec={}, results=rows), ort="no models")
    assert "--row pytorch-fp32" in command


def test_no_command_is_shown_where_nothing_is_left() -> None:
    assert deploy(describe("ort"), openvino=REWRITTEN, pytorch="its source is gone") == [
        f"openvino fp32 cannot be delivered: {REWRITTEN}. Nor can any other that may be taken"
    ]
    gone = dict.fromkeys(("pytorch", "ort", "openvino"), "no models")
    assert deploy(describe(), **gone) == ["no configuration can be delivered: no models"]


@pytest.mark.feature("locate")
@pytest.mark.parametrize(
    ("baseline", "beside"),
    [({}, "pytorch"), ({"outputs": "not_judged"}, "pytorch"), ({"outputs": "not_judged", "p50_ms": None}, "ort")],
)
def test_faults_are_located_beside_what_ran(baseline: dict[str, object], beside: str, tmp_path: Path) -> None:
    """A configuration beside itself is the last resort: not where the baseline ran and was not judged."""
    document = describe("ort")
    first, wrong, _ = sorted(document.rows, key=lambda row: ("pytorch", "ort", "openvino").index(row.engine))
    rows = [replace(first, **baseline), wrong]
    (tmp_path / "rows").mkdir()
    for row in rows:
        get_row_file(tmp_path, row).touch()
    (command,) = list_locating(replace(document, rows=rows), tmp_path, None)
    base = next(row for row in rows if row.engine == beside)
    files = [str(get_row_file(tmp_path, row)) for row in (base, wrong)]
    assert command == f"enginebench drift {files[0]} {files[1]} --locate"

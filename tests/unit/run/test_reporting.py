"""Reports from stored results alone: files, older schemas, folders of strangers, machines without the extra."""

import html
import json
import os
import re
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, ParseError
from enginebench.core.records import RESULT_SCHEMA, EngineSpec, LayerTime
from enginebench.core.store import encode
from enginebench.core.text import count_of
from enginebench.report.run.rows import RunDocument, describe_run, find_best_p99
from enginebench.runs.folder import FORMATS, RunFolder, check_inside, read_results
from enginebench.runs.reporting import describe_stored, explain_p99
from enginebench.stats.stages import STAGES, DeviceMedians, describe_stages
from enginebench.verbs.report import write_report
from processes import ROOT, Cli, environment
from samples import make_drift, make_result
from stored_run import make_results, write_final, write_run

STORED = sorted((ROOT / "tests" / "data").glob("result-*"))


@pytest.fixture(autouse=True)
def cached_bundle(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small stand-in for the chart bundle, which takes seconds to make; the browser tests use the real one."""
    monkeypatch.setattr("enginebench.runs.reporting.load_vega", lambda: "window.vegaEmbed = null;")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "ein läuf", make_results())


def test_every_file_of_a_run(run: Path) -> None:
    written = write_report(run, FORMATS)
    names = {path.name for path in written.paths}
    assert {"report.html", "report.md", "table.csv", "report.json"} <= names
    assert {"latency_hist.png", "percentiles.png", "per_layer_time.png", "speedup.png"} <= names
    assert all(path.is_file() and path.parent == run for path in written.paths)
    assert "](percentiles.png)" in (run / "report.md").read_text()
    assert json.loads((run / "report.json").read_text())["schema"] == "enginebench.run/1"


def test_stages_that_lie_in_the_folder_are_shown(run: Path) -> None:
    times = {name: [2_000_000] * 4 for name in STAGES}
    how = {"overlapped_per_s": 1.0, "decoders": 1, "lanes": 1, "images": "generated", "image_bytes": [1]}
    spec = EngineSpec(backend="ort", batch=4)
    document = describe_stages(model="m", engine=spec, stages_ns=times, device_ns={}, **how)  # type: ignore[arg-type]
    other = replace(document, engine="openvino", total_p50_ms=7.0)
    (run / "stages.json").write_bytes(encode(replace(document, others=(other,))))
    write_report(run, ("html", "md"))
    page, text = (run / "report.html").read_text(), (run / "report.md").read_text()
    assert all(f"{engine} fp32, batch 4, file to label" in page for engine in ("ort", "openvino"))
    assert "| resize, normalise | " in text and "| compute | " in text
    assert "| decode JPEG | 2.00 | 2.00 | 17% |" in text and "| from file to label | 12.0 | 7.00 |" in text
    given = {"device": "cuda:0", "takes_bytes": True, "device_times": DeviceMedians(h2d_ms=1, compute_ms=8, d2h_ms=1)}
    (run / "stages.json").write_bytes(encode(replace(document, **given)))
    write_report(run, ("md",))
    text = (run / "report.md").read_text()
    assert "| resize | " in text and "| normalise, compute (cuda:0) | " in text
    assert "copy in 1.00 ms (10%), compute 8.00 ms (80%), copy out 1.00 ms (10%)" in text
    (run / "stages.json").write_text("{}")
    with pytest.raises(ParseError, match=r"stages\.json"):
        write_report(run, ("html",))
    (run / "stages.json").unlink()
    (run / "stages-2.json").symlink_to(run / "run.json")
    with pytest.raises(ArtifactError, match="symbolic link"):
        write_report(run, ("html",))


@pytest.mark.parametrize(
    ("slow", "expected"), [(2, "GPU time 5.00 ms against 9.00, layer conv1 + relu1 2.00 ms against 4.00"), (20, "")]
)
@pytest.mark.feature("versions", "'GPU time")
def test_a_lower_p99_has_the_stage_and_the_layer_that_differ_most(slow: int, expected: str) -> None:
    """Layers meet by the operators that they compute; a fused one is held against its parts.

    What others did to a tail is no layer's work: a difference that is small beside that of the tails is no reason.
    """
    sides = (
        ("ort", 10, 9, (("conv1 + relu1", 4.0), ("conv2", 2.0))),
        ("pytorch", 11, 5, (("conv1", 1.0), ("relu1", 1.0), ("conv2", 1.9))),
    )
    results = []
    for name, ms, device_ms, layers in sides:
        made = make_result(name, drift=make_drift(1e-6))
        times = [ms * 1_000_000 * (slow if name == "ort" and i % 25 == 0 else 1) for i in range(200)]
        more = {"latency_ns": times, "device_ns": [device_ms * 1_000_000] * 200, "enqueue_ns": [1000] * 200}
        timed = tuple(replace(measured, **more) for measured in made.measurements)
        profile = tuple(LayerTime(name=layer, mean_ns=1e6 * mean) for layer, mean in layers)
        results.append(replace(made, measurements=timed, layers=profile))
    document = describe_run(model="m", machine=None, spec={}, results=results)
    (reason,) = explain_p99(document, results).values()
    assert reason == expected
    single = [replace(row, processes=1) for row in document.rows]
    assert find_best_p99(single[0], single) is None, "one trial says nothing of another one's tail"


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.name)
def test_results_of_every_earlier_schema_still_render(stored: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "rows").mkdir(parents=True)
    for path in (*stored.glob("*.json"), *stored.glob("rows/*.json")):
        (copy / path.relative_to(stored)).write_bytes(path.read_bytes())
    written = write_report(copy, ("html", "md", "csv", "json"))
    assert len(written.paths) == 4
    page = (copy / "report.html").read_text()
    assert re.search(r'<dt>USE</dt>\n<dd class="answer">(ort int8 \(cpu\)|openvino int8 \(nncf\)) ', page)
    table = (copy / "table.csv").read_text().splitlines()
    assert len(table) == 7


def test_there_is_a_stored_run_of_this_schema() -> None:
    assert [path.name for path in STORED][-1] == RESULT_SCHEMA.partition(".")[2].replace("/", "-")


@pytest.mark.parametrize("name", ["../outside", "a/b", "../../x", "/etc/passwd", "x\0y"])
def test_ids_that_lead_out_of_the_folder_are_refused(run: Path, name: str) -> None:
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"rows": [name]}))
    with pytest.raises(ArtifactError, match=r"run\.json|leads out"):
        read_results(run)


def test_links_in_the_folder_are_refused_and_a_pipe_is_not_waited_for(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    row = next((run / "rows").glob("ort-int8*"))
    row.rename(secret)
    row.symlink_to(secret)
    with pytest.raises(ArtifactError, match="symbolic link"):
        write_report(run, ("md", "csv"))
    row.unlink()
    os.mkfifo(row)
    with pytest.raises(ArtifactError, match="not a plain file"):
        read_results(run)
    row.unlink()
    secret.rename(row)
    (run / "rows").rename(tmp_path / "rows elsewhere")
    (run / "rows").symlink_to(tmp_path / "rows elsewhere")
    with pytest.raises(ArtifactError, match="symbolic link"):
        write_report(run, ("md",))


def test_the_folder_itself_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run)
    assert len(read_results(tmp_path / "latest")[1]) == 6
    check_inside(tmp_path / "latest", tmp_path / "latest" / "run.json")


def test_a_link_where_a_report_goes_is_replaced_not_followed(run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    for name in ("report.html", "report.md", "table.csv", "speedup.png"):
        (run / name).symlink_to(victim)
    write_report(run, ("html", "md", "csv", "png"))
    assert victim.read_text() == "precious"
    assert not (run / "report.html").is_symlink()


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_folder_that_cannot_be_written(run: Path) -> None:
    run.chmod(0o500)
    with pytest.raises(ArtifactError, match="cannot write"):
        write_report(run, ("md",))


def describe_folder(root: Path) -> RunDocument:
    return describe_stored(*read_results(root))


@pytest.mark.parametrize(("winner", "challenger_ms"), [("default", 4.7), ("challenger", 3.0)])
def test_the_final_of_a_search_recommends_what_the_search_says_to_take(tmp_path, winner, challenger_ms) -> None:
    root = write_final(tmp_path / "t", winner, challenger_ms)
    record, results = read_results(root)
    document = describe_stored(record, results)
    assert (document.recommended.id, document.recommended_by) == (winner, "search")  # type: ignore[union-attr]
    head = document.headline
    assert head is not None and (head.id, head.state, head.ratio, head.tied_with) == (winner, "searched", None, ())
    assert {row.baseline for row in document.rows} == {winner} and document.rows[0].id == winner
    RunFolder(root).write_record(replace(record, notes=("left out by default: int8@pt2e",), winner=None))
    write_report(root, ("html", "md", "json"))
    for name in ("report.html", "report.md"):
        text = (root / name).read_text()
        assert "left out by default: int8@pt2e" in text
        assert "as reported by the search that measured these" in text and "USE" in text
    assert json.loads((root / "report.json").read_text())["recommended"]["id"] == winner
    assert json.loads((root / "run.json").read_text())["winner"] is None, "its own document says it"


@pytest.mark.parametrize("how", ["none", "lost", "failed"])
def test_a_search_that_named_no_winner_recommends_none(tmp_path: Path, how: str) -> None:
    root = write_final(tmp_path / "t", "default" if how == "failed" else None)
    if how == "failed":
        winner = next(row for row in read_results(root)[1] if row.id == "default")
        RunFolder(root).write_result(replace(winner, status="failed", reason="died"))
    if how == "lost":
        (root / "tune.json").unlink()
    document = describe_folder(root)
    assert document.recommended is None


@pytest.mark.parametrize("lost", [["openvino-int8@nncf-b1"], ["ort-fp32-b1", "openvino-int8@nncf-b1"]])
def test_configurations_of_which_nothing_is_stored_are_named(cli: Cli, run: Path, lost: list[str]) -> None:
    assert describe_folder(run).missing == ()
    for name in lost:
        (run / "rows" / f"{name}.json").unlink()
    done = cli("report", run, "--format", "html,md,json", env=environment(run, draws=True))
    said = f"{count_of(len(lost), 'configurations')} without results, which could change this: {', '.join(lost)}."
    assert said in " ".join(done.stdout.split())
    assert said in html.unescape((run / "report.html").read_text())
    assert said in html.unescape((run / "report.md").read_text()).replace("\\", "")
    assert json.loads((run / "report.json").read_text())["missing"] == lost

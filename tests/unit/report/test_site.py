"""The site of stored runs: what is in it, what leads where, and that nothing in a stored run leads out of it."""

import html.parser
import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import Gpu
from enginebench.core.store import read_result
from enginebench.report.site import PARQUET, make_entry
from enginebench.runs.folder import RunFolder
from enginebench.runs.site import write_site
from processes import Cli
from samples import make_machine, make_run
from stored_run import EVIL, make_results, write_run


class Links(html.parser.HTMLParser):
    """The addresses of a page, and its rows by the file of their samples."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("href", "src") and value]


def test_a_site_has_every_run_its_samples_and_an_index(tmp_path: Path) -> None:
    home, out = tmp_path / "results", tmp_path / "site"
    runs = [write_run(home / "a" / "resnet 18", make_results()), write_run(home / "b" / "resnet 18", make_results())]
    (home / "elsewhere").symlink_to(runs[0])  # counted once
    site = write_site(home, out)
    # Six configurations each, of which one was skipped.
    assert (site.runs, site.configurations, site.unread) == (2, 10, ())
    page = Links(site.index)
    targets = [address for address in page.addresses if not address.startswith("#")]
    assert len([name for name in targets if name.endswith(".json")]) == 10
    for name in targets:
        assert (out / name).resolve().is_relative_to(out.resolve()) and (out / name).is_file(), name
    stored = [read_result(out / name) for name in targets if name.endswith(".json")]
    assert "skipped" not in {result.status for result in stored}, "one that failed is listed, and has no figures"
    raw = stored[0]
    assert len(raw.measurements) == 6 and len(raw.measurements[0].latency_ns) == 40
    text = site.index.read_text("utf-8")
    assert "enginebench run resnet18 --engines pytorch,ort,openvino" in text and "int8 83%" in text
    above = Links(out / "runs" / next((out / "runs").iterdir()).name / "index.html")
    assert "../../index.html" in above.addresses
    table = pytest.importorskip("pyarrow.parquet").read_table(out / PARQUET)
    assert table.num_rows == 10 and {"p50_low_ms", "outputs", "command", "raw", "processor"} <= {*table.column_names}
    card = (out / "README.md").read_text("utf-8")
    assert card.startswith("---\nconfigs:") and PARQUET in card


@pytest.mark.parametrize(("device", "processor"), [("cpu", "Xeon"), ("cuda:0", "NVIDIA L4")])
def test_a_line_of_the_index_has_the_figures_of_its_row(device: str, processor: str) -> None:
    document = make_run(processes=6)
    gpu = Gpu(index=0, name="NVIDIA L4", driver="", memory_bytes=0)
    document = replace(document, machine=make_machine(gpus=(gpu,)))
    row = replace(
        next(row for row in document.rows if row.speedup and row.speedup.low != row.speedup.high),
        device=device,
        requested_precision="int8",
    )
    p50, speedup = row.p50_ms, row.speedup
    assert p50 and speedup and row.p99_ms and row.precision != "int8"
    line = make_entry(row, document, run="r", started_utc="2026-11-30", command="c", shapes="", raw="f.json").site
    assert (line.p50_ms, line.p50_low_ms, line.p50_high_ms) == (p50.value, p50.low, p50.high)
    assert (line.speedup, line.speedup_low, line.speedup_high) == (speedup.value, speedup.low, speedup.high)
    assert (line.p99_ms, line.precision, line.requested_precision) == (row.p99_ms.value, row.precision, "int8")
    assert (line.trials, line.samples, line.processor) == (6, row.n, processor) and row.n > 6


def test_nothing_in_a_stored_run_is_markup_or_leads_out(tmp_path: Path) -> None:
    home, out = tmp_path / "results", tmp_path / "site"
    hostile = home / EVIL.replace("/", "_")
    write_run(hostile, make_results(evil=True), command=("enginebench", "run", EVIL, "../../../etc/passwd"))
    plain = write_run(home / "plain", make_results())
    before = sorted(path for path in tmp_path.rglob("*") if out not in path.parents)
    write_site(home, out)
    for page in out.rglob("*.html"):
        seen = Links(page)
        assert "img" not in seen.tags and seen.tags.count("script") == Links(out / "runs/plain/index.html").tags.count(
            "script"
        )
        for address in seen.addresses:
            assert not address.startswith(("http:", "https:", "javascript:", "/", "file:")), address
            place = page.parent / address.partition("#")[0]
            assert place.resolve().is_relative_to(out.resolve()) and place.exists(), address
    assert [path for path in out.rglob("*") if "<" in path.name or ".." in path.name] == []
    assert sorted(path for path in tmp_path.rglob("*") if out not in path.parents and path != out) == before
    assert plain.is_dir()


def test_a_run_that_cannot_be_read_is_named_and_costs_no_other(tmp_path: Path) -> None:
    home = tmp_path / "results"
    write_run(home / "good", make_results())
    (home / "damaged").mkdir()
    (home / "damaged" / "run.json").write_text("{")
    torn = write_run(home / "torn", make_results())
    (row,) = torn.glob("rows/ort-fp32*.json")
    row.write_bytes(row.read_bytes()[:100])
    site = write_site(home, tmp_path / "site")
    assert site.runs == 1 and sorted(one.path for one in site.unread) == ["damaged", "torn"]
    text = site.index.read_text("utf-8")
    assert "damaged" in text and "Not read" in text


def test_odd_numbers_names_and_sizes_cost_no_other_run(tmp_path: Path) -> None:
    home = tmp_path / "results"
    write_run(home / "good", make_results())
    write_run(home / os.fsdecode(b"latin \xfc" + b"\n"), make_results())
    (home / os.fsdecode(b"torn \xfc")).mkdir()
    (home / os.fsdecode(b"torn \xfc") / "run.json").write_text("{")
    (row,) = write_run(home / "number", make_results()).glob("rows/ort-fp32*.json")
    document = json.loads(row.read_bytes())
    document["engine"]["threads"] = 2**63
    row.write_text(json.dumps(document))
    (home / "large").mkdir()
    with (home / "large" / "run.json").open("wb") as file:
        file.truncate(20 << 30)  # a sparse file: it takes no space
    site = write_site(home, tmp_path / "site")
    assert site.runs == 3 and [one.path for one in site.unread if "at most 512 MiB" in one.reason] == ["large"]
    assert "torn " in site.index.read_text("utf-8")


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("x")])
def test_a_folder_without_runs_has_no_site(make: object, tmp_path: Path) -> None:
    make(tmp_path / "results")  # type: ignore[operator]
    with pytest.raises(UsageError, match="results"):
        write_site(tmp_path / "results", tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_paths_of_the_machine_stay_out_of_the_samples(tmp_path: Path) -> None:
    results = make_results()
    folder = RunFolder(write_run(tmp_path / "results" / "r", results))
    stored = folder.read_result(results[0].id)
    assert stored is not None
    folder.write_result(replace(stored, reason=None))
    write_site(tmp_path / "results", tmp_path / "site")
    for path in (tmp_path / "site").rglob("*.json"):
        assert str(tmp_path) not in json.dumps(json.loads(path.read_text()))


def test_history_writes_the_site(cli: Cli, tmp_path: Path) -> None:
    write_run(tmp_path / "results" / "r", make_results())
    done = cli("history", tmp_path / "results", "--out", tmp_path / "h", "--site", tmp_path / "the site")
    assert done.returncode == 0, done.stderr
    assert "5 configurations of 1 run" in done.stderr and (tmp_path / "the site" / "index.html").is_file()

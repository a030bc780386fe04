"""Folders: which file is what, which belong together, and whether log and timing file agree."""

from pathlib import Path
from shlex import quote

import pytest

import trtexec_artifacts as made
from enginebench.core.errors import ParseError, UsageError
from enginebench.features.trtexec.folder import find_profile, is_trtexec_folder, read_compute_ms, read_folder
from enginebench.features.trtexec.verb import parse_layers, parse_log, parse_profile, parse_times
from trtexec_artifacts import fill


def test_stderr_belongs_to_its_stdout_and_says_why_a_run_ended(tmp_path: Path) -> None:
    (tmp_path / "a.stdout").write_text(made.make_log())
    (tmp_path / "a.stderr").write_text(f"{made.STAMP} [W] careful\n")
    (case,) = read_folder(tmp_path)
    assert case.log is not None and case.log.warnings == ("careful",)
    (tmp_path / "a.stdout").write_text(made.make_log(verdict=None).split("=== Device")[0])
    (tmp_path / "a.stderr").write_text("Cuda failure at common/sampleDevice.cpp:31: no CUDA-capable device\n")
    (tmp_path / "other.stderr").write_text("Cuda failure\n")
    (case,) = read_folder(tmp_path)
    assert case.log is not None and case.log.status == "failed" and "Cuda failure" in (case.log.status_reason or "")


def test_a_file_that_cannot_be_read_is_named_beside_the_others_and_beside_other_runs(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "times.json").write_bytes(made.make_times()[:1000])
    (case,) = read_folder(tmp_path)
    assert case.times is None and case.log is not None
    assert "byte 1000: found the end of the file" in case.unreadable[0]
    fill(tmp_path, "fp16")
    (tmp_path / "int8.times.json").write_bytes(made.make_times()[:1000])
    (tmp_path / "bf16.profile.json").write_bytes(b"")
    (tmp_path / "tf32.log").write_bytes(b"")
    unreadable = {case.name: case.unreadable for case in read_folder(tmp_path)}
    assert unreadable.pop("fp16") == ()
    assert "byte 1000" in unreadable["int8"][0] and "an empty file" in unreadable["bf16"][0]
    assert "an empty file" in unreadable["tf32"][0]


def test_no_folder_no_artifacts_and_nothing_readable_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        read_folder(tmp_path / "no")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "data.json").write_text("{}")
    assert not is_trtexec_folder(tmp_path)
    with pytest.raises(UsageError, match="holds neither"):
        read_folder(tmp_path)
    (tmp_path / "times.json").write_bytes(made.make_times()[:1000])
    with pytest.raises(ParseError, match="byte 1000"):
        read_folder(tmp_path)


def test_runs_of_ours_links_and_our_own_files_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path)
    assert is_trtexec_folder(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    assert not is_trtexec_folder(tmp_path)
    outside = fill(tmp_path / "outside")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "times.json").symlink_to(outside / "times.json")
    (inside / "report.json").write_text('{"schema": "enginebench.report-trtexec/1", "latencyMs": 1}')
    assert not is_trtexec_folder(inside)


def test_drift_beside_the_artifacts(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "output_diff.json").write_text('{"n": 3, "outputs": [{"name": "logits", "max_abs_diff": 0.5}]}')
    (case,) = read_folder(tmp_path)
    assert case.drift is not None and case.drift["n"] == 3
    for foreign, said in (
        ("[1]", "JSON object"),
        ('{"tensors": []}', "tensors"),
        ('{"outputs": [{"max": 1}]}', "outputs"),
    ):
        (tmp_path / "output_diff.json").write_text(foreign)
        assert said in read_folder(tmp_path)[0].unreadable[0]
        assert "output_diff.json" in read_folder(tmp_path)[0].unreadable[0]


def test_processes_in_folders_of_their_own_are_runs_of_the_folder_around_them(tmp_path: Path) -> None:
    for number in (0, 2, 10):
        fill(tmp_path / f"process-{number}")
    assert is_trtexec_folder(tmp_path)
    assert [case.name for case in read_folder(tmp_path)] == ["process-0", "process-2", "process-10"]


def test_the_compute_time_and_the_profile_that_lie_beside(tmp_path: Path) -> None:
    fill(tmp_path)
    from_times = read_compute_ms(tmp_path / "times.json")
    assert from_times == pytest.approx(read_compute_ms(tmp_path / "run.log"), rel=1e-5)
    (tmp_path / "build.log").write_text("&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # x\n")
    with pytest.raises(ParseError, match="no GPU compute time"):
        read_compute_ms(tmp_path / "build.log")
    fill(tmp_path, "fp16")
    assert find_profile(tmp_path / "fp16.layers.json") == tmp_path / "fp16.profile.json"
    assert find_profile(tmp_path / "int8.layers.json") is None


def test_every_run_of_a_log_that_lies_alone_is_a_case(tmp_path: Path) -> None:
    (tmp_path / "all.log").write_text(made.make_log(seed=0) + made.make_log(seed=1))
    cases = read_folder(tmp_path)
    assert [case.name for case in cases] == ["all 1", "all 2"]
    assert len({case.log.latency_ms.mean for case in cases if case.log and case.log.latency_ms}) == 2
    (tmp_path / "times.json").write_bytes(made.make_times(seed=1))
    (case,) = read_folder(tmp_path)
    assert case.contradictions == () and case.log and "the log holds 2 runs" in case.log.notes[-1]


KINDS = {
    "log": made.make_log().encode(),
    "times": made.make_times(),
    "profile": made.make_profile(),
    "layers": made.make_layers(),
}

READERS = {"log": parse_log, "times": parse_times, "profile": parse_profile, "layers": parse_layers}


@pytest.mark.parametrize("name", ["some.log", "a b.json", "x.txt"])
def test_a_file_of_another_kind_is_named_with_the_command_that_reads_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for kind, data in KINDS.items():
        path.write_bytes(data)
        for asked, read in READERS.items():
            if asked == kind:
                read(path)
                continue
            with pytest.raises(ParseError) as error:
                read(path)
            assert str(error.value).endswith(f"To read it: enginebench parse {kind} {quote(str(path))}")
    # What is damaged is explained as what it should be.
    path.write_bytes(KINDS["times"][:700])
    with pytest.raises(ParseError, match="byte 700"):
        parse_times(path)


def test_the_wrong_file_behind_an_option_is_named_too(tmp_path: Path) -> None:
    fill(tmp_path)
    for call in (
        lambda: parse_times(tmp_path / "times.json", log=tmp_path / "profile.json"),
        lambda: parse_layers(tmp_path / "layers.json", profile=tmp_path / "times.json"),
    ):
        with pytest.raises(ParseError, match=r"To read it: enginebench parse (profile|times) "):
            call()

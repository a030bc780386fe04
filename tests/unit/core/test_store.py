"""Files that are written: whole or not at all, and never in the place of a device."""

import os
import stat
from pathlib import Path

import msgspec
import pytest

from enginebench.core.errors import EngineBenchError, ParseError
from enginebench.core.store import encode, read_record, write_atomic
from enginebench.report.run.rows import RunDocument, describe_run
from samples import make_result


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, b"{}")
    assert os.read(reader, 10) == b"{}" and stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]
    os.close(reader)


def test_a_pipe_without_a_reader_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EngineBenchError, match="cannot write"):
        write_atomic(tmp_path / "pipe", b"{}")


def test_a_link_to_a_device_is_written_through(tmp_path: Path) -> None:
    link = tmp_path / "out.json"
    link.symlink_to(os.devnull)
    write_atomic(link, b"{}")
    assert link.is_symlink() and stat.S_ISCHR(link.stat().st_mode)


def test_a_damaged_field_of_a_group_is_named_as_it_is_in_the_file(tmp_path: Path) -> None:
    document = describe_run(model="m", machine=None, spec={}, results=[make_result()])
    stored = msgspec.json.decode(encode(document))
    stored["rows"][0]["p90_ms"] = "fast"
    path = tmp_path / "run-report.json"
    path.write_bytes(msgspec.json.encode(stored))
    with pytest.raises(ParseError, match=r"\$\.rows\[0\]\.p90_ms"):
        read_record(path, RunDocument)

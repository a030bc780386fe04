"""The user's inputs and shapes through whole commands: what was given is what is fed, timed, compared and told."""

from pathlib import Path

import numpy as np

from line_graphs import FAST, draw, read_rows, write_lines
from processes import Cli


def test_the_users_entries_are_compared_and_timed_and_their_shapes_told(cli: Cli, tmp_path: Path) -> None:
    """Three widths, five entries: all are compared, the first is timed; nothing is chosen, so no caveat says so."""
    path = write_lines(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    for i, (n, width) in enumerate(((2, 11), (1, 7), (2, 11))):
        np.savez(folder / f"{i}.npz", x=draw(n, width, i))
    done = cli("run", path, "--engines", "ort,openvino", "--inputs", folder, "--out", "r", *FAST)
    assert done.returncode == 0, done.stderr
    assert "1x3x8x11" in done.stdout.replace("\n", "")
    rows = read_rows(tmp_path / "r")
    assert len(rows) == 2 and len(list((tmp_path / "r" / "artefacts" / "samples").glob("*.npz"))) == 5
    for row in rows.values():
        assert row["shapes"] == {"x": [1, 3, 8, 11]} and row["drift"]["n"] == 5
        assert not any(c["code"] == "chosen_shapes" for artifact in row["artifacts"] for c in artifact["caveats"])
    assert {row["engine"]["backend"]: row["axes"] for row in rows.values()} == {"ort": "open", "openvino": "fixed"}
    for name in ("report.html", "report.md", "table.csv"):
        assert "1x3x8x11" in (tmp_path / "r" / name).read_text(encoding="utf-8"), name

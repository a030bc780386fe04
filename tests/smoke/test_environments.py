"""`env`, `--env`, `doctor --env` and `bisect` as a user types them."""

import json
from pathlib import Path

from environments import FAST, other
from processes import Cli

__all__ = ["other"]


def test_configurations_of_two_environments_stand_in_one_table(
    cli: Cli, tiny_onnx: Path, other: Path, tmp_path: Path
) -> None:
    engines = "fake:latency_us=50,fake:latency_us=50,env=two,ort:env=two"
    done = cli("run", tiny_onnx, "--engines", engines, "--env", f"two={other}", *FAST, "--out", "r", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["id"]: row for row in json.loads(done.stdout)["rows"]}
    here, there, absent = rows.values()
    assert (here["status"], there["status"], absent["status"]) == ("ok", "ok", "skipped")
    assert "environment two" in absent["reason"] and "onnxruntime" in absent["reason"]
    assert there["engine"].endswith(":env=two,latency_us=50") and there["outputs_agree"]
    stored = [json.loads((tmp_path / "r" / row["result"]).read_text()) for row in (here, there)]
    assert "scipy" in stored[0]["machine"]["versions"]
    assert set(stored[1]["machine"]["versions"]) == {"python", "numpy", "msgspec", "psutil"}
    orders = [[m["order"] for m in row["measurements"]] for row in stored]
    assert orders[0][0] < orders[1][0] < orders[1][1] < orders[0][1]
    assert (tmp_path / "r" / "artefacts" / "env-two").is_dir()

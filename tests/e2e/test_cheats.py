"""Engines that cheat, run as the plug-ins of somebody else: what `run` says of each, and whom it names."""

import json
from pathlib import Path
from typing import Any

import pytest

from cheats import save_stack, write_plugin
from processes import ROOT, environment, run_cli
from shared import make_once

# Kind -> the warning that finds it, and what its outputs are called.
FOUND = {
    "bind": ("implausible_time.bound", "same"),
    "bind-waits": ("implausible_time.outside_run", "same"),
    "queue": ("implausible_time.bound", "same"),
    "fetch": ("implausible_time.outside_run", "same"),
    "first-500": ("implausible_time.outputs", "same"),
    "cached-in-run": ("implausible_time.repeated", "same"),
    "cached-by-extremes": ("implausible_time.repeated", "same"),
    "cached-by-address": ("implausible_time.outputs", "same"),
    "first-of-bind": ("implausible_time.repeated", "same"),
    "skip-at-once": ("implausible_time.repeated", "same"),
    "skip-unfetched": ("implausible_time.repeated", "same"),
    "second-of-bind": ("implausible_time.repeated", "same"),
    "half-later": ("implausible_time.outputs", "same"),
    "skip-200": ("implausible_time.outputs", "same"),
    "half": ("", "changed"),
    "random": ("", "changed"),
}
ENGINES = ",".join(("ort", "cheat", *(f"cheat:kind={kind}" for kind in FOUND)))


def run_all(folder: Path) -> None:
    variables = environment(folder)
    variables["PYTHONPATH"] += f":{ROOT / 'tests' / 'helpers'}:{write_plugin(folder / 'plugin')}"
    few = ("--batch", "8", "--processes", "1", "--warmup", "5", "--iters", "500", "--json", "--out", "r")
    model = save_stack(folder / "stack.onnx")
    done = run_cli(folder, "run", model, "--engines", ENGINES, *few, code=0, env=variables)
    (folder / "printed.json").write_text(done.stdout)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The rows of one run, by kind, and the document under ""."""
    folder = make_once(tmp_path_factory, "cheats", run_all)
    document = json.loads((folder / "printed.json").read_text())
    found = {"": document}
    for row in document["rows"]:
        kind = row["engine"].partition("kind=")[2] or row["engine"]
        stored = json.loads((folder / "r" / "rows" / f"{row['id']}.json").read_text())
        templates = {warning["template"] for trial in stored["measurements"] for warning in trial["caveats"]}
        found[kind] = row | {"templates": templates}
    return found


@pytest.mark.parametrize("kind", FOUND)
def test_a_cheat_is_found(kind: str, rows: dict[str, dict[str, Any]]) -> None:
    template, outputs = FOUND[kind]
    assert rows[kind]["outputs"] == outputs
    assert (rows[kind]["validity"] == "implausible") == bool(template)
    assert not template or template in rows[kind]["templates"]


def test_an_honest_engine_is_named(rows: dict[str, dict[str, Any]]) -> None:
    document = rows[""]
    assert rows["cheat"]["validity"] != "implausible" != rows["ort"]["validity"]
    assert {
        document[name]["engine"] for name in ("fastest", "recommended", "headline") if "engine" in document[name]
    } <= {"ort", "cheat"}

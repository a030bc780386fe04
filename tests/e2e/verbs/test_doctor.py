"""The door: help without heavy imports, verbs as documented, exit codes, errors without tracebacks."""

import json

from processes import Cli


def test_doctor_names_every_engine_and_never_fails(cli: Cli) -> None:
    from enginebench.engines.registry import ENTRIES

    document = json.loads(cli("doctor", "--json").stdout)
    assert document["schema"] == "enginebench.doctor/1"
    assert [e["engine"] for e in document["engines"]] == list(ENTRIES)
    for engine in document["engines"]:
        assert engine["available"] or engine["reason"], engine
    shown = cli("doctor")
    assert shown.returncode == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80

"""What features bring is there under the name that they give, and what is gone with one is not missed."""

import subprocess
import sys
from importlib import import_module
from typing import Annotated, TypedDict, Unpack, get_args

import click
import pytest
from msgspec import structs

from enginebench.core.entry import Entry
from enginebench.core.features import Feature, Kind, Verb, find, find_each, list_features, list_names, list_verbs
from enginebench.options import Opt, list_options, verb
from enginebench.runs.child.jobs import Job
from processes import ROOT, environment

BROUGHT = [(kind, name) for kind in get_args(Kind) for name in dict.fromkeys(list_names(kind))]


def test_every_folder_is_found_those_of_a_higher_rank_later() -> None:
    folders = (ROOT / "src" / "enginebench" / "features").glob("*/__init__.py")
    found = list_features()
    assert list(found) == sorted({path.parent.name for path in folders}, key=lambda name: (found[name].rank, name))


@pytest.mark.parametrize(("kind", "name"), BROUGHT)
def test_what_is_brought_is_what_its_name_says(kind: Kind, name: str) -> None:
    for found in find_each(kind, name):
        if kind == "jobs":
            assert issubclass(found, Job) and found.__struct_config__.tag == name
        elif kind == "documents":
            assert name in [field.default for field in structs.fields(found) if field.name == "schema"]
        elif kind == "engines":
            assert isinstance(found, Entry) and found.name == name
        else:
            assert callable(found)


@pytest.mark.parametrize("verb", list_verbs(), ids=lambda verb: verb.name)
def test_a_verb_has_its_command(verb: Verb) -> None:
    command = import_module(verb.module).command
    assert isinstance(command, click.Command) and command.name == verb.name


def test_nothing_of_a_feature_is_imported_to_list_it() -> None:
    script = (
        "import sys; from enginebench.core.features import list_features; names = list_features()\n"
        "print({m for m in sys.modules if m.startswith('enginebench.features.')}\n"
        "      == {f'enginebench.features.{name}' for name in names}, 'msgspec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment(ROOT), capture_output=True, text=True)
    assert done.stdout.strip() == "True False"


def test_an_option_goes_with_its_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> object:
        class Options(TypedDict, total=False):
            own: Annotated[int, Opt("Ours.", 1)]
            theirs: Annotated[str | None, Opt("Of a feature.", feature="other")]

        @verb(Options)
        def act(**options: Unpack[Options]) -> Options:
            return options

        return list(list_options(Options)), act()

    assert make() == (["own"], {"own": 1, "theirs": None})
    monkeypatch.setattr("enginebench.options.list_features", lambda: {"other": Feature()})
    assert make() == (["own", "theirs"], {"own": 1, "theirs": None})
    assert find("functions", "nothing") is None

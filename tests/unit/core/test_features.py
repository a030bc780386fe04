"""What features bring is there under the name that they give, and what is gone with one is not missed."""

import subprocess
import sys
from importlib import import_module
from typing import Annotated, TypedDict, Unpack

import click
import pytest

from enginebench.core.features import Feature, Verb, find, list_features, list_verbs
from enginebench.options import Opt, list_options, verb
from processes import ROOT, environment


def test_every_folder_is_found_those_of_a_higher_rank_later() -> None:
    folders = (ROOT / "src" / "enginebench" / "features").glob("*/__init__.py")
    found = list_features()
    assert list(found) == sorted({path.parent.name for path in folders}, key=lambda name: (found[name].rank, name))


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

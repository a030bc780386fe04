"""What features bring is there under the name that they give, and what is gone with one is not missed."""

import inspect
import subprocess
import sys
from importlib import import_module
from typing import Annotated, Any, TypedDict, Unpack

import click
import pytest

from enginebench.core import features, hooks
from enginebench.core.errors import MissingDependency
from enginebench.core.features import (
    Feature,
    Verb,
    find,
    find_hook,
    find_hooks,
    list_features,
    list_verbs,
    require_hook,
)
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


BROUGHT = [(name, hook) for name, feature in list_features().items() for hook in feature.hooks]


@pytest.mark.parametrize(("name", "hook"), BROUGHT, ids=[f"{name} {hook.__name__}" for name, hook in BROUGHT])
def test_a_hook_has_a_function_that_takes_what_its_protocol_is_called_with(name: str, hook: Any) -> None:
    """The types are compared by the type checker, in `features/__init__.py`."""
    assert vars(hooks)[hook.__name__] is hook
    (function,) = find_hooks(hook, name)
    own = inspect.signature(function)
    _self, *called = inspect.signature(hook.__call__).parameters.values()
    kinds = inspect.Parameter
    plain = [p.name for p in called if p.kind is kinds.POSITIONAL_ONLY]
    own.bind(*plain, **{p.name: None for p in called if p.kind is kinds.KEYWORD_ONLY})
    assert hook.__doc__ and inspect.getdoc(hook) != inspect.getdoc(hooks.Protocol)


def test_functions_for_a_hook_come_by_rank_and_one_that_nobody_has_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {"json": "dumps", "re": "escape", "math": "sqrt"}
    made = {name: Feature(hooks={hooks.RunFinished: f"it:{modules[name]}"}) for name in ("re", "json")}
    monkeypatch.setattr(features, "list_features", lambda: made)
    monkeypatch.setattr(features, "import_module", lambda name: import_module(name.split(".")[-2]))
    assert [function.__name__ for function in find_hooks(hooks.RunFinished)] == ["escape", "dumps"]  # type: ignore[attr-defined]
    assert find_hook(hooks.BundlePlan) is None
    with pytest.raises(MissingDependency, match=r"that this needs \(BundlePlan\) is not installed"):
        require_hook(hooks.BundlePlan)

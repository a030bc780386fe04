"""What features bring is there under the name that they give, and what is gone with one is not missed."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict

import click
import pytest

from enginebench.core import features, hooks
from enginebench.core.errors import DependencyError, MissingDependency
from enginebench.core.features import (
    Feature,
    Verb,
    find,
    find_hook,
    find_hooks,
    list_brought,
    list_features,
    list_verbs,
    read_points,
    require_hook,
)
from enginebench.door import load_command, program
from enginebench.engines import registry
from enginebench.options import Opt, Unpack, list_options, verb
from enginebench.verbs.doctor import list_feature_packages
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


# Module of a package of the same name -> the entry points in its metadata.
PACKAGES = {
    "sound_one": ("verb.sound", "hook.DiffNotes", "function.hear", "document.sound.notes/1"),
    "first_twin": ("verb.twin", "hook.DiffNotes"),
    "second_twin": ("verb.twin",),
    "bad_names": ("verb.Bad Name", "engine.mine", "hook.Nothing", "hook.Any", "verb.run"),
}
SOURCE = """
import click
sound = click.Command("sound")
twin = 7
def hear(): return "heard"
def DiffNotes(document): return [__name__] if document else [].pop()
class notes: pass
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The packages, as their installation leaves them, on the path of this process."""
    for package, names in PACKAGES.items():
        (tmp_path / f"{package}.py").write_text(SOURCE)
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        places = [f"{name} = {package}:{re.findall('[A-Za-z]+', name)[-1]}\n" for name in names]
        (info / "entry_points.txt").write_text(f"[{features.GROUP}]\n{''.join(places)}")
    monkeypatch.syspath_prepend(str(tmp_path))
    features.read_points.cache_clear()
    yield
    features.read_points.cache_clear()
    for package in PACKAGES:
        sys.modules.pop(package, None)


def test_what_packages_bring_is_known_unimported_and_a_fault_has_its_reason(site: None) -> None:
    brought = {(plugin.name, plugin.package.split()[0]): plugin.fault for plugin in list_brought({"verb.run"})}
    theirs = {key: fault for key, fault in brought.items() if key[1] in PACKAGES}
    used = {(name, "sound_one") for name in PACKAGES["sound_one"]} | {("hook.DiffNotes", "first_twin")}
    assert {key for key, fault in theirs.items() if fault is None} == used
    faults = {
        ("verb.twin", "first_twin"): "first_twin 1.0 and second_twin 1.0. Uninstall all but one",
        ("verb.run", "bad_names"): "verb run, which EngineBench has itself",
        ("verb.Bad Name", "bad_names"): "expected verb.NAME, hook.PROTOCOL",
        ("engine.mine", "bad_names"): "expected verb.NAME, hook.PROTOCOL",
        ("hook.Nothing", "bad_names"): "hook Nothing, which this version of EngineBench does not have",
        ("hook.Any", "bad_names"): "hook Any, which this version of EngineBench does not have",
    }
    for key, words in faults.items():
        assert words in str(theirs[key]) and str(theirs[key]).endswith("it is not used")
    assert not sys.modules.keys() & PACKAGES.keys()


def test_entry_points_are_those_that_python_finds_and_the_first_package_of_a_name_hides_others(
    site: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = tmp_path / "later" / "Sound.One-2.0.dist-info"
    later.mkdir(parents=True)
    (later / "entry_points.txt").write_text(f"[{features.GROUP}]\nverb.later = sound_one:sound\n")
    old = tmp_path / "old_one.egg-info"  # as an editable installation of an old setuptools leaves it
    old.mkdir()
    (old / "PKG-INFO").write_text("Name: old-one\nVersion: 3\nSummary: It is old.\n\nName: not a field\n")
    points = (
        f"[a]\na=b:c\n[{features.GROUP}]\n# d=e:f\nverb.old =sound_one:notes.mro [extra]\n\n[others]\nverb.no = b:c\n"
    )
    (old / "entry_points.txt").write_text(points)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "later"), str(tmp_path / "no folder")])
    plugins = {plugin.name: plugin for plugin in read_points(features.GROUP)}
    assert plugins["verb.old"] == ("verb.old", "old-one 3", "sound_one:notes.mro", "It is old.", None)
    assert plugins["verb.old"].load()()[1] is object
    for group in (features.GROUP, "enginebench.engines", "pytest11"):
        expected = [(p.name, p.value.partition(" [")[0]) for p in entry_points(group=group)]
        assert [(plugin.name, plugin.place) for plugin in read_points(group)] == sorted(expected)


def test_verbs_hooks_functions_and_documents_of_packages_come_after_ours(site: None) -> None:
    *own, first, second = find_hooks(hooks.DiffNotes)
    assert all(function.__module__.startswith("enginebench.features.") for function in own)
    assert [function(True) for function in (first, second)] == [["first_twin"], ["sound_one"]]  # type: ignore[arg-type]
    with pytest.raises(DependencyError, match=r"^first_twin 1\.0: its hook\.DiffNotes .* failed: IndexError: .*Repair"):
        first(None)  # type: ignore[arg-type]
    assert find("functions", "hear")() == "heard"
    assert find("documents", "sound.notes/1").__name__ == "notes"
    assert "second_twin" not in sys.modules
    assert isinstance(program.get_command(click.Context(program), "sound"), click.Command)
    assert program.get_command(click.Context(program), "twin") is None


def test_a_package_that_cannot_be_imported_is_named(site: None, tmp_path: Path) -> None:
    (tmp_path / "sound_one.py").write_text("import nothing_of_this_name")
    with pytest.raises(DependencyError, match=r"^sound_one 1\.0 cannot be used: .*ModuleNotFoundError.*uninstall"):
        program.get_command(click.Context(program), "sound")
    (plugin,) = [plugin for plugin in list_brought() if plugin.name == "verb.sound"]
    sys.modules["sound_one"] = SimpleNamespace(sound="a command")  # type: ignore[assignment]
    with pytest.raises(DependencyError, match=r"verb\.sound, is of type str; expected a click\.Command"):
        load_command(plugin)


def test_a_package_of_ours_that_is_not_installed_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (features, registry):
        monkeypatch.setattr(module, "read_points", lambda group: ())
    how = r" is not installed\. To add it: pip install \./plugins/fpga \(in a checkout of EngineBench\)$"
    for name in ("fpga", "budget"):
        with pytest.raises(MissingDependency, match=f"^enginebench-fpga, the package with the verb {name},{how}"):
            program.resolve_command(click.Context(program), [name])
    with pytest.raises(MissingDependency, match=f"^enginebench-fpga, the package with the engine fpga-sim,{how}"):
        registry.find_entry("fpga-sim")
    (listed,) = list_feature_packages()
    assert (listed.package, listed.reason) == ("enginebench-fpga", "not installed")
    assert str(listed.fix).startswith("pip install ./plugins/fpga") and not listed.brings
    assert "fpga" not in program.list_commands(click.Context(program))

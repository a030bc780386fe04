"""Engines from other packages: found, run beside ours, and, where they are broken, a line in `doctor`."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from enginebench.core import features
from enginebench.core.errors import BackendUnavailable, UsageError
from enginebench.core.records import EngineSpec
from enginebench.engines import registry
from enginebench.models.zoo import DATA_DIR
from processes import ROOT, environment, hide_packages

PLUGIN = ROOT / "tests" / "plugin"
PAGE = (ROOT / "docs" / "add-an-engine.md").read_text(encoding="utf-8")

SOUND = """
from enginebench.core.entry import Entry
from enginebench.core.records import Availability

ENTRY = Entry(name={name!r}, module=__name__, takes="onnx")

class Backend:
    name = {name!r}

    def probe(self):
        {probe}

    def build(self, artifact, spec, out_dir):
        return artifact

create_backend = Backend
"""
SAY_SO = "return Availability(engine=self.name, available=True)"

# Name of the engine -> (the package's one module, words of the reason that doctor gives).
BROKEN = {
    "no-module": ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
    "leaves": ("raise SystemExit('good-bye')", "SystemExit: good-bye"),
    "dies": ("import os; os._exit(7)", "exit code 7"),
    "no-entry": ("ENTRY = 'an engine'", "is of type str; expected an enginebench.core.entry.Entry"),
    "renamed": (SOUND.format(name="other", probe=SAY_SO), "is the entry of an engine 'other'; expected 'renamed'"),
    "no-comma": (
        "from enginebench.core.entry import Entry\n"
        "ENTRY = Entry(name='no-comma', module=__name__, takes='onnx', distributions=('onnx'))",
        "is an Entry with a field of a wrong type: Expected `array`, got `str` - at `$.distributions`",
    ),
    "raises": (SOUND.format(name="raises", probe="raise OSError('no licence')"), "OSError: no licence"),
    "no-answer": (
        SOUND.format(name="no-answer", probe="return 'yes'"),
        "its probe gives a str; expected an Availability",
    ),
    "no-factory": (
        "from enginebench.core.entry import Entry\nENTRY = Entry(name='no-factory', module=__name__, takes='onnx')",
        "has no create_backend",
    ),
    "ort": (SOUND.format(name="ort", probe=SAY_SO), "plug-ort 1.0 brings an engine ort, which EngineBench has itself"),
    "Bad:Name": (SOUND.format(name="Bad:Name", probe=SAY_SO), "Expected a name of lower-case letters"),
}


def add_package(site: Path, name: str, source: str, package: str = "") -> None:
    """What an installed package leaves: a module, and metadata with an entry point."""
    package = package or f"plug-{re.sub('[^a-z]', '', name.lower())}"
    module = package.replace("-", "_")
    (site / f"{module}.py").write_text(source)
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {module}:ENTRY\n")


def fill_site(site: Path) -> None:
    """Every broken plug-in, a sound one, and two with one name."""
    site.mkdir()
    for name, (source, _) in BROKEN.items():
        add_package(site, name, source)
    add_package(site, "sound", SOUND.format(name="sound", probe=SAY_SO))
    for package in ("first-twin", "second-twin"):
        add_package(site, "twin", SOUND.format(name="twin", probe=SAY_SO), package)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The packages on the path of this process."""
    fill_site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    features.read_points.cache_clear()
    yield tmp_path / "site"
    features.read_points.cache_clear()
    for name in [name for name in sys.modules if name.startswith(("plug_", "first_twin", "second_twin"))]:
        del sys.modules[name]


def test_plugins_are_listed_unimported_and_are_engines_like_ours(site: Path) -> None:
    names = registry.list_names()
    assert names[: len(registry.ENTRIES)] == tuple(registry.ENTRIES)
    assert set(names) - set(registry.ENTRIES) - {"fpga-sim"} == {"sound", *BROKEN} - {"ort", "Bad:Name"}
    assert not [name for name in sys.modules if name.startswith("plug_")]
    assert registry.read_engine("sound:a=b") == ("sound", {"a": "b"})
    assert registry.takes("sound") == "onnx"
    assert registry.find_installed("sound").available
    answer = registry.probe("sound")
    assert (answer.available, answer.package) == (True, "plug-sound 1.0")
    with pytest.raises(UsageError, match=r"known: pytorch, .*, sound \(plug-sound 1\.0\).*Did you mean sound\?$"):
        registry.find_entry("sond")


def test_names_of_ours_or_of_two_plugins_and_what_cannot_be_loaded_are_refused(site: Path) -> None:
    with pytest.raises(BackendUnavailable, match=r"engine no-module of plug-nomodule 1\.0: its entry point") as caught:
        registry.read_engines("ort,no-module")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert registry.find_entry("ort") is registry.ENTRIES["ort"]
    assert registry.probe("ort").package is None
    refused = {answer.engine: answer for answer in registry.list_refused()}
    assert str(refused["ort"].reason).endswith("which EngineBench has itself: it is not used")
    with pytest.raises(BackendUnavailable, match=r"first-twin 1\.0 and second-twin 1\.0 each bring an engine twin"):
        registry.find_entry("twin")
    assert [a.package for a in registry.list_refused() if a.engine == "twin"] == ["first-twin 1.0", "second-twin 1.0"]
    assert "twin" not in registry.list_names()


def test_our_own_engines_cost_no_look_at_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("entry points were read")

    features.read_points.cache_clear()
    monkeypatch.setattr(features, "_list_metadata", refuse)
    assert registry.read_engines("ort,pytorch-compile:mode=default")
    assert registry.has_engine("fake") and registry.list_unasked("cpu")
    with pytest.raises(AssertionError, match="were read"):
        registry.has_engine("another")


def find_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_page_shows_the_package_and_how_options_are_read() -> None:
    assert find_blocks("toml") == [(PLUGIN / "pyproject.toml").read_text(encoding="utf-8")]
    source = (PLUGIN / "enginebench_reference.py").read_text(encoding="utf-8")
    assert find_blocks("python")[0] == source
    assert len(source.splitlines()) < 60
    shown: dict[str, Any] = {"__name__": "mine", "MyEngine": lambda artifact, mode, streams: (mode, streams)}
    exec(find_blocks("python")[1], shown)
    shown["check_request"] = lambda *_, **__: None  # only the options are looked at here
    load = shown["MyBackend"]().load
    assert load(None, EngineSpec(backend="mine")) == ("fast", 1)
    assert load(None, EngineSpec(backend="mine", options={"mode": "exact", "streams": "4"})) == ("exact", 4)
    with pytest.raises(UsageError, match=r"engine mine has no option .colour.; known: mode=fast\|exact"):
        load(None, EngineSpec(backend="mine", options={"colour": "red"}))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Python of a fresh virtual environment in which the package is installed, and the broken ones beside it."""
    home = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    site = next((home / "venv").glob("lib/python*/site-packages"))
    (site / "host.pth").write_text(sysconfig.get_path("purelib") + "\n")  # engines and pip, without a network
    shutil.copytree(PLUGIN, home / "plugin", ignore=shutil.ignore_patterns("__pycache__"))

    def run(*arguments: object, path: str = "") -> subprocess.CompletedProcess[str]:
        variables = environment(home)
        variables["PYTHONPATH"] += path
        command = [str(home / "venv" / "bin" / "python"), *map(str, arguments)]
        return subprocess.run(command, cwd=home, env=variables, text=True, capture_output=True, timeout=240)

    done = run(*("-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"), "./plugin")
    assert done.returncode == 0, done.stderr
    fill_site(home / "broken")
    hide_packages(home, "torch", "onnxruntime", "openvino")
    return run


def test_the_package_runs_beside_ort_and_keeps_the_promises_of_the_page(python: Any) -> None:
    done = python(
        *("-m", "enginebench", "run", DATA_DIR / "digits-mlp.onnx"),
        *("--engines", "ort,reference", "--quick", "--out", "r", "--json"),
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(row.read_bytes()) for row in (Path(done.args[0]).parents[2] / "r" / "rows").glob("*.json")]
    assert {row["engine"]["backend"]: row["status"] for row in rows} == {"ort": "ok", "reference": "ok"}
    (ours,) = [row for row in rows if row["engine"]["backend"] == "reference"]
    assert ours["drift"]["passed"] and ours["drift"]["outputs"][0]["max_abs_diff"] > 0  # not ort under another name
    assert ours["engine_version"] == metadata.version("onnx")
    bad = python("-m", "enginebench", "run", DATA_DIR / "digits-mlp.onnx", "--engines", "reference:speed=9", "--quick")
    assert "engine reference has no option 'speed'; known: none" in bad.stdout + bad.stderr
    test = find_blocks("python")[-1]
    done = python("-W", "error", "-c", test + "\n\ntest_reference_keeps_the_promises()\n")
    assert done.returncode == 0, done.stderr


def test_doctor_has_a_line_for_each_and_never_fails(python: Any) -> None:
    home = Path(python("-c", "import os; print(os.getcwd())").stdout.strip())
    # Our own engines are only to be there, found or not.
    done = python("-m", "enginebench", "doctor", "--json", path=f":{home / 'broken'}:{home / 'hidden'}")
    assert done.returncode == 0, done.stderr
    engines = json.loads(done.stdout)["engines"]
    assert [e["engine"] for e in engines[: len(registry.ENTRIES)]] == list(registry.ENTRIES)
    brought = {(e["engine"], e.get("package")): e for e in engines[len(registry.ENTRIES) :]}
    assert brought["reference", "enginebench-reference 0.1"]["available"]
    assert brought["sound", "plug-sound 1.0"]["available"]
    for name, (_, words) in BROKEN.items():
        (found,) = [e for (engine, _), e in brought.items() if engine == name]
        assert not found["available"] and words in found["reason"], found
    assert all(package for _, package in brought)
    assert len([name for name, _ in brought if name == "twin"]) == 2

"""The door: help without heavy imports, verbs as documented, exit codes, errors without tracebacks."""

import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

import enginebench
from enginebench.core.commands import list_starting_words
from enginebench.core.errors import ArtifactError, MeasurementError, MissingDependency, UsageError
from enginebench.core.records import Availability
from enginebench.door import VERBS, format_with_extras, main, program
from enginebench.verbs.doctor import format_state
from processes import Cli, environment

HEAVY = ("torch", "onnxruntime", "openvino", "onnx", "scipy", "altair", "vl_convert", "numpy", "rich", "nncf")


def run_code(code: str, place: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment(place), capture_output=True, text=True, check=False)


def test_help_imports_no_engine_no_scipy_and_no_charts(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom enginebench.door import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    done = run_code(code, tmp_path)
    assert done.stderr.strip() == "[]"
    assert "Find the fastest inference engine" in done.stdout


@pytest.mark.parametrize("name", VERBS)
def test_help_of_a_verb_imports_no_engine_and_no_numpy(name: str, tmp_path: Path) -> None:
    """A verb's file imports at its top what its options need; its functions import what computes, where they begin."""
    heavy = [module for module in HEAVY if module != "rich"]  # shows progress
    code = f"import sys, {VERBS[name].module}\nprint([m for m in {heavy} if m in sys.modules])"
    done = run_code(code, tmp_path)
    assert done.stdout.strip() == "[]", done.stderr


def test_help_lists_the_verbs_of_packages_without_importlib_metadata(tmp_path: Path) -> None:
    code = (
        "import sys, click, enginebench.door as door\n"
        "text = door.program.get_help(click.Context(door.program))\n"
        "print('Guard' in text, 'importlib.metadata' in sys.modules)"
    )
    done = run_code(code, tmp_path)
    assert done.stdout.strip() == "True False", done.stderr


def test_a_child_that_measures_is_pinned_before_numpy_begins_threads(tmp_path: Path) -> None:
    modules = "enginebench.runs.child.__main__, enginebench.runs.child.perform.measure"
    code = f"import sys, {modules}\nprint('numpy' in sys.modules)"
    done = run_code(code, tmp_path)
    assert done.stdout.strip() == "False"


def test_a_report_imports_nothing_that_measures(tmp_path: Path) -> None:
    code = (
        "import sys, enginebench.verbs.report\nfrom enginebench.core.features import find_hook\n"
        "from enginebench.core.hooks import BundlePlan, LayerPairing\n"
        "find_hook(BundlePlan), find_hook(LayerPairing)\n"
        "print([m for m in sys.modules if m in ('enginebench.runs.campaign', 'enginebench.runs.child.isolate')])"
    )
    done = run_code(code, tmp_path)
    assert done.stdout.strip() == "[]"


def test_a_damaged_package_is_named_and_no_traceback_shown(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('libopenblas.so: cannot open')")
    start = "from enginebench.door import main\nmain(['run', 'digits-mlp'])"
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{start}"
    done = run_code(code, tmp_path)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "run cannot start: ImportError: libopenblas.so: cannot open" in done.stderr
    assert "pip install --force-reinstall" in done.stderr


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hang_up_interrupts_unless_it_is_ignored_as_under_nohup(ignored: bool) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        with pytest.raises(SystemExit):
            main(["--version"])
        if ignored:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        else:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGHUP)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_short_help_is_one_line(verb: str) -> None:
    command = import_module(VERBS[verb].module).command
    assert command.name == verb
    assert command.help
    assert VERBS[verb].sentence.endswith(".") and len(VERBS[verb].sentence) <= 80 - len("  calibrate  ")
    declared = vars(command).get("declared", {})
    if verb not in ("export", "calibrate") and {"weights", "threads"} <= declared.keys():  # it runs a MODEL
        assert "allow_native_code" in declared


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("EMFILE", MeasurementError.exit_code, "ulimit -n"), ("ENOSPC", ArtifactError.exit_code, "cannot be written")],
)
def test_the_systems_refusal_ends_with_its_code_and_what_to_do(
    name: str, code: int, words: str, tmp_path: Path
) -> None:
    refuse = f"def refuse(**_): raise OSError(errno.{name}, 'no more')\ndoor.program.main = refuse"
    done = run_code(f"import errno\nfrom enginebench import door\n{refuse}\ndoor.main(['models'])", tmp_path)
    assert (done.returncode, "Traceback" in done.stderr, words in done.stderr) == (code, False, True), done.stderr


def test_help_lists_every_verb_below_its_group() -> None:
    listed = CliRunner().invoke(program, ["--help"]).stdout
    for verb in VERBS.values():
        section = listed.partition(f"\n{verb.group}:\n")[2].partition("\n\n")[0]
        assert re.search(rf"^  {verb.name} +{re.escape(verb.sentence)}$", section, re.MULTILINE), verb.name


@pytest.mark.parametrize(
    ("engine", "state"),
    [
        (Availability(engine="e", available=True, version="1.2", devices=("cpu", "cuda:0")), "ready   1.2 cpu cuda:0"),
        (Availability(engine="e", available=False, version="1.2", reason="there is no GPU here"), "not ready   1.2"),
        (Availability(engine="e", available=False, fix="pip install e"), "missing"),
    ],
)
def test_doctor_distinguishes_what_cannot_run_here_from_what_is_missing(engine: Availability, state: str) -> None:
    assert format_state(engine) == state


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("run", "digits-mlp", "--data", ""), "--data: the text is empty"),
        (("run", "digits-mlp", "--data="), "--data: the text is empty"),
        (("run", ""), "the argument after run: the text is empty"),
        (("baseline", "save", "x", "r", "--store", ""), "--store: the text is empty"),
        (("report", "r", "--out", "", "--prices", "x"), "--out: the text is empty"),
        (("build", "m.onnx", "--fp16"), "options after --, as in -- --sparsity=enable. Of our own are --precision"),
        (("bench", "m.onnx", "--warmUp=200"), "options after --, as in -- --sparsity=enable"),
    ],
)
def test_an_empty_text_or_an_option_of_trtexec_is_named(cli: Cli, words: tuple[str, ...], named: str) -> None:
    done = cli(*words)
    assert (done.returncode, named in done.stderr) == (2, True), done.stderr


def test_an_empty_text_is_no_path_in_a_program_either() -> None:
    with pytest.raises(UsageError, match=r"^data: the text is empty"):
        enginebench.accuracy("fake@digits-mlp", data="")
    with pytest.raises(UsageError, match=r"^model: the text is empty"):
        enginebench.run("", engines="fake")
    with pytest.raises(UsageError, match=r"^out: the text is empty"):
        enginebench.run("digits-mlp", engines="fake", out="")


def test_a_mistyped_verb_gets_those_that_may_be_meant() -> None:
    done = CliRunner().invoke(program, ["rum"])
    assert done.exit_code == 2 and "No such command 'rum'. Did you mean run?" in done.output


@pytest.mark.parametrize(
    ("prefix", "again"),
    [
        ("/home/u/.cache/uv/archive-v0/x1", "uvx --from 'enginebench[ort]' enginebench run 'a b.onnx' --engines ort"),
        ("/home/u/.cache/pipx/1", "pipx run --spec 'enginebench[ort]' enginebench run 'a b.onnx' --engines ort"),
        ("/home/u/.local/share/pipx/venvs/enginebench", None),
        ("/home/u/project/.venv", None),
    ],
)
def test_a_temporary_environment_gets_the_command_with_the_extra(prefix: str, again: str | None) -> None:
    """Typed after `uvx` or `pipx run`, the line with pip would install into another environment, or fail."""
    words = ["run", "a b.onnx", "--engines", "ort"]
    missing = 'onnxruntime is not installed. To add: pip install "enginebench[ort]" (or: pip install onnxruntime onnx)'
    assert format_with_extras(missing, prefix, words) == again
    assert format_with_extras("there is no model a.onnx", prefix, words) is None


def test_the_command_with_the_extra_is_printed_below_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise MissingDependency("onnxruntime", 'pip install "enginebench[ort]"')

    monkeypatch.setattr(sys, "prefix", str(tmp_path / "archive-v0" / "x1"))
    monkeypatch.setattr(program, "main", fail)
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == 3
    *_, last = capsys.readouterr().err.splitlines()
    assert last.endswith(" Instead: uvx --from 'enginebench[ort]' enginebench doctor")
    # Installed from a wheel, the name alone might be another package, or none.
    metadata = tmp_path / "archive-v0/x1/lib/python3.11/site-packages/enginebench-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "direct_url.json").write_text('{"url": "file:///tmp/e%20b.whl"}')
    list_starting_words.cache_clear()
    with pytest.raises(SystemExit):
        main(["doctor"])
    *_, last = capsys.readouterr().err.splitlines()
    assert last.endswith(" Instead: uvx --from 'enginebench[ort] @ file:///tmp/e%20b.whl' enginebench doctor")

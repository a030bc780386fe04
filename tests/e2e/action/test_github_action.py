"""The steps of the GitHub Action, run as the runner runs them: what is measured, refused, shown and called."""

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt
from msgspec.structs import replace

from enginebench.core.store import encode
from enginebench.report.bench import BenchDocument, describe_bench
from github import Api, Runner, serve_api
from graphs import make_scale
from processes import ROOT
from scripts import load_script
from two_sides import SAME, WRONG, disturb, make_drift, make_sides

PAGE = ROOT / "docs" / "github-action.md"
COMMENT = "Write the comment"
BOT = "github-actions[bot]"
GIVEN = {"model": "models/net.onnx", "against": "main"}
SHA = "0123456789abcdef0123456789abcdef01234567"


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What actions/checkout leaves of a pull request: `main` multiplies by 1, the change by 1, too."""
    upstream = tmp_path / "upstream"
    (upstream / "models").mkdir(parents=True)
    make_scale(upstream / "models" / "net.onnx", 1)
    git(upstream, "init")
    git(upstream, "add", ".")
    git(upstream, "commit", "-m", "base")
    git(upstream, "tag", "v1")
    git(tmp_path, "clone", str(upstream), "checkout")
    return tmp_path / "checkout"


@pytest.fixture
def runner(tmp_path: Path, checkout: Path) -> Runner:
    return Runner(tmp_path / "runner", checkout)


def list_refs(checkout: Path) -> list[str]:
    """The names that a workflow may give, each for the same commit."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, check=True, capture_output=True, text=True)
    return ["main", "v1", done.stdout.strip()]


def test_a_branch_and_a_change_are_measured_and_kept(runner: Runner, checkout: Path) -> None:
    make_scale(checkout / "models" / "net.onnx", 1)
    code = runner.run("", model="models/net.onnx", against="main", engine="ort", margin="1")
    assert code == 0, runner.log
    (kept,) = runner.artifacts.iterdir()
    assert re.fullmatch(r"enginebench-net-[0-9a-f]{8}", kept.name)
    assert {path.name for path in kept.iterdir()} == {"bench.json", "report.html"}
    document = json.loads((kept / "bench.json").read_text())
    assert document["comparison"]["outputs_agree"] is True and document["comparison"]["margin"] == 1
    summary = runner.summary.read_text()
    assert re.match(r"\*\*(no significant|undecided|faster|slower).* · outputs agree · precision fp32", summary)
    assert "net.onnx · batch 1" in summary
    assert (runner.temp / "pip.log").read_text().count(f"{ROOT}[ort") == 2  # with the page's extra, then the engine's


def test_names_that_a_shell_would_read_are_names(runner: Runner, checkout: Path) -> None:
    """Both belong to a pull request: whatever they hold, nothing is run, and the right file is measured."""
    branch = "feature/$(touch${IFS}ran)-`touch${IFS}ran`-'q\"-ünï;a&b"
    model = "models/my net (1) $(touch ran) 'q\" ünï@x,y;z.onnx"
    upstream = checkout.parent / "upstream"
    git(upstream, "checkout", "-b", branch)
    make_scale(upstream / model, 1)
    git(upstream, "add", ".")
    git(upstream, "commit", "-m", "base")
    git(checkout, "fetch")
    make_scale(checkout / model, 1)
    assert runner.run("", model=model, against=branch, margin="1") == 0, runner.log
    (kept,) = runner.artifacts.iterdir()
    assert re.fullmatch(r"enginebench-my-net-1-touch-ran-q-n-x-y-z-[0-9a-f]{8}", kept.name)
    assert json.loads((kept / "bench.json").read_text())["comparison"]["outputs_agree"] is True
    assert not [*checkout.parent.rglob("ran")]
    with serve_api() as api:
        assert run_comment(runner, api) == 0, runner.log
    (comment,) = api.comments
    assert "$(touch ran)" in comment["body"].partition("````text")[2]


def test_other_outputs_fail_the_job_and_are_kept_all_the_same(runner: Runner, checkout: Path) -> None:
    make_scale(checkout / "models" / "net.onnx", -5)
    assert runner.run("", model="models/net.onnx", against="v1") == 4
    (kept,) = runner.artifacts.iterdir()
    document = json.loads((kept / "bench.json").read_text())
    assert document["comparison"]["outputs_agree"] is False
    assert "outputs changed" in runner.summary.read_text() and "gate failed" in runner.summary.read_text()


def test_a_limit_of_your_own_and_a_file_reach_the_measurement(runner: Runner, checkout: Path) -> None:
    make_scale(checkout / "other.onnx", 1.5)
    given = {"model": "models/net.onnx", "against": "other.onnx", "margin": "1"}
    assert runner.run("", **given, limits="max_abs=100") in (0, 4)
    (kept,) = runner.artifacts.iterdir()
    assert json.loads((kept / "bench.json").read_text())["comparison"]["outputs_agree"] is True


def test_a_model_that_cannot_be_loaded_says_so_in_the_summary(runner: Runner, checkout: Path) -> None:
    (checkout / "models" / "net.onnx").write_bytes(b"no graph")
    assert runner.run("", model="models/net.onnx", against="main") == 5
    (kept,) = runner.artifacts.iterdir()
    assert {path.name for path in kept.iterdir()} == {"failure.txt"}
    summary = runner.summary.read_text()
    assert summary.startswith("**not measured**") and "net.onnx" in summary


REFUSED = {
    "no such file": ({"model": "models/no.onnx"}, {}, "model: there is no file 'models/no.onnx' in "),
    "no such branch": ({"against": "nosuch"}, {}, "'nosuch' is neither a file nor a branch, tag or commit"),
    "a new model": ({"model": "new.onnx"}, {}, "'main' has no file 'new.onnx'"),
    "a model elsewhere": ({"model": "../outside.onnx"}, {}, "model: '../outside.onnx' is not a path inside the repos"),
    "an option as a model": ({"model": "--allow-code=x"}, {}, "model: '--allow-code=x' begins with a hyphen"),
    "an option as a branch": ({"against": "--upload-pack=x"}, {}, "against: '--upload-pack=x' begins with a hyphen"),
    "two lines": ({"engine": "ort\nside=x"}, {}, r"engine: 'ort\nside=x' begins with a hyphen, or has"),
    "nothing": ({"precision": ""}, {}, "precision: the text is empty"),
    "an event with a token": ({}, {"GITHUB_EVENT_NAME": "pull_request_target"}, "use `on: pull_request`"),
    "a token": ({}, {"GH_TOKEN": "secret"}, "has GH_TOKEN in its environment"),
    "a token for others": ({}, {"ACTIONS_ID_TOKEN_REQUEST_TOKEN": "secret"}, "has ACTIONS_ID_TOKEN_REQUEST_TOKEN"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_measured_is_refused_before_anything_is_installed(
    runner: Runner, checkout: Path, case: str
) -> None:
    inputs, variables, message = REFUSED[case]
    make_scale(checkout / "new.onnx", 1)
    make_scale(checkout.parent / "outside.onnx", 1)
    runner.variables |= variables
    assert runner.run("", **{**GIVEN, **inputs}) == 2
    assert message in runner.log and "secret" not in runner.log
    assert not (runner.temp / "pip.log").exists() and not [*runner.artifacts.iterdir()]


KEPT = {
    "http.https://github.com/.extraheader": "AUTHORIZATION: basic c2VjcmV0",
    "core.sshCommand": "ssh -i c2VjcmV0",
    "url.https://x:c2VjcmV0@github.com/.insteadOf": "https://github.com/",
    "remote.other.pushurl": "https://x:c2VjcmV0@github.com/a/b",
}


@pytest.mark.parametrize("name", KEPT)
def test_a_checkout_that_kept_its_token_is_refused(runner: Runner, checkout: Path, name: str) -> None:
    git(checkout, "config", name, KEPT[name])
    assert runner.run("", **GIVEN) == 2
    assert "`persist-credentials: false`" in runner.log and "c2VjcmV0" not in runner.log


def test_a_branch_a_tag_and_a_commit_name_the_other_side(runner: Runner, checkout: Path, monkeypatch) -> None:
    tool = load_script("tools/github_action.py")
    monkeypatch.chdir(checkout)
    places = {
        tool.find_base("models/net.onnx", ref, tool.find_commit(ref), runner.variables) for ref in list_refs(checkout)
    }
    (place,) = places
    assert place.read_bytes() == (checkout / "models" / "net.onnx").read_bytes()


@pytest.mark.parametrize("folder", [True, False])
def test_a_branch_goes_before_what_a_pull_request_calls_like_it(
    runner: Runner, checkout: Path, monkeypatch, folder: bool
) -> None:
    """Otherwise a pull request would bring its own base."""
    monkeypatch.chdir(checkout)
    if folder:
        (checkout / "main").mkdir()
    else:
        make_scale(checkout / "main", 7)
    assert prepare(runner, GIVEN)["side"].endswith("/models/net.onnx")


def prepare(runner: Runner, inputs: dict[str, str], **variables: str) -> dict[str, str]:
    """Return the outputs of the step that checks the inputs."""
    output = runner.temp / "outputs"
    output.unlink(missing_ok=True)
    defaults = {"engine": "ort", "precision": "fp32", "margin": "0.05", "limits": "", **inputs}
    given = {name.upper(): value for name, value in defaults.items()}
    load_script("tools/github_action.py").prepare(
        {**runner.variables, **given, **variables, "GITHUB_OUTPUT": str(output)}
    )
    return dict(line.split("=", 1) for line in output.read_text("utf-8").splitlines())


def test_jobs_of_a_matrix_keep_their_figures_apart(runner: Runner, checkout: Path, monkeypatch) -> None:
    """Two artifacts of a run cannot have one name."""
    monkeypatch.chdir(checkout)
    uses: list[tuple[dict[str, str], dict[str, str]]] = [
        ({}, {}),
        ({"margin": "0.1"}, {}),
        ({"limits": "cosine=0.9"}, {}),
        ({}, {"RUNNER_ARCH": "ARM64"}),
        ({}, {"JOB_INDEX": "1"}),
    ]
    names = [prepare(runner, GIVEN | inputs, **variables)["name"] for inputs, variables in uses]
    assert len(set(names)) == len(uses)


# The comment ---------------------------------------------------------------------------------------------------------


def keep(runner: Runner, name: str, content: BenchDocument | str) -> None:
    """Keep a document, or the end of a failure, as the measuring job does."""
    folder = runner.artifacts / f"enginebench-{name}"
    folder.mkdir()
    if isinstance(content, str):
        (folder / "failure.txt").write_text(content)
    else:
        (folder / "bench.json").write_bytes(encode(content))


def run_comment(runner: Runner, api: Api, number: str = "5", **inputs: str) -> int:
    runner.variables["GITHUB_API_URL"] = api.url
    contexts = {
        "github.token": "secret",
        "github.event.pull_request.number": number,
        "github.event.pull_request.head.sha": SHA,
    }
    return runner.run("comment", contexts, **inputs)


def describe(median_ms: float, wrong: bool = False, busy: bool = False, **fields: Any) -> BenchDocument:
    sides = make_sides(median_ms, make_drift(**(WRONG if wrong else SAME)), **fields)
    return describe_bench([disturb(side) for side in sides] if busy else sides)


STATES = {
    "faster": (describe(10.0), r"faster \S+x \(\S+ to \S+\) · outputs agree · precision fp32 · gate passed"),
    "slower": (describe(40.0), r"slower \S+x \(\S+ to \S+\) · outputs agree · precision fp32 · gate failed"),
    "alike": (describe(20.0), r"no significant difference \S+x \(\S+ to \S+\) · outputs agree · .* gate passed"),
    "open": (describe(20.3, sd=0.05, busy=True), r"undecided: the CPU was busy, ±\S+% · outputs agree · .* passed"),
    "outputs": (describe(10.0, wrong=True), r"not comparable: the outputs changed · outputs changed · .* gate failed"),
    "nothing": ("error: net.onnx: no graph", "not measured"),
}


@pytest.mark.parametrize("state", STATES)
def test_the_comment_has_a_line_for_each_state(runner: Runner, state: str) -> None:
    content, line = STATES[state]
    keep(runner, "net-1", content)
    with serve_api() as api:
        assert run_comment(runner, api) == 0, runner.log
    (comment,) = api.comments
    assert re.search(rf"^\*\*{line}\*\*$", comment["body"], re.MULTILINE), comment["body"]
    assert f"[The run of {SHA[:12]}](https://github.example/owner/name/actions/runs/17)" in comment["body"]
    assert [call.method for call in api.calls] == ["GET", "POST"]
    assert {call.token for call in api.calls} == {"secret"}


def list_calls(api: Api) -> list[tuple[str, str]]:
    return [(call.method, call.path.rpartition("/")[2]) for call in api.calls]


def find_marker(runner: Runner) -> str:
    found: str = load_script("tools/github_action.py").make_marker(runner.variables)
    return found


def test_one_comment_is_kept_up_to_date_whoever_else_writes_its_mark(runner: Runner) -> None:
    """GitHub lets a token that may write change what others wrote: only what this author wrote is ours."""
    keep(runner, "net-1", describe(10.0))
    mark = find_marker(runner)
    people = [{"id": n, "user": {"login": "somebody"}, "body": f"{mark} from a person"} for n in range(120)]
    app = {"id": 400, "user": {"login": "other[bot]"}, "body": f"{mark} from another app"}
    quoting = {"id": 500, "user": {"login": BOT}, "body": f"another job quotes {mark}"}
    own = {"id": 600, "user": {"login": BOT}, "body": f"{mark}\nof an earlier run"}
    ghost = {"id": 700, "user": None, "body": None}
    with serve_api([*people, app, quoting, own, ghost]) as api:
        assert run_comment(runner, api) == 0, runner.log
    assert list_calls(api) == [
        ("GET", "comments?per_page=100&page=1"),
        ("GET", "comments?per_page=100&page=2"),
        ("PATCH", "600"),
    ]
    assert "faster" in own["body"] and "earlier run" not in own["body"]


def test_of_two_comments_with_our_mark_none_keeps_old_figures(runner: Runner) -> None:
    keep(runner, "net-1", describe(10.0))
    own = [{"id": n, "user": {"login": BOT}, "body": f"{find_marker(runner)}\nof an earlier run"} for n in (1, 2)]
    with serve_api([*own]) as api:
        assert run_comment(runner, api) == 0, runner.log
    assert [call.method for call in api.calls] == ["GET", "PATCH", "PATCH"]
    assert not [one for one in own if "earlier run" in str(one["body"])]


@pytest.mark.parametrize("name", ["GITHUB_WORKFLOW", "GITHUB_JOB"])
def test_another_workflow_keeps_a_comment_of_its_own(runner: Runner, name: str) -> None:
    """Else two workflows, each for its model, would overwrite each other's result."""
    keep(runner, "net-1", describe(10.0))
    with serve_api() as api:
        assert run_comment(runner, api) == 0, runner.log
        runner.variables[name] = "another"
        (runner.temp / "enginebench-results").rename(runner.temp / "of the first")
        assert run_comment(runner, api) == 0, runner.log
    assert [call.method for call in api.calls] == ["GET", "POST", "GET", "POST"]


def test_a_comment_whose_response_was_lost_is_not_written_twice(runner: Runner) -> None:
    keep(runner, "net-1", describe(10.0))
    with serve_api(answers=[None, (504, {})]) as api:
        assert run_comment(runner, api) == 0, runner.log
    assert [call.method for call in api.calls] == ["GET", "POST", "GET", "PATCH"] and len(api.comments) == 1


def test_a_limit_without_a_time_is_no_missing_permission() -> None:
    find_wait_s = load_script("tools/github_action.py").find_wait_s
    assert find_wait_s(403, {}, b'{"message": "You have exceeded a secondary rate limit."}') == 60
    assert find_wait_s(403, {}, b'{"message": "Resource not accessible by integration"}') is None


def test_a_token_of_another_author_needs_its_name(runner: Runner) -> None:
    """Else each run would write one more comment, and nobody would be told why."""
    keep(runner, "net-1", describe(10.0))
    with serve_api() as api:
        api.login = "models[bot]"
        assert run_comment(runner, api) == 1
        assert "it is by models[bot]" in runner.log and "give the action `author: models[bot]`" in runner.log
        (runner.temp / "enginebench-results").rename(runner.temp / "of the first")
        assert run_comment(runner, api, author="models[bot]") == 0, runner.log
    assert [call.method for call in api.calls] == ["GET", "POST", "GET", "PATCH"] and len(api.comments) == 1


def test_what_a_pull_request_may_have_changed_does_not_comment(runner: Runner, checkout: Path) -> None:
    """`uses: ./comment` would be the pull request's own action, beside the token."""
    with serve_api() as api:
        runner.variables["GITHUB_WORKSPACE"] = str(ROOT)
        assert run_comment(runner, api) == 2
    assert not api.calls and "enginebench/enginebench/comment@VERSION" in runner.log


def test_the_explanation_of_a_refusal_stays_on_its_line(runner: Runner) -> None:
    keep(runner, "net-1", describe(10.0))
    with serve_api(answers=[None, (403, {})]) as api:
        api.explanation = "Unable to create comment because issue is locked.\n::error::obeyed\r" + "x" * 3_000
        assert run_comment(runner, api) == 0, runner.log
    (line,) = [line for line in runner.log.splitlines() if line.startswith("::")]
    assert line.startswith("::notice::No permission to comment (POST ") and len(line) < 1_000
    assert "(Unable to create comment because issue is locked." in line


def test_several_models_share_the_comment(runner: Runner) -> None:
    keep(runner, "a-1", describe(10.0))
    keep(runner, "b-1", describe(40.0))
    with serve_api() as api:
        assert run_comment(runner, api) == 0, runner.log
    (comment,) = api.comments
    assert comment["body"].index("**faster") < comment["body"].index("**slower")


def test_a_job_that_kept_nothing_is_not_passed_over(runner: Runner) -> None:
    with serve_api() as api:
        assert run_comment(runner, api) == 0, runner.log
    assert "not measured" in api.comments[0]["body"]


HOSTILE = (
    "@everyone #1 https://evil.example ![x](https://evil.example/x.png) [go](javascript:alert(1))\n"
    "~~~\n```\n`````\n</code></pre><img src=x onerror=alert(1)> <!-- --> | a | b |\n\u202egnp.x \x1b[31m"
)


@pytest.mark.parametrize("place", ["model", "reason", "failure", "document"])
def test_what_a_pull_request_names_is_text(runner: Runner, place: str) -> None:
    """CommonMark's own parser finds nothing but our lines and fences."""
    base, cand = make_sides(10.0, make_drift(**SAME))
    document = describe_bench([replace(base, model=HOSTILE), replace(cand, model=HOSTILE)])
    if place == "reason":
        document = describe_bench([base, replace(cand, status="failed", measurements=(), reason=HOSTILE)])
    if place in ("model", "reason"):
        keep(runner, "net-1", document)
    else:
        keep(runner, "net-1", HOSTILE)
    if place == "document":  # what is no document is shown by the message about it
        (runner.artifacts / "enginebench-net-1" / "bench.json").write_text(json.dumps({"schema": HOSTILE}))
    with serve_api() as api:
        assert run_comment(runner, api) == 0, runner.log
    body = api.comments[0]["body"]
    assert "\u202e" not in body and "\x1b" not in body
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(body)
    assert [token.type for token in tokens if token.level == 0 and not token.type.endswith("_close")] == [
        *("html_block", "heading_open", "paragraph_open", "fence", "paragraph_open")
    ]
    shown = "".join(token.content for token in tokens if token.type == "inline")
    assert "evil" not in shown and "everyone" not in shown and "img" not in shown
    (mark,) = [token.content for token in tokens if token.type == "html_block"]
    assert mark.strip() == find_marker(runner)
    (fence,) = [token.content for token in tokens if token.type == "fence"]
    assert "evil.example" in fence or place == "document"


def test_links_in_what_was_kept_are_not_followed(runner: Runner, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden words")
    for name, file in (("a", "failure.txt"), ("b", "bench.json")):
        (runner.artifacts / f"enginebench-{name}").mkdir()
        (runner.artifacts / f"enginebench-{name}" / file).symlink_to(secret)
    (runner.artifacts / "enginebench-c").symlink_to(tmp_path)
    with serve_api() as api:
        assert run_comment(runner, api) == 0, runner.log
    assert "hidden" not in api.comments[0]["body"] and api.comments[0]["body"].count("not measured") == 2


def test_a_long_report_is_cut_to_what_github_takes(runner: Runner) -> None:
    keep(runner, "net-1", "x" * 200_000)
    keep(runner, "net-2", "y" * 200_000)
    with serve_api() as api:
        assert run_comment(runner, api) == 0, runner.log
    assert 50_000 < len(api.comments[0]["body"]) < 65_536 and "... (cut)" in api.comments[0]["body"]


@pytest.mark.parametrize("text", ["x" * 3_000, "`" * 200_000], ids=["a matrix", "backticks"])
def test_whatever_was_kept_the_comment_is_not_too_long(runner: Runner, text: str) -> None:
    for number in range(256 if text[0] == "x" else 1):
        keep(runner, f"net-{number}", text)
    with serve_api() as api:
        assert run_comment(runner, api) == 0, runner.log
    body = api.comments[0]["body"]
    assert len(body) < 65_536
    assert ("**216 more** in the artifacts of the run" in body) == (text[0] == "x")


def test_figures_that_cannot_be_drawn_do_not_stop_the_comment(runner: Runner) -> None:
    keep(runner, "net-1", describe(10.0))
    file = runner.artifacts / "enginebench-net-1" / "bench.json"
    document = json.loads(file.read_text())
    document["row"]["p50_ms"]["value"] = 1e308
    file.write_text(json.dumps(document))
    with serve_api() as api:
        assert run_comment(runner, api) == 0, runner.log
    assert "bench.json has figures that cannot be drawn" in api.comments[0]["body"]


LIMITED = {
    "for a moment": ([(429, {"retry-after": "0"}), (403, {"x-ratelimit-remaining": "0"})], 0, "created the comment"),
    "the server fails": ([(502, {"retry-after": "0"})], 0, "created the comment"),
    "for long": ([(403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "RESET"})], 1, "until the next attempt"),
    "again and again": ([(429, {"retry-after": "0"})] * 9, 1, "::error::The comment is not up to date: GET"),
    "no permission": ([(403, {})], 0, "::notice::No permission to comment"),
    "not seen": ([(404, {})], 0, "`permissions: pull-requests: write`; for a pull request from a fork"),
    "moved": ([(301, {"location": "ELSEWHERE"})], 1, "HTTP 301"),
    "not understood": ([(422, {})], 1, "HTTP 422"),
    "no such token": ([(401, {})], 1, "HTTP 401"),
}


@pytest.mark.parametrize("case", LIMITED)
def test_what_github_refuses_is_waited_for_or_said(runner: Runner, case: str) -> None:
    answers, code, message = LIMITED[case]
    keep(runner, "net-1", describe(10.0))
    with serve_api() as elsewhere:
        reset = str(int(time.time()) + 10_000)
        texts = {"RESET": reset, "ELSEWHERE": f"{elsewhere.url}/steal"}
        answers = [(status, {name: texts.get(v, v) for name, v in headers.items()}) for status, headers in answers]
        with serve_api(answers=answers) as api:
            assert run_comment(runner, api) == code, runner.log
    assert message in runner.log and "secret" not in runner.log
    assert len(api.comments) == ("created" in message)
    assert not elsewhere.calls, "the token went to another host"


def test_without_a_pull_request_nothing_is_called(runner: Runner) -> None:
    with serve_api() as api:
        assert run_comment(runner, api, number="") == 0
    assert not api.calls and "no pull request" in runner.log


# What the files say --------------------------------------------------------------------------------------------------

ACTIONS = {name: yaml.safe_load((ROOT / name).read_text("utf-8")) for name in ("action.yml", "comment/action.yml")}


@pytest.mark.parametrize("name", ACTIONS)
def test_nothing_from_outside_stands_in_a_command(name: str) -> None:
    steps = ACTIONS[name]["runs"]["steps"]
    assert not [step for step in steps if "${{" in step.get("run", "")]
    assert not [step for step in steps if "uses" in step and not re.search(r"@[0-9a-f]{40}$", step["uses"])]


def test_only_the_step_that_comments_has_a_token() -> None:
    assert "token" not in json.dumps(ACTIONS["action.yml"]["runs"]).lower()
    with_token = [step["name"] for step in ACTIONS["comment/action.yml"]["runs"]["steps"] if "token" in str(step)]
    assert with_token == [COMMENT]


def read_workflow() -> dict[Any, Any]:
    (text,) = re.findall(r"```yaml\n(on: pull_request\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    found: dict[Any, Any] = yaml.safe_load(text)
    return found


def test_the_workflow_of_the_page_measures_without_a_token_and_comments_without_code() -> None:
    workflow = read_workflow()
    events = workflow.get("on", workflow.get(True))  # YAML 1.1 reads `on` as a truth value
    assert events == "pull_request" and workflow["permissions"] == {}
    measure, comment = workflow["jobs"]["measure"], workflow["jobs"]["comment"]
    assert measure["permissions"] == {"contents": "read"}
    (checkout,) = [step for step in measure["steps"] if step["uses"].startswith("actions/checkout@")]
    assert checkout["with"] == {"persist-credentials": False, "fetch-depth": 0}
    assert comment["permissions"] == {"pull-requests": "write"} and comment["needs"] == "measure"
    assert [step["uses"].partition("@")[0] for step in comment["steps"]] == ["enginebench/enginebench/comment"]
    (used,) = [step for step in measure["steps"] if step["uses"].startswith("enginebench/")]
    assert set(used["with"]) <= set(ACTIONS["action.yml"]["inputs"])


def test_the_page_lists_every_input_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S*) ?\|", PAGE.read_text("utf-8"), re.MULTILINE)
    declared = ACTIONS["action.yml"]["inputs"]
    assert [name for name, _ in rows] == [*declared]
    for name, default in rows:
        assert default == (f"`{declared[name]['default']}`" if declared[name].get("default") else "")


def test_no_workflow_runs_beside_a_token() -> None:
    texts = [path.read_text("utf-8") for path in (ROOT / ".github").rglob("*.yml")]
    assert texts and not [text for text in texts if "pull_request_target" in text]

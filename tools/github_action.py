"""The steps of the GitHub Action, which docs/github-action.md describes: `action.yml` measures, `comment/` comments.

    python tools/github_action.py prepare|extras|measure|comment

What a step is told is in its environment, never in its command. `prepare`, `extras` and `measure` run where code of a
pull request may have run before them: they refuse to run beside a token. `comment` has one: it reads what was measured
as data, from a job that has ended, and runs nothing of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

if TYPE_CHECKING:
    from enginebench.report.bench import BenchDocument

INPUTS = ("MODEL", "AGAINST", "ENGINE", "PRECISION", "MARGIN", "LIMITS")
# By this the comment of one job of one workflow is found again, among those of its author. GitHub shows nothing of it.
MARKER = "<!-- enginebench {job} -->"
# Of a comment GitHub takes 65,536 characters.
LONGEST_COMMENT = 60_000
# Of one use of the action: the headline, and its fence. So many uses leave room for the table of each.
LONGEST_HEADLINE, MOST_BLOCKS = 250, 40
# Of an error the last lines, which say what is wrong.
LONGEST_FAILURE = 2_000
# A document of a thousand trials has a few MB; what is larger was not written by `bench`.
LARGEST_DOCUMENT = 64 << 20
# Variables that hold a token, or give one to whoever has them.
TOKENS = ("GITHUB_TOKEN", "GH_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN")
# How actions/checkout leaves its token, or its key, for later commands of git; and addresses with a password in them.
CREDENTIALS = r"^(http\..*\.extraheader|core\.sshcommand|url\..*://[^/]*@.*)$"
PASSWORD = r"://[^/@]*:[^/@]*@"
# A rate limit is waited for so often, and so long: GitHub asks for a minute where it names no time.
ATTEMPTS, LONGEST_WAIT_S = 4, 120.0
PAGE, PAGE_BYTES = 100, 4_096
# Of GitHub's own explanation of a refusal.
LONGEST_EXPLANATION = 200


def fail(text: str) -> NoReturn:
    """End the step with the message; the inputs or the workflow are to blame."""
    print(f"error: {text}", file=sys.stderr)
    raise SystemExit(2)


# The measuring job ---------------------------------------------------------------------------------------------------


def prepare(env: Mapping[str, str]) -> None:
    """Check the inputs and the job before anything is installed, and name the other side for the next steps."""
    check_job(env)
    for name in INPUTS:
        check_input(name.lower(), env[name], optional=name == "LIMITS")
    model, against = env["MODEL"], env["AGAINST"]
    if not Path(model).is_file():
        fault = "check the repository out, or make the file, in a step before"
        fail(f"model: there is no file {model!r} in {Path.cwd()}; {fault}")
    # A branch goes before a file of its name: such a file may be the pull request's own.
    commit = find_commit(against)
    stored = commit is None and is_stored(Path(against))
    side = against if stored else f"{env['ENGINE']}@{find_base(model, against, commit, env)}"
    # Jobs of a matrix with the same inputs keep their figures apart, too.
    where = (env.get(name, "") for name in ("RUNNER_OS", "RUNNER_ARCH", "GITHUB_JOB", "JOB_INDEX"))
    asked = "\n".join([*(env[name] for name in INPUTS), *where])
    stem = re.sub(r"[^a-z0-9]+", "-", Path(model).stem.lower()).strip("-")[:40]
    write_outputs(env, side=side, name=f"enginebench-{stem}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}")


def check_job(env: Mapping[str, str]) -> None:
    """Refuse to measure beside a token: code of the pull request may have run here, and may still be running."""
    if env.get("GITHUB_EVENT_NAME") == "pull_request_target":
        fail("pull_request_target runs code of a pull request beside a token that may write; use `on: pull_request`")
    if given := [name for name in TOKENS if env.get(name)]:
        fail(f"the measuring job has {', '.join(given)} in its environment; give it to the job that comments alone")
    found = run_git("config", "--name-only", "--get-regexp", CREDENTIALS).stdout.split()
    found += run_git("config", "--name-only", "--get-regexp", r"^remote\..*url$", PASSWORD).stdout.split()
    if found:
        kept = ", ".join(sorted({re.sub("//.*@", "//...@", name) for name in found}))
        fail(f"git keeps a token or key ({kept}); give actions/checkout `persist-credentials: false`")


def check_input(name: str, text: str, *, optional: bool = False) -> None:
    if not text and not optional:
        fail(f"{name}: the text is empty")
    if text.startswith("-") or not (text or "-").isprintable():
        fail(f"{name}: {text!r} begins with a hyphen, or has characters that cannot be printed")


def is_stored(path: Path) -> bool:
    """Whether `bench` takes a path as a side by itself: the file of a stored result, or a bundle."""
    return path.is_dir() or (path.is_file() and path.suffix == ".json")


def find_commit(against: str) -> str | None:
    """Return the commit of a branch, a tag or a commit's own name; None where the checkout has none of them."""
    names = [f"refs/remotes/origin/{against}", f"refs/tags/{against}"]
    names += [against] if re.fullmatch("[0-9a-f]{7,64}", against) else []
    resolved = (run_git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") for name in names)
    return next((done.stdout.strip() for done in resolved if done.returncode == 0), None)


def find_base(model: str, against: str, commit: str | None, env: Mapping[str, str]) -> Path:
    """Return the file to compare with: the model in that commit, or `against` itself."""
    if commit is None and Path(against).is_file():
        return Path(against)
    if commit is None:
        cure = "give actions/checkout `fetch-depth: 0`, or name a file"
        fail(f"against: {against!r} is neither a file nor a branch, tag or commit that this checkout has; {cure}")
    if Path(model).is_absolute() or ".." in Path(model).parts:
        fail(f"model: {model!r} is not a path inside the repository, so {against!r} cannot have it; name a file")
    digest = hashlib.sha256(f"{model}@{commit}".encode()).hexdigest()[:8]
    place = Path(env["RUNNER_TEMP"]) / f"enginebench-base-{digest}"
    run_git("worktree", "remove", "--force", str(place))  # of an earlier job of a machine that is kept
    made = run_git("worktree", "add", "--detach", str(place), commit)
    if made.returncode:
        fail(f"against: git cannot check out {against!r}: {made.stderr.strip()}")
    if not (place / model).is_file():
        fail(f"against: {against!r} has no file {model!r}; a new model has nothing to be compared with yet")
    return place / model


def run_git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)


def extras(env: Mapping[str, str]) -> None:
    """Print the extras of EngineBench that bring the engines of both sides."""
    from enginebench.core.errors import EngineBenchError
    from enginebench.core.store import read_result
    from enginebench.engines.registry import find_entry, read_engine

    try:
        names = [read_engine(env["ENGINE"])[0]]
        side = Path(env["SIDE"])
        names += [read_result(side).engine.backend] if side.suffix == ".json" and side.is_file() else []
        print(",".join(dict.fromkeys(extra for name in names if (extra := find_entry(name).extra))))
    except EngineBenchError as error:
        fail(str(error))


def measure(env: Mapping[str, str]) -> int:
    """Measure both sides, keep figures and page for the next steps, write the summary; return the code of `bench`."""
    check_job(env)
    folder = Path(env["RUNNER_TEMP"]) / "enginebench" / env["NAME"]
    run = Path(env["RUNNER_TEMP"]) / "enginebench-run" / env["NAME"]
    folder.mkdir(parents=True)
    options = {
        "--engine": env["ENGINE"],
        "--precision": env["PRECISION"],
        "--against": env["SIDE"],
        "--margin": env["MARGIN"],
        "--limit": env["LIMITS"],
        "--out": str(run),
    }
    given = [word for name, value in options.items() if value for word in (name, value)]
    document, failure = folder / "bench.json", folder / "failure.txt"
    with silence_commands():
        code = run_enginebench(["bench", env["MODEL"], *given, "--gate", "--json"], document, failure)
        if document.stat().st_size:
            failure.unlink()
            run_enginebench(["report", str(run), "--format", "html"], run / "report.txt", run / "report-failure.txt")
            if (page := run / "report.html").is_file():
                (folder / page.name).write_bytes(page.read_bytes())
    if failure.exists():
        document.unlink()
    else:
        write_outputs(env, verdict=json.loads(document.read_text("utf-8"))["comparison"]["verdict"])
    with Path(env["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8") as summary:
        summary.write(format_folder(folder, LONGEST_COMMENT) + "\n")
    return code


def run_enginebench(arguments: list[str], output: Path, failure: Path) -> int:
    """Run a command of this environment, what it prints into `output`, the end of its messages into `failure`."""
    program = str(Path(sys.executable).with_name("enginebench"))
    lines: list[str] = []
    with (
        output.open("wb") as file,
        subprocess.Popen([program, *arguments], stdout=file, stderr=subprocess.PIPE) as process,
    ):
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.decode("utf-8", "replace"))
            print(lines[-1], end="", flush=True)
    failure.write_text("".join(lines)[-LONGEST_FAILURE:], encoding="utf-8")
    return process.returncode


@contextmanager
def silence_commands() -> Iterator[None]:
    """Keep the runner from obeying what is printed meanwhile: a name of a layer may look like one of its commands."""
    end = secrets.token_hex(16)
    print(f"::stop-commands::{end}", flush=True)
    try:
        yield
    finally:
        print(f"::{end}::", flush=True)


def write_outputs(env: Mapping[str, str], **outputs: str) -> None:
    """Hand texts of one line each to the steps that follow."""
    with Path(env["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.writelines(f"{name}={text}\n" for name, text in outputs.items())


# What a pull request shows -------------------------------------------------------------------------------------------


def format_folder(folder: Path, limit: int) -> str:
    """Format what one use of the action left as markdown of about `limit` characters.

    Whatever is there was written beside code of the pull request: it is read as data, and every text of it stands in a
    fence, where GitHub reads no markup, no HTML, no name of a user and no link. Figures that cannot be drawn, such as
    times without a sensible size, are one more thing to say: they never stop the comment.
    """
    from enginebench.core.errors import EngineBenchError
    from enginebench.core.store import read_record
    from enginebench.report.bench import BenchDocument, list_bench
    from enginebench.report.terminal import format_text

    document, failure = folder / "bench.json", folder / "failure.txt"
    why = "the job that measures ended before anything was measured; its log has the reason"
    try:
        if is_plain(document):
            found = read_record(document, BenchDocument, "enginebench.bench/1")
            return f"**{format_headline(found)}**\n\n{format_fence(format_text(list_bench(found)), limit)}"
        why = failure.read_text("utf-8", "replace") if is_plain(failure) else why
    except EngineBenchError as error:
        why = str(error)
    except Exception as error:
        why = f"{document.name} has figures that cannot be drawn ({type(error).__name__})"
    return f"**not measured**\n\n{format_fence(why, limit)}"


def is_plain(file: Path) -> bool:
    """Whether a file is there, is no link, and is no larger than what `bench` writes."""
    return file.is_file() and not file.is_symlink() and file.stat().st_size <= LARGEST_DOCUMENT


def format_headline(document: BenchDocument) -> str:
    """Format verdict, outputs, precision and gate, without any text of the document."""
    from enginebench.report.bench import format_state

    row, comparison = document.row, document.comparison
    if comparison is None:
        return format_state(document)
    ran, requested = row.precision or "unknown", row.requested_precision or row.precision
    share = (row.effective_precision or {}).get(ran)
    other = f", not {requested}" if requested != row.precision else ""
    agree = {True: "agree", False: "changed", None: "not compared"}[comparison.outputs_agree]
    parts = (
        format_state(document),
        f"outputs {agree}",
        f"precision {ran}{other}" + (f" ({share:.0%})" if share is not None else ""),
        f"gate {'failed' if comparison.failures else 'passed'}",
    )
    return " · ".join(parts)


def format_fence(text: str, limit: int) -> str:
    """Put a text into a fence that it cannot end."""
    from enginebench.core.text import clean_lines

    # Shortened runs: a fence longer than each of them could alone be longer than a comment may be.
    cleaned = re.sub("`{3,}", "```", clean_lines(text).strip("\n"))
    cut = f"{cleaned[:limit]}\n... (cut)" if len(cleaned) > limit else cleaned
    return f"````text\n{cut}\n````"


def format_comment(folders: list[Path], env: Mapping[str, str]) -> str:
    """Format the comment on everything that was measured."""
    left_out = folders[MOST_BLOCKS:]
    limit = LONGEST_COMMENT // max(len(folders) - len(left_out), 1) - LONGEST_HEADLINE
    nothing = "**not measured**: the job that measures kept nothing; its log has the reason"
    blocks = [format_folder(folder, limit) for folder in folders[:MOST_BLOCKS]] or [nothing]
    blocks += [f"**{len(left_out)} more** in the artifacts of the run"] if left_out else []
    run = f"{env['GITHUB_SERVER_URL']}/{env['GITHUB_REPOSITORY']}/actions/runs/{env['GITHUB_RUN_ID']}"
    commit = f" of {env['COMMIT'][:12]}" if re.fullmatch("[0-9a-f]{40,64}", env.get("COMMIT", "")) else ""
    end = f"[The run{commit}]({run}) has the page and the figures."
    return "\n\n".join([f"{make_marker(env)}\n### EngineBench", *blocks, end])


def make_marker(env: Mapping[str, str]) -> str:
    """Make the mark of this job's comment: another workflow that uses the action keeps one of its own."""
    job = f"{env['GITHUB_WORKFLOW']}\n{env['GITHUB_JOB']}"
    return MARKER.format(job=hashlib.sha256(job.encode()).hexdigest()[:8])


# The commenting job --------------------------------------------------------------------------------------------------


class Refused(Exception):
    """GitHub refused a call; `forbidden`: this token may not; `lost`: no response, so it may have been carried out."""

    def __init__(self, text: str, *, forbidden: bool = False, lost: bool = False) -> None:
        super().__init__(text)
        self.forbidden, self.lost = forbidden, lost


class NoRedirects(HTTPRedirectHandler):
    """Follow no redirect: urllib would take the token along to the other host."""

    def redirect_request(self, *arguments: Any) -> None:
        return None


class GitHub:
    """The three calls of GitHub's API: find, create and update a comment.

    Source: https://docs.github.com/en/rest/issues/comments, and of rate limits
        https://docs.github.com/en/rest/using-the-rest-api/best-practices-for-using-the-rest-api
    """

    def __init__(self, url: str, repository: str, token: str, author: str) -> None:
        self._issues, self._token, self._author = f"{url}/repos/{repository}/issues", token, author
        self._opener = build_opener(NoRedirects)

    def write_comment(self, pull_request: int, body: str) -> str:
        """Update the comment, or create it where there is none; return what was done.

        Whether a call to create was carried out is not known where no response came: it is looked for again before
        it is repeated, or there would be two. Where there are two all the same, neither keeps old figures.
        """
        marker, _, _ = body.partition("\n")
        for attempt in range(ATTEMPTS):
            if numbers := list(self.find_comments(pull_request, marker)):
                for number in numbers:
                    self.update_comment(number, body)
                return "updated"
            try:
                self.create_comment(pull_request, body)
                return "created"
            except Refused as refused:
                if not refused.lost or attempt + 1 == ATTEMPTS:
                    raise
                print(f"{refused}; looking for the comment again")
                time.sleep(2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def find_comments(self, pull_request: int, marker: str) -> Iterator[int]:
        """Yield the numbers of our comments; those of anybody else do not count, whatever they begin with."""
        page = 0
        while True:
            page += 1
            place = f"{self._issues}/{pull_request}/comments?per_page={PAGE}&page={page}"
            comments = self._call("GET", place)
            for comment in comments:
                author = comment.get("user") or {}
                if author.get("login") == self._author and str(comment.get("body")).startswith(marker):
                    yield int(comment["id"])
            if len(comments) < PAGE:
                return

    def create_comment(self, pull_request: int, body: str) -> None:
        made = self._call("POST", f"{self._issues}/{pull_request}/comments", {"body": body})
        author = clean_line(str((made.get("user") or {}).get("login")))
        if author != self._author:
            cure = f"give the action `author: {author}`, or each run writes a comment of its own"
            raise Refused(f"it is by {author}, and comments of {self._author} are looked for; {cure}")

    def update_comment(self, comment: int, body: str) -> None:
        self._call("PATCH", f"{self._issues}/comments/{comment}", {"body": body})

    def _call(self, method: str, url: str, content: Mapping[str, str] | None = None) -> Any:
        """Return the response; rate limits and errors of the server are waited for."""
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        data = None if content is None else json.dumps(content).encode()
        for attempt in range(ATTEMPTS):
            try:
                with self._opener.open(Request(url, data, headers, method=method), timeout=60) as response:
                    return json.loads(response.read())
            except HTTPError as error:
                body = error.read(PAGE_BYTES)
                wait_s, lost = find_wait_s(error.code, error.headers, body), error.code >= 500
                if wait_s is None or (lost and method == "POST"):
                    text = f"{method} {url}: HTTP {error.code} {error.reason}{format_explanation(body)}"
                    raise Refused(text, forbidden=error.code in (403, 404), lost=lost) from error
                reason = f"HTTP {error.code}"
            except (OSError, HTTPException, ValueError) as error:  # no connection, half a response
                if method == "POST":
                    raise Refused(f"{method} {url}: {error}", lost=True) from error
                wait_s, reason = float(2**attempt), str(error)
            if attempt + 1 == ATTEMPTS or wait_s > LONGEST_WAIT_S:
                break
            print(f"{method}: {reason}; trying again in {wait_s:.0f} s")
            time.sleep(wait_s)
        raise Refused(f"{method} {url}: {reason}, and it would be {wait_s:.0f} s until the next attempt")


def find_wait_s(code: int, headers: Message, body: bytes = b"") -> float | None:
    """Return the seconds to wait before the next attempt; None where another one would change nothing.

    A secondary rate limit is a 403 that may name no time: its text alone tells it from a missing permission.
    """
    if code in (403, 429):
        if (after := headers.get("retry-after", "")).isdecimal():
            return float(after)
        if headers.get("x-ratelimit-remaining") == "0":
            return max(0.0, float(headers.get("x-ratelimit-reset") or 0) - time.time())
        return 60.0 if code == 429 or b"rate limit" in body.lower() else None
    return 1.0 if code >= 500 else None


def format_explanation(body: bytes) -> str:
    """Format what GitHub writes about a refusal, such as that the conversation is locked; "" if it writes nothing."""
    try:
        message = json.loads(body)["message"]
    except (ValueError, TypeError, KeyError):
        return ""
    return f" ({clean_line(str(message))[:LONGEST_EXPLANATION]})"


def clean_line(text: str) -> str:
    """Remove what would begin another line of the log, where the runner might obey it."""
    return "".join(character for character in text if character.isprintable())


def comment(env: Mapping[str, str]) -> int:
    """Create the comment, or update it; a token without permission is a notice, since the summary has the result."""
    if not env["PULL_REQUEST"].isdecimal():
        print("This event has no pull request, so there is nothing to comment on; the summary has the result.")
        return 0
    if Path(env["GITHUB_ACTION_PATH"]).resolve().is_relative_to(Path(env["GITHUB_WORKSPACE"]).resolve()):
        cure = "name the repository and a version instead: enginebench/enginebench/comment@VERSION"
        fail(f"a `uses: ./...` of the checkout runs what a pull request changed, beside a token that may write; {cure}")
    place = Path(env["RUNNER_TEMP"]) / "enginebench-results"
    folders = sorted(path for path in place.glob("enginebench-*") if path.is_dir() and not path.is_symlink())
    body, pull_request = format_comment(folders, env), int(env["PULL_REQUEST"])
    api = GitHub(env["GITHUB_API_URL"], env["GITHUB_REPOSITORY"], env["GITHUB_TOKEN"], env["AUTHOR"])
    try:
        done = api.write_comment(pull_request, body)
    except Refused as refused:
        if refused.forbidden:
            cure = "Give this job `permissions: pull-requests: write`; for a pull request from a fork GitHub gives none"
            print(f"::notice::No permission to comment ({refused}). The summary has the result. {cure}.")
            return 0
        print(f"::error::The comment is not up to date: {refused}")
        return 1
    print(f"{done} the comment")
    return 0


STEPS = {"prepare": prepare, "extras": extras, "measure": measure, "comment": comment}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in STEPS:
        fail(f"expected one of {', '.join(STEPS)}, found {' '.join(sys.argv[1:]) or 'nothing'}")
    raise SystemExit(STEPS[sys.argv[1]](os.environ) or 0)

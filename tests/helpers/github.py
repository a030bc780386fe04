"""A GitHub of this machine: its runner, which runs the steps of a composite action, and the calls of its API."""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from processes import ROOT, environment

# `pip` writes what it was asked to install to $RUNNER_TEMP/pip.log; `enginebench bench` measures no longer than a test
# has to wait.
PYTHON3 = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$3/bin" && cp "{venv}/pyvenv.cfg" "$3" && ln -s "{venv}/lib" "$3/lib" && ln -s "{base}" "$3/bin/python"
  printf '#!/bin/sh\\necho "$@" >> "$RUNNER_TEMP/pip.log"\\n' > "$3/bin/pip"
  cat > "$3/bin/enginebench" <<'END'
#!/bin/sh
if [ "$1" = bench ]; then set -- "$@" --processes 6 --iters 20 --warmup 2; fi
exec "$RUNNER_TEMP/enginebench-venv/bin/python" -c "from enginebench.door import main; main()" "$@"
END
  chmod +x "$3/bin/pip" "$3/bin/enginebench"
else
  exec "{venv}/bin/python" "$@"
fi
"""
EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")


class Runner:
    """Runs an action as GitHub's runner does: each `run` in a shell of its own, its inputs through the environment."""

    def __init__(self, folder: Path, workspace: Path, **variables: str) -> None:
        self.folder, self.workspace, self.artifacts = folder, workspace, folder / "artifacts"
        self.temp, self.summary, self.log = folder / "temp", folder / "summary.md", ""
        self.environments: dict[str, dict[str, str]] = {}  # what each step was given
        for place in (self.temp, self.artifacts, folder / "bin"):
            place.mkdir(parents=True, exist_ok=True)
        venv = Path(sys.prefix)
        python3 = folder / "bin" / "python3"
        python3.write_text(PYTHON3.format(venv=venv, base=(venv / "bin" / "python").resolve()))
        python3.chmod(0o755)
        self.variables = environment(folder, draws=True) | {
            "PATH": f"{folder / 'bin'}:{environment(folder)['PATH']}",
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_RUN_ID": "17",
            "GITHUB_WORKFLOW": "models",
            "GITHUB_JOB": "comment",
            "GITHUB_WORKSPACE": str(workspace),
            "GITHUB_SERVER_URL": "https://github.example",
            **variables,
        }
        for token in ("GITHUB_TOKEN", "GH_TOKEN"):
            self.variables.setdefault(token, "")

    def run(self, action: str, contexts: dict[str, str] | None = None, **inputs: str) -> int:
        """Run every step of `action`; return the exit code of the first that failed, else 0.

        Args:
            action: its folder in the repository, "" or "comment".
            contexts: values of `github.token` and the like.
        """
        described = yaml.safe_load((ROOT / action / "action.yml").read_text("utf-8"))
        known = {f"inputs.{name}": str(field.get("default", "")) for name, field in described["inputs"].items()}
        assert set(inputs) <= set(described["inputs"])
        known |= {"runner.temp": str(self.temp), **(contexts or {})} | {f"inputs.{n}": v for n, v in inputs.items()}
        known = {name: fill(value, known) for name, value in known.items()}
        failed = 0
        for step in described["runs"]["steps"]:
            condition = step.get("if", "success()")
            if condition == "success()":
                runs = not failed
            else:
                name = re.fullmatch(r"always\(\) && ([\w.]+) != ''", condition)
                assert name, f"{condition}: the runner of the tests does not know such a condition"
                runs = known.get(name[1], "") != ""
            if not runs:
                continue
            if "uses" in step:
                self.use(step["uses"].partition("@")[0], {k: fill(str(v), known) for k, v in step["with"].items()})
                continue
            output = self.folder / "output"
            output.write_text("")
            own = {name: fill(str(value), known) for name, value in step.get("env", {}).items()}
            self.environments[step["name"]] = own
            variables = self.variables | {"GITHUB_ACTION_PATH": str(ROOT / action), "GITHUB_OUTPUT": str(output)} | own
            assert step["shell"] == "bash"
            script = self.folder / "step.sh"
            script.write_text(step["run"])
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
                cwd=self.workspace,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=280,
                check=False,
            )
            self.log += done.stdout
            failed = failed or done.returncode
            for line in output.read_text().splitlines():
                name, _, value = line.partition("=")
                known[f"steps.{step['id']}.outputs.{name}"] = value
        return failed

    def use(self, action: str, given: dict[str, str]) -> None:
        """Do what GitHub's own actions do with artifacts."""
        if action == "actions/upload-artifact":
            shutil.copytree(given["path"], self.artifacts / given["name"])
        else:
            assert action == "actions/download-artifact" and given["pattern"] == "enginebench-*"
            shutil.copytree(self.artifacts, given["path"], symlinks=True)


def fill(text: str, known: dict[str, str]) -> str:
    return EXPRESSION.sub(lambda found: known.get(found[1], ""), text)


class Call(Struct, frozen=True):
    """A call that the API got."""

    method: str
    path: str
    token: str
    content: dict[str, Any]


class Api:
    """The comments of pull requests; `answers` come first, as (status, headers), whatever is asked.

    None among them is the usual answer. A 504 comes after the call was carried out: only its response was lost.
    """

    def __init__(self, comments: list[dict[str, Any]], answers: list[tuple[int, dict[str, str]] | None]) -> None:
        self.comments, self.answers, self.calls, self.url = comments, answers, list[Call](), ""
        self.login, self.explanation = "github-actions[bot]", "no"  # whose token it is; what a refusal is explained by

    def respond(self, call: Call) -> tuple[int, dict[str, str], Any]:
        self.calls.append(call)
        answer = self.answers.pop(0) if self.answers else None
        usual = self.carry_out(call) if answer is None or answer[0] == 504 else None
        return (*answer, {"message": self.explanation}) if answer else usual or (404, {}, {"message": "Not Found"})

    def carry_out(self, call: Call) -> tuple[int, dict[str, str], Any] | None:
        path, _, query = call.path.partition("?")
        if call.method == "GET" and path == "/repos/owner/name/issues/5/comments":
            size, page = (int(number) for number in re.findall(r"per_page=(\d+)&page=(\d+)", query)[0])
            return 200, {}, self.comments[size * (page - 1) : size * page]
        if call.method == "POST" and path == "/repos/owner/name/issues/5/comments":
            made = {"id": 1000 + len(self.comments), "user": {"login": self.login}, "body": call.content["body"]}
            self.comments.append(made)
            return 201, {}, made
        number = re.fullmatch(r"/repos/owner/name/issues/comments/(\d+)", path)
        if call.method == "PATCH" and number:
            (found,) = [one for one in self.comments if one["id"] == int(number[1])]
            found["body"] = call.content["body"]
            return 200, {}, found
        return None


@contextmanager
def serve_api(
    comments: list[dict[str, Any]] | None = None, answers: list[tuple[int, dict[str, str]] | None] | None = None
) -> Iterator[Api]:
    """Yield an API that serves on the loopback interface while the block runs."""
    api = Api(comments if comments is not None else [], answers or [])

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
            token = self.headers.get("authorization", "").removeprefix("Bearer ")
            status, headers, content = api.respond(Call(self.command, self.path, token, json.loads(data or b"{}")))
            body = json.dumps(content).encode()
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""A process that runs `python -m enginebench ARGS` in a fork of itself: without the price of an interpreter for each.

What takes long to import and is not ours is there already. A line of JSON on standard input is one command (`argv`,
`cwd`, `environment`, and the files `stdout` and `stderr`); the line that is written back is its exit code.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from importlib import import_module

# None of them starts a thread: a fork would have its locks, but not the thread that opens them.
PRELOADED = ("click", "msgspec", "numpy", "psutil")

LIMIT_S = 120


def perform(command: dict[str, object]) -> int:
    """The exit code of one command."""
    child = os.fork()
    if child == 0:
        become(command)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def become(command: dict[str, object]) -> None:
    """Runs the command as `python -m enginebench` would, and ends."""
    os.setsid()  # as a shell starts it: what signals its group means itself
    for descriptor, path in ((0, os.devnull), (1, command["stdout"]), (2, command["stderr"])):
        opened = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(LIMIT_S)
    os.chdir(str(command["cwd"]))
    os.environ.clear()
    os.environ.update(command["environment"])  # type: ignore[call-overload]
    sys.argv = ["enginebench", *command["argv"]]  # type: ignore[misc]
    sys.path[0] = str(command["cwd"])
    code = 0
    try:
        runpy.run_module("enginebench", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
        code = 1
    # What an interpreter does at its end, but for taking down what was preloaded: that alone takes 0.1 s.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    for name in PRELOADED:
        import_module(name)
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(perform(json.loads(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()

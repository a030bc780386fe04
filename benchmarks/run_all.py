"""Runs every benchmark and writes benchmarks/README.md: what each printed, with machine, date and command.

    python benchmarks/run_all.py [NAME ...]

With names, only these run, and the sections of the others stay as they are.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from enginebench.measure.machine import describe_machine

HERE = Path(__file__).resolve().parent
PAGE = HERE / "README.md"
HEAD = """# Benchmarks

Written by `make bench`. Times are of the machine and the day that each section names; limits are on ratios taken in one
run, or on times with room to spare. A limit that was missed says NOT met.
"""
# name -> command, in the order of the page
BENCHMARKS = {
    "loop_overhead": ["loop_overhead.py"],
    "ort_against_c": ["ort_against_c.py", "--rounds", "100"],
    "verdicts": ["verdicts.py"],
    "sequential": ["sequential.py"],
    "tune": ["tune.py"],
    "report": ["report.py"],
    "fuzz_trtexec": ["fuzz_trtexec.py", "--seconds", "120"],
    "quantize": ["quantize.py"],
    "same_engine": ["same_engine.py"],
    "disturbed": ["disturbed.py"],
    "main_job": ["main_job.py"],
    "deliver": ["deliver.py"],
    "trained": ["trained.py"],
    "zoo": ["zoo.py"],
    "fpga": ["fpga.py"],
}


def run(name: str) -> str:
    """The section of one benchmark."""
    script, *arguments = BENCHMARKS[name]
    done = subprocess.run([sys.executable, str(HERE / script), *arguments], check=False, capture_output=True, text=True)
    title = (HERE / script).read_text(encoding="utf-8").split('"""')[1].split("\n")[0]
    machine = describe_machine()
    cpu = f"{machine.cpu_model}, {machine.cores_physical} cores" + (f", {machine.virtual}" if machine.virtual else "")
    state = "every limit met" if done.returncode == 0 else f"exit code {done.returncode}"
    command = " ".join(["python", f"benchmarks/{script}", *arguments])
    text = done.stdout.rstrip() or done.stderr.rstrip()
    return (
        f"## {name}\n\n{title}\n\n{datetime.now(UTC):%Y-%m-%d}, {cpu}. `{command}`: {state}.\n\n```text\n{text}\n```\n"
    )


def main() -> int:
    names = sys.argv[1:] or list(BENCHMARKS)
    if unknown := set(names) - set(BENCHMARKS):
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    sections = {text.split()[1]: text.rstrip() + "\n" for text in re.split(r"(?m)^(?=## )", old)[1:]}
    for name in names:
        print(f"== {name}", flush=True)
        sections[name] = run(name)
        print(sections[name], flush=True)
        PAGE.write_text("\n".join([HEAD, *(sections[n] for n in BENCHMARKS if n in sections)]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

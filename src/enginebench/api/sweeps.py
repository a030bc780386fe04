"""Many models on many machines: `sweep`."""

from __future__ import annotations

from pathlib import Path

from enginebench.api.checks import PathLike
from enginebench.api.progress import open_progress
from enginebench.report.sweep.document import SweepDocument
from enginebench.workflow.fleet.spec import read_spec
from enginebench.workflow.verbs import sweep as verb


def sweep(
    spec: PathLike,
    out: PathLike,
    *,
    on: str = "local",
    kind: str | None = None,
    share_machine: bool = False,
    resume: bool = False,
    progress: bool | None = None,
) -> SweepDocument:
    """Every cell of the matrix that a TOML file describes, measured unless the store has it already.

    Args:
        spec: the TOML file.
        out: the store: a folder, or s3://BUCKET/PREFIX, that all machines see.
        on: local, auto (the Ray cluster that this machine belongs to) or ray://HOST:PORT.
        kind: which kind of machine of the sweep this one is, with `local`.
        share_machine: measure on each GPU of a machine at once, and say what that costs.
        resume: continue the sweep in the store.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: the file asks for what cannot be, or the store holds another sweep.
        DependencyError: Ray, or what the store needs, is missing; or no cluster answers.
    """
    asked = read_spec(Path(spec))
    with open_progress(progress) as reporter:
        return verb.run_sweep(
            asked, str(out), on=on, kind=kind, share_machine=share_machine, resume=resume, reporter=reporter
        )

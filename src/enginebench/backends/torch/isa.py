"""Which vector instructions torch.compile may use: asked of the compiler once a run, not once a process."""

from __future__ import annotations

from pathlib import Path

import torch
import torch._inductor.config as inductor
from torch._inductor import cpu_vec_isa

from enginebench.core.store import write_atomic


def trust_instructions(folder: Path | None) -> None:
    """Lets PyTorch's compiler take the vector instructions that an earlier process with this `folder` tried out.

    PyTorch compiles and loads a small program for each set of instructions in every process, a second each time. The
    first process with a folder lets it, and leaves the answer there. Another answer later, as on another machine,
    makes it ask again. Compiled code is found again only under the same setting, so the first changes to it, too.

    Source: torch/_inductor/cpu_vec_isa.py, `VecISA.__bool__` (`cpp.vec_isa_ok`).
    """
    inductor.cpp.vec_isa_ok = None
    if folder is None:
        return
    known = folder / f"instructions-{torch.__version__}.txt"
    stored = known.read_text("utf-8") if known.is_file() else None
    if stored is None:
        stored = str(cpu_vec_isa.pick_vec_isa())
        write_atomic(known, stored.encode())
    inductor.cpp.vec_isa_ok = True
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    if str(cpu_vec_isa.pick_vec_isa()) != stored:
        inductor.cpp.vec_isa_ok = None
        cpu_vec_isa.valid_vec_isa_list.cache_clear()

"""Prints the precisions of `make run`: with BF16 where this CPU multiplies in it.

Needs nothing but Python, as `choose_torch.py` does.
"""

from pathlib import Path

# Instructions that multiply in BF16, as Linux spells them; without them engines refuse BF16.
BF16 = {"avx512_bf16", "amx_bf16"}


def choose_precisions(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The precisions as `--precisions` takes them; without BF16 where the system does not tell."""
    words = set(cpuinfo.read_text(encoding="utf-8").split()) if cpuinfo.exists() else set()
    return "fp32,int8" if BF16.isdisjoint(words) else "fp32,bf16,int8"


if __name__ == "__main__":
    print(choose_precisions())

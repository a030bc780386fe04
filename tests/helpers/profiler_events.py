"""What PyTorch's profiler hands out, made by hand."""

from collections.abc import Callable
from typing import Any


class Event:
    """One event of the profiler."""

    def __init__(self, name: str, start: int, duration: int, *dtypes: str) -> None:
        self.values = {"name": name, "start_ns": start, "duration_ns": duration, "dtypes": list(dtypes)}

    def __getattr__(self, name: str) -> Callable[[], Any]:
        return lambda: self.values[name]

"""Events of PyTorch's profiler."""

from types import SimpleNamespace
from typing import Any


def make_event(
    name: str, start_ns: int, duration_ns: int, *dtypes: str, device: str = "CPU", number: int = 0, of: int = 0
) -> Any:
    """An event of the host or of a GPU; `of`: the `number` of the operator that launched it."""
    values: dict[str, Any] = {"name": name, "start_ns": start_ns, "duration_ns": duration_ns, "dtypes": list(dtypes)}
    values |= {"device_type": f"DeviceType.{device}", "correlation_id": number, "linked_correlation_id": of}
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})

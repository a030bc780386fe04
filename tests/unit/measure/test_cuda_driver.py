"""The CUDA driver's own numbers of GPUs, with a driver that the test plays."""

from typing import Any

from enginebench.core.cuda_devices import find_bus_id, find_gpu_name


class FakeDriver:
    """Two cards, the second on the bus first; `broken` names the call that fails."""

    def __init__(self, broken: str = "") -> None:
        self._broken = broken

    def cuInit(self, flags: int) -> int:
        return self._end("cuInit")

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return self._end("cuDeviceGet") or (101 if index > 1 else 0)

    def cuDeviceGetPCIBusId(self, name: Any, size: int, device: Any) -> int:
        name.value = (b"0000:0B:00.0", b"0000:0A:00.0")[device.value][: size - 1]
        return self._end("cuDeviceGetPCIBusId")

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = (b"Orin", b"NVIDIA H100")[device.value][: size - 1]
        return 0

    def _end(self, call: str) -> int:
        return 100 if call == self._broken else 0


def test_the_card_is_named_by_its_place_on_the_bus() -> None:
    assert [find_bus_id(i, lambda name: FakeDriver()) for i in (0, 1, 2)] == ["0000:0B:00.0", "0000:0A:00.0", None]
    assert [find_gpu_name(i, lambda name: FakeDriver()) for i in (0, 2)] == ["Orin", None]


def test_without_a_driver_there_is_no_card() -> None:
    def load(name: str) -> Any:
        raise OSError(name)

    assert find_bus_id(0, load) is None

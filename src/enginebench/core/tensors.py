"""The size of a tensor: of a graph whose work is counted."""

from msgspec import Struct


class TensorWork(Struct, frozen=True, kw_only=True):
    """One tensor: how many values, in how many bytes each."""

    values: int
    bytes_each: float
    floating: bool = True  # an engine may keep it in a shorter type

    def count_bytes(self, widest: float | None = None) -> float:
        """Bytes of the tensor where no value takes more than `widest`; whole numbers stay as they are."""
        each = self.bytes_each if widest is None or not self.floating else min(widest, self.bytes_each)
        return self.values * each

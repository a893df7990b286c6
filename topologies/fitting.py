"""What would fit: the nearest valid sizes that an error names."""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: ASIC sizes in use, in ports of NIC speed (400G: 3.2T to 204.8T), and small ones for figures and laptops.
ASIC_SIZES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)


def nearest(fits: Iterable[int], wanted: int, count: int = 4) -> list[int]:
    """The `count` values closest to `wanted`, closest first."""
    return sorted(set(fits), key=lambda n: (abs(n - wanted), n))[:count]


def asic_hint(gpus: int, fits: Callable[[int], bool]) -> str:
    """A sentence naming the ASIC sizes that carry exactly `gpus`."""
    sizes = [size for size in ASIC_SIZES if fits(size)]
    return f"asic_ports that fit {gpus} GPUs: {sizes or 'none of the usual ones'}"

"""Energy of the processor, where the system tells: the counters of RAPL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

ROOT = Path("/sys/class/powercap")


def joules_of(work: Callable[[], object], root: Path = ROOT) -> float | None:
    """Return the joules of all processor packages while `work` runs; None where they cannot be read.

    Whatever else runs meanwhile is counted too.
    """
    before = _read(root)
    work()
    after = _read(root)
    if not before or before.keys() != after.keys():
        return None
    used = [(after[name][0] - start) % (most + 1) for name, (start, most) in before.items()]
    return sum(used) / 1e6


def _read(root: Path) -> dict[str, tuple[int, int]]:
    """Return the counter of every package, and where it starts again, in microjoules."""
    found = {}
    try:
        for zone in sorted(root.glob("intel-rapl:*")):
            if zone.name.count(":") == 1:  # not the parts of a package
                values = [int((zone / name).read_text()) for name in ("energy_uj", "max_energy_range_uj")]
                found[zone.name] = (values[0], values[1])
    except (OSError, ValueError):  # readable by root alone on most systems
        return {}
    return found

"""Energy of the processor, where the system tells: the counters of RAPL."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/class/powercap")


Counters = dict[str, tuple[int, int]]  # package -> microjoules, and where the counter starts again


def joules_between(before: Counters, after: Counters) -> float | None:
    """Return the joules of all processor packages between two readings; None where they cannot be read.

    Whatever else ran meanwhile is counted too.
    """
    if not before or before.keys() != after.keys():
        return None
    used = [(after[name][0] - start) % (most + 1) for name, (start, most) in before.items()]
    return sum(used) / 1e6


def read_counters(root: Path | None = None) -> Counters:
    """Return the counter of every package, and where it starts again, in microjoules."""
    found = {}
    try:
        for zone in sorted((root or ROOT).glob("intel-rapl:*")):
            if zone.name.count(":") == 1:  # not the parts of a package
                values = [int((zone / name).read_text()) for name in ("energy_uj", "max_energy_range_uj")]
                found[zone.name] = (values[0], values[1])
    except (OSError, ValueError):  # readable by root alone on most systems
        return {}
    return found

"""The support table, read off the architectures, for `espalier list architectures` and docs/support.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from .table import Architecture, Part, architectures

HEADER = """# Supported architectures

Made from the tables in `src/espalier/architectures/` by `make docs`; do not edit.

"cut" means really removed: gated ≡ cut is tested to float precision, with sdpa and eager attention.
A unit of a model with grouped queries is a key-value group.
"""


def rows() -> list[dict[str, str]]:
    """One row per model type."""
    return [_row(kind, table) for kind, table in sorted(architectures().items())]


def _row(kind: str, table: Architecture) -> dict[str, str]:
    heads = [p for p in table.parts if p.target == "heads"]
    neurons = [p for p in table.parts if p.target == "neurons"]
    return {
        "model type": kind,
        "heads": _can(heads),
        "neurons": _can(neurons),
        "plain export": _plain(heads, neurons),
        "note": "; ".join(filter(None, [*(p.uncuttable for p in table.parts), table.about.get(kind, "")])),
    }


def _can(parts: list[Part]) -> str:
    if any(p.uncuttable for p in parts):
        return "gated only"
    units = "groups" if any("g" in p.sizes for p in parts) else ""
    cross = "self and cross" if any(p.name == "cross_heads" for p in parts) else ""
    return ", ".join(filter(None, ["cut", units, cross]))


def _plain(heads: list[Part], neurons: list[Part]) -> str:
    both = [name for name, parts in (("heads", heads), ("neurons", neurons)) if all(p.config for p in parts)]
    return ", ".join(both) or "–"


def markdown() -> str:
    """The whole page: one row per model type."""
    table = rows()
    return f"{HEADER}\n{_lines(table)}\n{len(table)} model types.\n"


def families() -> str:
    """The short table of the README: one row per layout."""
    by_table: dict[int, list[str]] = {}
    for kind, table in architectures().items():
        by_table.setdefault(id(table), []).append(kind)
    short = []
    for kinds in sorted(by_table.values()):
        row = _row(kinds[0], architectures()[kinds[0]])
        why = "; ".join(p.uncuttable for p in architectures()[kinds[0]].parts if p.uncuttable)
        heads = f"{row['heads']}: {why}" if why else row["heads"]
        types = ", ".join(f"`{kind}`" for kind in kinds)
        short.append({"model types": types, "heads": heads, "neurons": row["neurons"]})
    return f"{_lines(short)}\n{len(architectures())} model types.\n"


def _lines(table: list[dict[str, str]]) -> str:
    lines = ["| " + " | ".join(table[0]) + " |", "|" + " --- |" * len(table[0])]
    lines += ["| " + " | ".join(v.replace("|", "\\|") for v in row.values()) + " |" for row in table]
    return "\n".join(lines) + "\n"


def between_marks(text: str) -> str:
    """The text with the short table between its `support` marks made anew."""
    return re.sub(
        r"(<!-- support -->\n).*?(<!-- /support -->)",
        lambda mark: f"{mark[1]}{families()}{mark[2]}",
        text,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    page, readme = (Path(name) for name in sys.argv[1:])
    page.write_text(markdown(), encoding="utf-8")
    readme.write_text(between_marks(readme.read_text(encoding="utf-8")), encoding="utf-8")

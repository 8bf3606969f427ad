"""The support table, read off the anatomies, for `espalier list anatomies` and docs/support.md."""

from __future__ import annotations

from .anatomy import Anatomy, Part, anatomies

HEADER = """# Supported architectures

Made from the tables in `src/espalier/anatomies/` by `make docs`; do not edit.

"cut" means really removed: gated ≡ cut is tested to float precision, with sdpa and eager attention.
A unit of a model with grouped queries is a key-value group.
"""


def rows() -> list[dict[str, str]]:
    """One row per model type."""
    return [_row(kind, table) for kind, table in sorted(anatomies().items())]


def _row(kind: str, table: Anatomy) -> dict[str, str]:
    heads = [p for p in table.parts if p.kind == "heads"]
    neurons = [p for p in table.parts if p.kind == "neurons"]
    return {
        "model type": kind,
        "heads": _can(heads),
        "neurons": _can(neurons),
        "plain export": _plain(heads, neurons),
        "note": "; ".join(
            filter(None, [*(p.uncuttable for p in table.parts), table.about.get(kind, "")])
        ),
    }


def _can(parts: list[Part]) -> str:
    if any(p.uncuttable for p in parts):
        return "gated only"
    units = "groups" if any("g" in p.sizes for p in parts) else ""
    cross = "self and cross" if any(p.name == "cross_heads" for p in parts) else ""
    return ", ".join(filter(None, ["cut", units, cross]))


def _plain(heads: list[Part], neurons: list[Part]) -> str:
    both = [
        name
        for name, parts in (("heads", heads), ("neurons", neurons))
        if all(p.config for p in parts)
    ]
    return ", ".join(both) or "–"


def markdown() -> str:
    table = rows()
    columns = list(table[0])
    lines = [HEADER, "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += [
        "| " + " | ".join(row[c].replace("|", "\\|") for c in columns) + " |" for row in table
    ]
    lines.append(f"\n{len(table)} model types.\n")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(), end="")

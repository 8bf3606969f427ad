"""The table of supported architectures, for `espalier list architectures`, docs/support.md and the README."""

import re
import sys
from pathlib import Path

from .table import Architecture, UnitSpec, architectures

HEADER = """# Supported architectures

Made from the tables in `src/espalier/architectures/` by `make docs`; do not edit.

"cut" means really removed: gated ≡ cut is tested to float precision, with sdpa and eager attention.
A unit of a model with grouped queries is a key-value group. "layers" are whole blocks; attention and
feed-forward sublayers can be removed from every model type here.
"""


def rows() -> list[dict[str, str]]:
    """Return one row per model type."""
    return [_row(model_type, table) for model_type, table in sorted(architectures().items())]


def _row(model_type: str, table: Architecture) -> dict[str, str]:
    specs = {target: [s for s in table.specs if s.target == target] for target in ("heads", "neurons")}
    plain = [target for target, own in specs.items() if own and all(spec.config for spec in own)]
    notes = [*(spec.uncuttable for spec in table.specs), table.about.get(model_type, "")]
    if model_type in table.fixed:
        notes.append(f"no block can be removed: {table.fixed[model_type]}")
    entries = {entry: why for entry, why in table.fixed.items() if entry not in table.models}
    notes += [f"no block with `{entry}`: {why}" for entry, why in entries.items()]
    return {
        "model type": model_type,
        **{target: _support(own) for target, own in specs.items()},
        "layers": "sublayers only" if model_type in table.fixed else "cut",
        "plain export": ", ".join(plain) or "–",
        "note": "; ".join(filter(None, notes)),
    }


def _support(specs: list[UnitSpec]) -> str:
    if not specs:
        return "none"
    if any(spec.uncuttable for spec in specs):
        return "gated only"
    groups = "groups" if any("g" in spec.sizes for spec in specs) else ""
    cross = "self and cross" if any(spec.name == "cross_heads" for spec in specs) else ""
    return ", ".join(filter(None, ["cut", groups, cross]))


def markdown() -> str:
    """Return the whole page: one row per model type."""
    table = rows()
    return f"{HEADER}\n{_lines(table)}\n{len(table)} model types.\n"


def families() -> str:
    """Return the short table of the README: one row per family."""
    tables, short = {id(table): table for table in architectures().values()}.values(), []
    for table in sorted(tables, key=lambda table: table.models):
        row, why = _row(table.models[0], table), "; ".join(s.uncuttable for s in table.specs if s.uncuttable)
        heads = f"{row['heads']}: {why}" if why else row["heads"]
        listed = ", ".join(f"`{model_type}`" for model_type in table.models)
        short.append({"model types": listed, "heads": heads, "neurons": row["neurons"]})
    return f"{_lines(short)}\n{len(architectures())} model types.\n"


def _lines(table: list[dict[str, str]]) -> str:
    lines = ["| " + " | ".join(table[0]) + " |", "|" + " --- |" * len(table[0])]
    lines += ["| " + " | ".join(v.replace("|", "\\|") for v in row.values()) + " |" for row in table]
    return "\n".join(lines) + "\n"


def between_marks(text: str) -> str:
    """Return the text with the short table between its `support` marks replaced."""
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

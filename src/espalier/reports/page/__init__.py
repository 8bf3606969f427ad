"""The page: one HTML file that shows runs to a person. It needs no network and no server.

Charts are drawn by Vega-Lite, 0.9 MB brought by vl-convert; Plotly alone would take the five megabytes that a
page may have. What comes from files is text: escaped in HTML, and as JSON without `<` in scripts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...analysis.results import Results
from ...core.errors import DependencyError
from ...io.files import write_bytes
from .. import text
from ..tables import Table
from . import facts, origin, tokens

if TYPE_CHECKING:
    from .. import Report

HERE = Path(__file__).parent


def write_page(report: Report, path: Path) -> Path:
    """Write the page of a report into a file."""
    write_bytes(path, render(report).encode())
    return path


def render(report: Report, live: str = "") -> str:
    """Return the page; `live` is the state that a server compares with its own to renew the page."""
    runs = [describe_run(report, one) for one in report.results]
    sections = "".join(section(report, one, i) for i, one in enumerate(report.results))
    several = len(runs) > 1
    parts = {
        "TITLE": escape(" · ".join(dict.fromkeys(one.model for one in report.results))),
        "STYLE": (HERE / "page.css").read_text(encoding="utf-8"),
        "TABS": tabs(report.results) if several else "",
        "RUNS": sections,
        "DATA": to_script({"runs": runs, "live": live}),
        "LIBRARY": library(),
        "SCRIPT": (HERE / "page.js").read_text(encoding="utf-8"),
    }
    page = (HERE / "page.html").read_text(encoding="utf-8")
    before, *rest = page.split("{{")
    return before + "".join(parts[name] + after for name, after in (one.split("}}", 1) for one in rest))


def to_script(data: Any) -> str:
    """Return JSON that no text can break out of: `<` and the separators of lines are escaped."""
    found = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        found = found.replace(letter, f"\\u{ord(letter):04x}")
    return found


@cache
def library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    try:
        import vl_convert
    except ImportError:
        raise DependencyError("vl-convert-python", "report", "the page") from None
    bundle: Any = vl_convert.javascript_bundle
    found: str = bundle()
    return found.replace("</script", "<\\/script")


def describe_run(report: Report, results: Results) -> dict[str, Any]:
    """Return the data of one tab."""
    found = facts.describe(results, report.sheets, report.tolerance)
    return {**found, "tokens": tokens.describe(results)}


def tabs(results: Sequence[Results]) -> str:
    """Return a tab for each run."""
    shown = "".join(
        f'<button role="tab" id="tab-{i}" aria-controls="run-{i}" aria-selected="{str(not i).lower()}" '
        f'tabindex="{0 if not i else -1}">{escape(one.model)}<small>{escape(_about(one))}</small></button>'
        for i, one in enumerate(results)
    )
    return f'<div role="tablist" aria-label="runs">{shown}</div>'


def _about(results: Results) -> str:
    about = " on ".join(filter(None, (results.target, results.task)))
    return "" if about in results.model else about


def section(report: Report, results: Results, number: int) -> str:
    """Return the tab of one run: everything that a reader without scripts needs, and places for the rest."""
    own = [row for row in report.sheets["summary"] if row["model"] == results.model]
    levels = [row for row in report.sheets["by_level"] if row["model"] == results.model]
    notes = [line for line in report.notes() if line.startswith(f"{results.model}: ")]
    parts: Mapping[str, str] = {
        "NUMBER": str(number),
        "HIDDEN": " hidden" if number else "",
        "MODEL": escape(results.model),
        "ABOUT": escape(f"{text.units(results)}; {facts.describe_data(results)}".rstrip("; ")),
        "VERDICT": escape(report.verdict(results)),
        "CURVES": escape(facts.describe_curves(results)),
        "RULE": escape(facts.describe_rule(results, report.tolerance)),
        "METHODS": facts.methods_table(results, own, number),
        "TOKENS": tokens.section(results),
        "REPRODUCE": origin.section(results, report.tolerance),
        "LEVELS": Table(facts.level_rows(results, levels)).to_html(),
        "NOTES": "".join(f"<li>{escape(line.partition(': ')[2])}</li>" for line in notes),
    }
    template = (HERE / "run.html").read_text(encoding="utf-8")
    before, *rest = template.split("{{")
    return before + "".join(parts[name] + after for name, after in (one.split("}}", 1) for one in rest))

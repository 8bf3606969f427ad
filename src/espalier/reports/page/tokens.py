"""The token picture, if a run has one: text from outside, each token shaded by how long it is kept.

A run folder may hold tokens.json: {"title": ..., "texts": [{"tokens": [...], "kept": [...]}]}; `kept` is the
share of the layers that a token is kept in, from 0 to 1.
"""

from __future__ import annotations

from html import escape

from ...analysis.results import Results

MOST_TEXTS, MOST_TOKENS = 50, 512


def section(results: Results) -> str:
    """Return the section of the page, or nothing."""
    found = results.tokens
    if not found:
        return ""
    texts = "".join(f"<p class='tokens'>{_draw(one)}</p>" for one in found["texts"][:MOST_TEXTS])
    return f"<section><h2>{escape(str(found.get('title') or 'Tokens'))}</h2>{texts}</section>"


def _draw(text: dict[str, list[object]]) -> str:
    shown = []
    for token, kept in list(zip(text["tokens"], text["kept"]))[:MOST_TOKENS]:
        share = min(1.0, max(0.0, float(str(kept))))
        about = f"kept in {100 * share:.0f} % of the layers"
        shown.append(f'<span style="--kept:{share:.3f}" title="{about}">{escape(str(token))}</span>')
    return " ".join(shown)

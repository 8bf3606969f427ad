"""The token picture, if a run has one: text from outside, each token shaded by how long it is kept.

A run folder may hold tokens.json: {"title": ..., "texts": [{"tokens": [...], "kept": [...]}]}; `kept` is the
share of the layers that a token is kept in, from 0 to 1. With "layers", [{"kept": [...], "scores": [...]}], a
slider steps through them; without scripts the shares are shown. "model" says whose layers they are: each text
shows it where there are several.
"""

from __future__ import annotations

from html import escape
from typing import Any

from ...analysis.results import Results

MOST_TEXTS, MOST_TOKENS = 50, 512
HINT = (
    "Move the slider to see which tokens each layer passes on; the stronger a colour, the higher a score. "
    "Point at a token for its score; or press Tab, then left and right for tokens, up and down for layers."
)


def describe(results: Results) -> list[dict[str, Any]]:
    """Return the data of every text, for the script of the page."""
    found = results.tokens["texts"][:MOST_TEXTS] if results.tokens else []
    return [
        {
            "tokens": one["tokens"][:MOST_TOKENS],
            "layers": [
                {name: layer[name][:MOST_TOKENS] for name in ("kept", "scores")}
                for layer in one.get("layers", ())
            ],
        }
        for one in found
    ]


def section(results: Results) -> str:
    """Return the section of the page, or nothing."""
    found = results.tokens
    if not found:
        return ""
    shown = found["texts"][:MOST_TEXTS]
    several = len({one.get("model") for one in shown}) > 1
    texts = "".join(_text(one, number, several) for number, one in enumerate(shown))
    layers = any(one.get("layers") for one in shown)
    hint = f"<p class='hint'>{HINT}</p>" if layers else ""
    return f"<section><h2>{escape(str(found.get('title') or 'Tokens'))}</h2>{hint}{texts}</section>"


def _text(text: dict[str, Any], number: int, named: bool) -> str:
    last = len(text.get("layers", ()))
    start = (last + 1) // 2  # after the last layer often one token is left
    slider = (
        '<div class="controls" hidden><label class="wide">Layer '
        f'<input class="level layer" type="range" min="0" max="{last}" step="1" value="{start}"></label>'
        '<output class="at left" aria-live="polite"></output></div>'
    )
    detail = '<p class="hint token-about" aria-live="polite"></p>'
    label = f'role="group" aria-label="tokens of text {number + 1}"'
    before, after = (slider, detail) if last else ("", "")
    name = f"<h3>{escape(str(text.get('model') or 'another model'))}</h3>" if named else ""
    return f"<div class='text'>{name}{before}<p class='tokens' {label}>{_draw(text)}</p>{after}</div>"


def _draw(text: dict[str, Any]) -> str:
    shown = []
    for token, kept in list(zip(text["tokens"], text["kept"]))[:MOST_TOKENS]:
        share = min(1.0, max(0.0, float(str(kept))))
        about = f"kept in {100 * share:.0f} % of the layers"
        shown.append(f'<span style="--kept:{share:.3f}" title="{about}">{escape(str(token))}</span>')
    return " ".join(shown)

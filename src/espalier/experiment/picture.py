"""What the page of a run shows of a model that drops tokens: some texts, layer by layer."""

from __future__ import annotations

from pathlib import Path

from ..analysis.picture import title_of
from ..io.files import write_json
from ..io.paths import TOKENS
from ..tokens.installation import schedule_of
from ..tokens.picture import picture_of
from .session import Session

TEXTS = 3


def write_pictures(session: Session, run: Path) -> None:
    """Write which tokens of the first validation texts are left after each layer, if tokens are dropped."""
    if schedule_of(session.model) is None or (run / TOKENS).exists():
        return
    texts = list(session.task.validation.texts[:TEXTS])
    pictures = [
        {**picture_of(session.model, session.tokenizer, text, session.max_length), "model": session.name}
        for text in texts
    ]
    write_json(run / TOKENS, {"title": title_of(pictures), "texts": pictures})

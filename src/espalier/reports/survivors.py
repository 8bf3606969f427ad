"""Which tokens of a text survive in which layer: a table, data for a page, and a picture."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from ..analysis.picture import TITLE, read_tokens, title_of
from ..core.errors import FolderError, InvalidValueError
from ..experiment.model import short_name
from ..experiment.prune_tokens import untuned_schedule
from ..experiment.verb import verb
from ..io.files import write_json
from ..io.paths import ROWS, TOKENS, named_path
from ..tasks.batches import max_tokens
from ..tokens.installation import schedule_of, set_schedule
from ..tokens.picture import picture_of
from ..tokens.schedule import FORECAST, THRESHOLD, TOP
from . import style
from .outcome import Outcome
from .tables import Table

GAP = "·"


@verb
def show_tokens(
    model: Any,
    text: str,
    *,
    tokenizer: Any = None,
    remove: float | None = None,
    method: str | None = None,
    figure: str | Path | None = None,
    run: str | Path | None = None,
) -> Outcome:
    """Show which tokens of a text are left after each layer, by the model's own schedule or by `remove`.

    With `remove` a model with a schedule removes that fraction by a schedule of the same form; any other
    model, or another `method`, by that of `prune`, but of `top`, as no forecast was fitted to it.
    `run` is the folder of a comparison, whose page then shows the text, layer by layer.

    >>> espalier.show_tokens("small", "a film that is never dull", figure="tokens.png")
    """
    if not isinstance(text, str) or not text.strip() or len(text) > 100_000:
        raise InvalidValueError("`text` is a text of at most 100,000 characters, and not empty", "text")
    name, found, reader = _open(model, tokenizer)
    schedule = schedule_of(found)
    if remove is not None and schedule is not None and method in (None, schedule.way):
        schedule = schedule.removing(remove)
    elif method in (FORECAST, THRESHOLD):
        raise InvalidValueError(
            f"{name} has no {method}, which needs texts to be fitted to: take top or merge, or make one by "
            "espalier.prune with `target` tokens",
            "method",
        )
    elif remove is not None:
        schedule = untuned_schedule(found, method or TOP, remove)
    elif method is not None and (schedule is None or method != schedule.way):
        raise InvalidValueError(f"say how many tokens `{method}` removes by `remove`, as 0.5", "remove")
    if schedule is None:
        raise InvalidValueError(f"{name} drops no tokens: say how many by `remove`, as 0.5", "remove")
    set_schedule(found, schedule)
    picture = picture_of(found, reader, text, max_tokens(found, reader))
    words, kept = picture["tokens"], [one["kept"] for one in picture["layers"]]
    facts = {
        "model": name,
        "schedule": schedule.about(),
        "tokens": words,
        "layers": [
            {"layer": number, "left": sum(one["kept"]), **one} for number, one in enumerate(picture["layers"])
        ],
    }
    rows = [{"layer": "text", "tokens": str(len(words)), "kept": " ".join(words)}]
    for number, row in enumerate(kept):
        shown = " ".join(word if keep else GAP for word, keep in zip(words, row))
        rows.append({"layer": str(number), "tokens": str(sum(row)), "kept": shown})
    notes = []
    if run is not None:
        place = add_picture(named_path(run, "run"), name, picture)
        notes = [f"The page of {place.parent} shows it: espalier report {place.parent}"]
    if figure is not None:
        with style.matplotlib_settings():
            files = style.save(draw(facts), style.stem(figure))
        notes += [f"The figure is in {path}." for path in files]
    counts = " → ".join(str(one) for one in [len(words), *(sum(row) for row in kept)])
    return Outcome(facts, [Table(rows, caption=f"{name}: {counts} tokens")], notes)


def add_picture(run: Path, model: str, picture: dict[str, Any]) -> Path:
    """Add the picture of a text to what the page of a run shows; the same text and model replace theirs."""
    if not (run / ROWS).is_file():
        raise FolderError(f"{run} holds no comparison: it has no {ROWS}", run)
    found = read_tokens(run / TOKENS) or {"title": TITLE, "texts": []}
    own, title = {**picture, "model": model}, found["title"]
    first = title.removeprefix(TITLE) if title.startswith(TITLE) else ""  # of texts that do not say it
    earlier = [{**one, "model": one["model"] or first} for one in found["texts"]]
    texts = [one for one in earlier if (one["tokens"], one["model"]) != (own["tokens"], model)] + [own]
    others = title if title and not title.startswith(TITLE) else ""  # a title that somebody chose stays
    write_json(run / TOKENS, {"title": others or title_of(texts), "texts": texts})
    return run / TOKENS


def _open(model: Any, tokenizer: Any) -> tuple[str, Any, Any]:
    if not isinstance(model, (str, Path)):
        if tokenizer is None:
            raise InvalidValueError("a live model needs its `tokenizer`", "tokenizer")
        return type(model).__name__, copy.deepcopy(model).eval(), tokenizer
    import transformers

    from ..experiment.exporter import load_any
    from ..storage.resolve import weights_path

    found = load_any(model)
    return short_name(str(model)), found, transformers.AutoTokenizer.from_pretrained(weights_path(str(model)))


def draw(facts: dict[str, Any]) -> style.Figure:
    """Draw a row for each layer, the text on top: what is kept is dark, what was dropped is light."""
    words, layers = facts["tokens"], facts["layers"]
    figure, (axis,) = style.panels([0.9 + 0.24 * (len(layers) + 1)], columns=1)
    figure.set_figwidth(min(max(5.2, 0.27 * len(words) + 1.2), 16))
    grid = [[1] * len(words), *([int(keep) for keep in one["kept"]] for one in layers)]
    from matplotlib.colors import ListedColormap

    colours = ListedColormap([style.LIGHT, style.DARK])
    few = len(words) <= 80
    edges: Any = {"edgecolors": "white", "linewidth": 0.8} if few else {}
    axis.pcolormesh(grid, cmap=colours, vmin=0, vmax=1, **edges)
    axis.set_ylim(len(grid), 0)
    names = [f"text  {len(words)}", *(f"{one['layer']}  {one['left']}" for one in layers)]
    axis.set_yticks([i + 0.5 for i in range(len(grid))], names)
    axis.set_ylabel("layer and tokens left")
    if few:
        shown = [style.plain(word, 16) for word in words]
        axis.set_xticks([i + 0.5 for i in range(len(words))], shown, rotation=90)
        axis.xaxis.tick_top()
    else:
        axis.set_xlabel("token")
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    return figure

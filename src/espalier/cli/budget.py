"""Options of espalier prune: budgets first, then those of a single method."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import DATA, TRAINING

METHOD, OTHERS = "Method, and one target by itself", "Other budgets"

Speedup = Annotated[
    str | None, typer.Option(help="How many times as fast, measured here: 2, or several as 1.5,2,3.")
]
Macs = Annotated[
    str | None,
    typer.Option(help="The fraction of the blocks' multiply-accumulates to keep.", rich_help_panel=OTHERS),
]
Params = Annotated[
    str | None, typer.Option(help="The fraction of all parameters to keep.", rich_help_panel=OTHERS)
]
Size = Annotated[str | None, typer.Option(help="The size of the weights, as 40MB.", rich_help_panel=OTHERS)]
Latency = Annotated[str | None, typer.Option(help="The time of one pass, as 5ms.", rich_help_panel=OTHERS)]
Tolerance = Annotated[
    str | None, typer.Option(help="Or as small as validation allows: 0.01 or 1pt, or 1% of the original.")
]
Repair = Annotated[
    str | None,
    typer.Option(
        help="refit (default of a budget and of tokens), scale, bias or none.", rich_help_panel=OTHERS
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(min=1, help="Texts of the passes that are timed: 1; or of a step.", rich_help_panel=OTHERS),
]
Multiple = Annotated[
    int | None,
    typer.Option(min=1, help="Neurons of a layer are a multiple of it: 8.", rich_help_panel=OTHERS),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, float16 or bfloat16 to save in. Default: as the model is stored.",
        rich_help_panel=OTHERS,
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        help="As for compare, wanda:scope=2:4; of tokens forecast, top, threshold or merge. Default: obs for "
        "a budget, gnorm, magnitude for weights, forecast.",
        rich_help_panel=METHOD,
    ),
]
Recipe = Annotated[
    str | None,
    typer.Option(help="For a budget, as a paper does it: kwon, kcm, kprune.", rich_help_panel=METHOD),
]
Calibration = Annotated[
    int | None,
    typer.Option(
        min=1, help="Training examples to score by: 256, or as the recipe says.", rich_help_panel=DATA
    ),
]
Target = Annotated[
    str,
    typer.Option(
        help="heads, neurons, both with a comma, layers, attention, ffn, slots, tokens, vocabulary, or "
        "weights (+embeddings, +head, +norms); auto: heads and neurons for a budget, else heads.",
        rich_help_panel=METHOD,
    ),
]
Remove = Annotated[
    float | None, typer.Option(help="The fraction of the target to remove.", rich_help_panel=METHOD)
]
Epochs = Annotated[
    int, typer.Option(min=0, help="Prune while training for so many epochs.", rich_help_panel=TRAINING)
]

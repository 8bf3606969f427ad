"""What is gone, as Vega-Lite specifications: a map of the units of every layer, or bars of wide layers."""

from __future__ import annotations

from collections.abc import Sequence

from .charts import FEW_LABELS, Spec, chart

SCORED = {"score": "score before pruning", "rank": "place in the order"}


def unit_map(layers: Sequence[int], unit: str, by: str) -> Spec:
    """Return the layer × unit map: kept cells full, removed ones small, both coloured by one of SCORED."""
    scored = SCORED[by]
    cell = max(14, min(34, 440 // max(layers)))
    flat: Spec = {"type": "ordinal", "scale": {"padding": 0.08}}
    axis = {"labelAngle": 0, "labelOverlap": True, "grid": False, "ticks": False}
    x, y = (
        {**flat, "field": name, "title": title, "axis": axis}
        for name, title in (("unit", unit), ("layer", "layer"))
    )
    colour: Spec = {
        "test": "datum.score !== null",  # a unit may have no score
        "field": "score",
        "type": "quantitative",
        "scale": {"scheme": "viridis"},
        "legend": {"title": scored, "orient": "bottom", "gradientLength": 220, "format": ".3~g"},
    }
    colour = {"condition": colour, "value": "#8a8a8a"}
    tips = [
        {"field": "layer", "title": "layer"},
        {"field": "unit", "title": unit},
        {"field": "score", "title": scored, "format": ".4~g"},
        {"field": "rank", "title": "removed as number"},
        {"field": "state", "title": "here"},
    ]
    gone, now = "datum.rank !== null && datum.rank <= k", "datum.rank > before && datum.rank <= k"
    both = {"x": x, "y": y, "tooltip": tips}
    return chart(
        {
            "data": {"name": "units"},
            "params": [{"name": "k", "value": 0}, {"name": "before", "value": 0}],
            "transform": [{"calculate": f"({gone}) ? 'removed' : 'kept'", "as": "state"}],
            "layer": [
                {"name": "cell", "mark": {"type": "rect", "cornerRadius": 2}, "encoding": both},
                {
                    "name": "kept",
                    "mark": {"type": "rect", "cornerRadius": 2},
                    "encoding": {
                        **both,
                        "color": colour,
                        "opacity": {"condition": {"test": gone, "value": 0}, "value": 1},
                    },
                },
                {
                    "name": "gone",
                    "mark": {"type": "square", "size": (0.34 * cell) ** 2, "invalid": None},
                    "encoding": {
                        **both,
                        "color": colour,
                        "opacity": {"condition": {"test": gone, "value": 0.9}, "value": 0},
                    },
                },
                {
                    "name": "now",
                    "transform": [{"filter": now}],
                    "mark": {"type": "rect", "filled": False, "strokeWidth": 2, "cornerRadius": 2},
                    "encoding": both,
                },
            ],
            "width": {"step": cell},
            "height": {"step": cell},
        },
        fits=False,
    )


def layer_bars(layers: Sequence[int], target: str) -> Spec:
    """Return how many units each layer keeps, as bars."""
    height = max(11, min(26, 360 // len(layers)))
    both = {
        "y": {"field": "layer", "type": "ordinal", "title": "layer", "axis": {"grid": False, "ticks": False}},
        "tooltip": [{"field": name} for name in ("layer", "kept", "removed")],
    }
    most = {"domain": [0, max(layers)], "nice": False}
    x = {"type": "quantitative", "scale": most, "title": f"{target} of each layer", "axis": FEW_LABELS}
    return chart(
        {
            "data": {"name": "layers"},
            "layer": [
                {"name": "cell", "mark": "bar", "encoding": {**both, "x": {**x, "field": "units"}}},
                {"name": "bar", "mark": "bar", "encoding": {**both, "x": {**x, "field": "kept"}}},
            ],
            "height": height * len(layers),
        }
    )

"""The charts of the page as Vega-Lite specifications. Their data and signals are set by page.js.

Curves have the signals `hidden` (methods that are switched off) and `focus` (the method looked at). The name
of a layer becomes a class of its marks: colours of text, lines and marks that stand for no method come from
the style sheet, so that a theme needs no second specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Spec = dict[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name, which is never fetched
AXES = {  # what a point of a curve costs: the field of its rows, and its title
    "removed": "removed",
    "parameters": "parameters",
    "macs": "multiply-accumulates of the blocks",
    "mib": "size of the weights, MiB",
    "ms": "measured latency, ms",
}
SHOWN = {"filter": "indexof(hidden, datum.m) < 0"}
FOCUSED = "datum.m === focus"
FEW_LABELS = {"labelFlush": True, "labelOverlap": True, "tickCount": 6}


def curves(about: Mapping[str, Any], axis: str) -> Spec:
    """Return the metric against one of AXES: lines, intervals, random bands, chosen points, this point."""
    x: Spec = {"field": axis, "type": "quantitative", "title": title(about, axis), "axis": _axis(axis)}
    x["scale"] = {
        "domain": about["domains"][axis],
        "zero": False,
        "nice": False,
        "reverse": axis != "removed",
    }
    y, colour = _value(about), _colour(about)
    band = {"mark": {"type": "area", "clip": True}}
    at_focus = {"condition": {"test": FOCUSED, "value": 0.28}, "value": 0.06}
    layers: list[Spec] = [
        {
            **band,
            "transform": [SHOWN, {"filter": f"datum.{low} !== null && datum.random === {of_random}"}],
            "encoding": {
                "x": x,
                "y": {**y, "field": low},
                "y2": {"field": high},
                "color": colour,
                "opacity": {"value": 0.22} if of_random == "true" else at_focus,
            },
        }
        for low, high, of_random in about["bands"]
    ]
    layers += [_level(about["base"], "base")] + [_level(about["majority"], "majority")] * (
        about["majority"] is not None
    )
    wide = {"condition": {"test": FOCUSED, "value": 3}, "value": 1.6}
    dash = {"field": "m", "scale": {"domain": about["methods"], "range": about["dashes"]}, "legend": None}
    layers.append(
        {
            "mark": {"type": "line", "clip": True, "strokeJoin": "round"},
            "transform": [SHOWN],
            "encoding": {
                "x": x,
                "y": y,
                "color": colour,
                "strokeDash": dash,
                "strokeWidth": wide,
                "order": {"field": "removed"},
            },
        }
    )
    tips = _tips(about, axis)
    layers.append(  # small marks that a pointer finds easily: the stroke is wide and invisible
        {
            "mark": {"type": "point", "filled": True, "size": 22, "stroke": "transparent", "strokeWidth": 9},
            "transform": [SHOWN],
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": tips},
        }
    )
    layers.append(
        {
            "name": "chosen",
            "mark": {"type": "point", "shape": "diamond", "size": 120, "strokeWidth": 2},
            "transform": [SHOWN, {"filter": "datum.chosen"}],
            "encoding": {"x": x, "y": y, "stroke": colour, "tooltip": tips},
        }
    )
    point = {"data": {"name": "here"}}
    layers.append(
        {
            **point,
            "name": "here",
            "mark": {"type": "rule", "strokeWidth": 1.5},
            "encoding": {"x": x},
        }
    )
    big = {"type": "point", "filled": True, "size": 150, "strokeWidth": 2}
    ring = {"x": x, "y": y, "fill": colour, "tooltip": tips}
    layers.append({**point, "name": "ring", "mark": big, "encoding": ring})
    return chart(
        {
            "data": {"name": "points"},
            "params": [{"name": "hidden", "value": []}, {"name": "focus", "value": ""}],
            "layer": layers,
            "height": 340,
        }
    )


def pareto(about: Mapping[str, Any], axis: str) -> Spec:
    """Return the metric against a cost, and the points that no other is better and cheaper than."""
    x: Spec = {"field": axis, "type": "quantitative", "title": title(about, axis), "axis": _axis(axis)}
    x["scale"] = {"domain": about["domains"][axis], "zero": False, "nice": False}
    y, colour, best = _value(about), _colour(about), "min" if about["lower"] else "max"
    sort = [{"field": axis}, {"field": "value", "order": "ascending" if about["lower"] else "descending"}]
    front = [
        SHOWN,
        {"filter": f"datum.{axis} !== null && !datum.random"},
        {
            "window": [{"op": best, "field": "value", "as": "best"}, {"op": "row_number", "as": "row"}],
            "sort": sort,
            "frame": [None, 0],
        },
        {"window": [{"op": "lag", "field": "best", "as": "before"}], "sort": sort, "frame": [None, 0]},
        {"filter": "datum.row === 1 || datum.best !== datum.before"},
    ]
    step = {"type": "line", "interpolate": "step-after", "strokeWidth": 2}
    shape = {"field": "m", "legend": None, "scale": {"domain": about["methods"], "range": about["shapes"]}}
    tips = _tips(about, axis)
    return chart(
        {
            "data": {"name": "points"},
            "params": [{"name": "hidden", "value": []}, {"name": "focus", "value": ""}],
            "layer": [
                {
                    "mark": {"type": "point", "filled": True, "size": 36},
                    "transform": [SHOWN],
                    "encoding": {
                        "x": x,
                        "y": y,
                        "color": colour,
                        "shape": shape,
                        "tooltip": tips,
                        "opacity": {"condition": {"test": FOCUSED, "value": 1}, "value": 0.5},
                    },
                },
                {
                    "name": "front",
                    "mark": step,
                    "transform": front,
                    "encoding": {"x": x, "y": y, "order": {"field": axis}},
                },
                {
                    "mark": {"type": "point", "size": 110, "strokeWidth": 2, "filled": False},
                    "transform": front,
                    "encoding": {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": tips},
                },
                {
                    "data": {"name": "here"},
                    "name": "ring",
                    "mark": {"type": "point", "filled": True, "size": 150, "strokeWidth": 2},
                    "encoding": {"x": x, "y": y, "fill": colour, "tooltip": tips},
                },
            ],
            "height": 300,
        }
    )


def chart(spec: Spec, fits: bool = True) -> Spec:
    """Return a specification with the looks that all charts share."""
    size = {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}} if fits else {}
    config = {
        "background": None,
        "view": {"stroke": None},
        "font": "system-ui, sans-serif",
        "axis": {"grid": True, "domain": False, "tickSize": 4, "labelFontSize": 11, "titleFontSize": 12},
        "axisX": {"grid": False},
        "aria": False,
    }
    return {"$schema": SCHEMA, **size, **spec, "config": config}


def title(about: Mapping[str, Any], axis: str) -> str:
    return str(about["removed title"]) if axis == "removed" else AXES[axis]


def _axis(axis: str) -> Spec:
    formats = {"removed": "%", "parameters": ".3~s", "macs": ".3~s", "mib": ".3~g", "ms": ".3~g"}
    return {"format": formats[axis], **FEW_LABELS}


def _value(about: Mapping[str, Any]) -> Spec:
    scale: Spec = {"type": "log" if about["log"] else "linear", "zero": False, "nice": True}
    scale["domain"] = about["domains"]["value"]
    axis = {"format": ".1~%" if about["share"] else ".3~g", "tickCount": 6}
    return {
        "field": "value",
        "type": "quantitative",
        "title": about["metric"],
        "scale": scale,
        "axis": axis,
    }


def _colour(about: Mapping[str, Any]) -> Spec:
    scale = {"domain": about["methods"], "range": about["colours"]}
    return {"field": "m", "type": "nominal", "scale": scale, "legend": None}


def _level(height: float, name: str) -> Spec:
    mark = {"type": "rule", "strokeDash": [4, 3] if name == "base" else [1, 3]}
    y = {"field": "value", "type": "quantitative"}
    return {"name": name, "data": {"values": [{"value": height}]}, "mark": mark, "encoding": {"y": y}}


def _tips(about: Mapping[str, Any], axis: str) -> list[Spec]:
    share = ".2%" if about["share"] else ".4~g"
    tips = [
        {"field": "m", "title": "method"},
        {"field": "at", "title": "removed"},
        {"field": "value", "title": about["metric"], "format": share},
        {"field": "between", "title": "95 % interval or trials"},
    ]
    if axis != "removed":
        counted = axis in ("parameters", "macs")
        tips.append({"field": axis, "title": AXES[axis], "format": ".4~s" if counted else ".3~f"})
    return tips

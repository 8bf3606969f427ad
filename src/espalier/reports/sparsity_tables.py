"""The tables of a sparsity study: every level, the two rules, pairs, and bytes three ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..analysis.bootstrap import Interval
from ..analysis.sparsity import AT_ONCE, GRADUAL, RECOVERED, Line, Point, Study
from . import words
from .tables import Row, bare, escaped, markdown

SHOWN = 4  # most levels that a table for people has room for


def every_level(study: Study) -> Iterator[Row]:
    """One row for each strategy, way and level, and for the dense model."""
    yield _measured(study, "dense", AT_ONCE, study.dense)
    trained = study.base.get((RECOVERED, "validation"))
    if trained is not None:
        yield _measured(study, "dense", RECOVERED, trained)
    for (label, way), line in study.lines.items():
        for point in line.points:
            yield _measured(study, label, way, point)


def _measured(study: Study, label: str, way: str, point: Point) -> Row:
    row, dense = point.row, study.dense
    return {
        "model": study.model,
        "strategy": label,
        "way": way,
        "schedule": row.get("schedule"),
        "refresh": row.get("refresh"),
        "sparsity": point.level,
        "metric": study.metric,
        "value": study.show(point.value),
        **_ends(study, "value", study.interval(point)),
        "change": point.value - dense.value,
        **_ends(study, "change", study.interval(point, dense), plain=True),
        "dead": None if study.majority is None else point.value <= study.majority,
        "zeros": row["zeros"],
        "weights": row["weights"],
        "parameters": row["parameters"],
        **{f"compression of {k}": v for k, v in row["compression"].items()},
        "bytes dense": row["bytes"]["dense"],
        "bytes sparse": row["bytes"]["sparse"],
        "examples": row["n"],
        "seconds": sum(row["seconds"].values()),
        "seed": row["seed"],
    }


def rules(study: Study, within: float) -> Iterator[Row]:
    """One row a line: its knee, what that is worth on test data, and where it collapses."""
    for (label, way), line in study.lines.items():
        knee = line.knee(within)
        chosen = line.at(knee) if knee else study.dense
        tested = study.tests.get((label, way, knee)) if knee else None
        before = study.base.get((AT_ONCE, "test"))
        known = tested is not None and before is not None
        low, high = study.interval(tested, before) if tested and before else (None, None)
        assert chosen is not None
        yield {
            "model": study.model,
            "strategy": label,
            "way": way,
            "metric": study.metric,
            "knee": knee,
            "measured to": line.points[-1].level,
            "validation": study.show(chosen.value),
            "test before": None if before is None else study.show(before.value),
            "test after": None if tested is None else study.show(tested.value),
            "test change": tested.value - before.value if known and tested and before else None,
            "test change low": low,
            "test change high": high,
            **{f"compression of {k}": v for k, v in chosen.row["compression"].items()},
            "collapse": line.collapse(),
        }


def pairs(study: Study) -> Iterator[Row]:
    """Each strategy less the first at every level, and what was recovered less what was at once."""
    first = study.labels[0] if study.labels else ""
    for (label, way), line in study.lines.items():
        rivals: list[tuple[str, str]] = [(label, AT_ONCE)] if way == RECOVERED else []
        others = [first] if label != first else []
        rivals += [(other, way if (other, way) in study.lines else RECOVERED) for other in others]
        for rival in rivals:
            if rival in study.lines:
                yield from _pair(study, line, study.lines[rival])


def _pair(study: Study, a: Line, b: Line) -> Iterator[Row]:
    for point in a.points:
        other = b.at(point.level)
        if other is None:
            continue
        low, high = study.interval(point, other)
        yield {
            "model": study.model,
            "a": a.label,
            "way of a": a.way,
            "b": b.label,
            "way of b": b.way,
            "sparsity": point.level,
            "difference": point.value - other.value,
            "low": low,
            "high": high,
            "verdict": "a" if low > 0 else "b" if high < 0 else "not told apart",
        }


def _ends(study: Study, name: str, span: Interval, *, plain: bool = False) -> Row:
    ends = span if plain else sorted(study.show(end) for end in span)
    return dict(zip((f"{name} low", f"{name} high"), ends))


# ------------------------------------------------------------------------------------ for people


def by_level(study: Study, way: str, *, brief: bool = False) -> list[dict[str, str]]:
    """Strategies down, sparsities across, of one way."""
    levels = shown_levels(study)
    out = []
    for label in study.labels:
        line = study.lines.get((label, way))
        if line is not None:
            cells = {percent(x): _cell(study, line.at(x), brief) for x in levels}
            out.append({way: label, **cells})
    return out


def shown_levels(study: Study) -> list[float]:
    """All if they are few; else about as many as fit, the tens of percent first."""
    tens = [x for x in study.levels if round(1000 * x) % 100 == 0]
    few = study.levels if len(study.levels) <= SHOWN else tens or study.levels
    return few[:: -(-len(few) // SHOWN)]


def _cell(study: Study, point: Point | None, brief: bool) -> str:
    if point is None:
        return ""
    said = bare(study.metric, study.show(point.value))
    if not brief:
        ends = sorted(study.show(end) for end in study.interval(point))
        said += words.span(*(bare(study.metric, end) for end in ends))
    dead = study.majority is not None and point.value <= study.majority
    return said + (" dead" if dead else "")


def by_rule(study: Study, within: float) -> list[dict[str, str]]:
    out = []
    for row in rules(study, within):
        metric, change = study.metric, words.difference(study.metric, row["test change"])
        ends = (words.difference(metric, row[f"test change {end}"]) for end in ("low", "high"))
        reached = bool(row["knee"]) and row["knee"] == row["measured to"]
        out.append(
            {
                "strategy": row["strategy"],
                "way": row["way"],
                "knee": ("≥ " if reached else "") + percent(row["knee"]) if row["knee"] else "none",
                "test there": f"{bare(metric, row['test before'])} → {bare(metric, row['test after'])}"
                if row["test after"] is not None
                else "",
                "test change": change + words.span(*ends) if change else "",
                "whole model": times(row["compression of model"]) if row["knee"] else "",
                "collapse": "" if row["collapse"] is None else percent(row["collapse"]),
            }
        )
    return out


def three_ways(study: Study) -> list[dict[str, str]]:
    """How many times smaller at each level, by the first strategy: the others are alike but for rounding."""
    if not study.lines:
        return []
    line, out = next(iter(study.lines.values())), []
    also = study.settings.get("also")
    pruned = f"blocks and {' and '.join(also)}" if also else "pruned matrices (as published)"
    for level in shown_levels(study):
        point = line.at(level)
        if point is not None:
            smaller, size = point.row["compression"], point.row["bytes"]
            out.append(
                {
                    "zero": percent(level),
                    pruned: times(smaller["matrices"]),
                    "whole model": times(smaller["model"]),
                    "file, in float32": times(smaller["file"]),
                    "MiB": f"{size['dense'] / 2**20:.1f} → {size['sparse'] / 2**20:.1f}",
                }
            )
    return out


def by_pair(study: Study) -> list[dict[str, str]]:
    """a − b down, sparsities across."""
    levels = shown_levels(study)
    out: dict[str, dict[str, str]] = {}
    for row in pairs(study):
        ways = row["way of a"] if row["way of a"] == row["way of b"] else ""
        said = f"{row['a']} − {row['b']}, {ways}"
        if not ways:
            said = f"{row['a']} {row['way of a']} − {row['b']} {row['way of b']}"
        cells = out.setdefault(said, {"a − b": said, **{percent(x): "" for x in levels}})
        if row["sparsity"] in levels:
            number = [words.difference(study.metric, row[x]) for x in ("difference", "low", "high")]
            cells[percent(row["sparsity"])] = number[0] + words.span(*number[1:])
    return list(out.values())


def caption(study: Study, within: float) -> str:
    """Under a table or figure: whose numbers, of which data, and both rules in words."""
    base = words.value(study.metric, study.show(study.dense.value))
    parts, also = study.settings.get("parts", {}), study.settings.get("also")
    near = words.within(within, study.metric)
    said = [
        f"{study.model}: {words.NAMES.get(study.metric, study.metric)} {base} dense",
        f"{study.task}: scored on {parts.get('calibration', {}).get('n', '?')}, curves on "
        f"{study.examples['validation']} validation examples, test on {study.examples['test']}",
        f"pruned with the blocks: {' and '.join(also)}" if also else "",
        _training(study),
        f"knee: the highest sparsity up to which every measured level is within {near} of the dense model on "
        "validation data (≥: no end was seen)",
    ]
    if study.majority is not None:
        said.append(
            "collapse: the first level not above the most frequent class, "
            f"{words.value(study.metric, study.majority)}: the model is dead there"
        )
        if study.dense.value <= study.majority:
            said.append("the dense model itself is no better than that: neither rule says anything")
    said.append("in brackets: 95 % paired bootstrap intervals over examples")
    return "; ".join(filter(None, said))


def _training(study: Study) -> str:
    trained = study.base.get((RECOVERED, "validation"))
    if not study.training or trained is None:
        return "no training"
    how = study.training
    said = (
        f"recovered: {how['epochs']} epochs of {how['examples'] or 'all'} training examples under the mask, "
        f"rate {how['rate']:g}; the dense model after the same training: "
        f"{words.value(study.metric, study.show(trained.value))}"
    )
    ways = list(dict.fromkeys(_descent(p.row) for p in _gradual(study)))
    return said + (f"; gradual: as long, weights going {' or '.join(ways)}" if ways else "")


def _gradual(study: Study) -> list[Point]:
    return [p for (_, way), line in study.lines.items() if way == GRADUAL for p in line.points]


def _descent(row: Mapping[str, Any]) -> str:
    """Of a row itself, for one folder may be older than the rule that it holds one schedule."""
    masks = f", a mask every {row['refresh']} steps" if row.get("refresh") else ""
    return f"by the {row.get('schedule') or 'unknown'} schedule{masks}"


def times(ratio: float | None) -> str:
    """2.03×, or a dash where nothing is left to divide by."""
    return "—" if ratio is None else f"{ratio:.2f}×"


def percent(level: float) -> str:
    return f"{100 * level:g} %"


def page(study: Study, within: float) -> str:
    """The whole story on one page."""
    parts = [f"## {escaped(study.model)}, single weights\n"]
    parts += [markdown(by_level(study, way)) for way in study.ways]
    parts += [escaped(caption(study, within)) + ".\n", markdown(by_rule(study, within))]
    parts += ["How many times smaller:\n", markdown(three_ways(study))]
    compared: list[Any] = by_pair(study)
    if compared:
        parts += [f"Pairs; {words.of_differences(study.metric)}:\n", markdown(compared)]
    parts += [f"- {escaped(note)}\n" for note in study.notes]
    return "\n".join(parts)

"""Compare the committed tables of older reports with what the analysis computes from the same rows.

    python benchmarks/compare_tables.py                # every study, tables as committed at OLD
    python benchmarks/compare_tables.py --revision X   # tables of another commit

Every number of the older tables is looked up under its new name: values, intervals, changes, chosen points,
collapse, compression, pairs. The studies of heads have no predictions, so their intervals are not computed.
"""

from __future__ import annotations

import argparse
import csv
import io
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from espalier.analysis import Cost, Curve, Results, read_run
from espalier.analysis.bootstrap import bootstraps
from espalier.analysis.results import BASE_KEY
from espalier.analysis.summary import by_level, pairs, summarize

PLACE = Path(__file__).parent / "results"
OLD = "6d080be"  # the last commit whose tables have the older names
EQUAL = 1e-9
Tables = Mapping[str, list[dict[str, str]]]
LEVELS = {
    **{name: name for name in ("value", "value low", "value high", "change", "change low", "change high")},
    **{name: name for name in ("zeros", "weights", "parameters", "examples", "seconds", "seed", "schedule")},
    **{f"compression of {x}": f"compression of {x}" for x in ("matrices", "model", "file")},
    "dead": "collapsed",
    "refresh": "mask_interval",
    "bytes dense": "dense bytes",
    "bytes sparse": "sparse bytes",
}
RULES = {
    **{name: name for name in ("measured to", "validation", "test before", "test after", "test change")},
    **{name: name for name in ("test change low", "test change high", "collapse")},
    **{f"compression of {x}": f"compression of {x}" for x in ("matrices", "model", "file")},
    "knee": "removed",
}
UNIT_SUMMARY = {
    **{name: name for name in ("units", "base", "validation", "test before", "test after", "test change")},
    **{f"{x} {y}": f"{x} {y}" for x in ("parameters", "megabytes", "macs") for y in ("before", "after")},
    **{name: name for name in ("area", "trials", "area over random", "levels shared")},
    **{f"{x} {y}": f"{x} {y}" for x in ("validation", "area") for y in ("lowest", "highest")},
    **{f"levels {x}": f"levels {x}" for x in ("above random mean", "below random mean")},
    **{f"levels {x} all trials": f"levels {x} all trials" for x in ("above", "below")},
    "chosen": "removed units",
    "kept": "kept units",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--revision", default=OLD, help="the commit whose tables are compared")
    revision = parser.parse_args().revision
    failed = 0
    for folder in sorted((PLACE / "sparsity").iterdir()):
        if folder.is_dir():
            names = ("levels", "rules", "pairs")
            old = {name: read_committed(revision, folder / "tables" / f"{name}.csv") for name in names}
            failed += report(folder.name, compare_weights(folder, old))
    for folder in sorted((PLACE / "greedy_gnorm").iterdir()):
        if folder.is_dir():
            names = ("rows", "summary", "by_level", "comparisons")
            old = {name: read_committed(revision, folder / f"{name}.csv") for name in names}
            failed += report(folder.name, compare_units(old))
    raise SystemExit(bool(failed))


def report(name: str, checks: Iterable[tuple[str, str]]) -> int:
    """Print how many numbers are equal and which are not; return how many are not."""
    found = list(checks)
    wrong = [f"  {what}: {difference}" for what, difference in found if difference]
    print(f"{name}: {len(found) - len(wrong)} of {len(found)} numbers equal")
    print("\n".join(wrong), end="\n" if wrong else "")
    return len(wrong) if found else 1  # no tables to compare with is no success


def read_committed(revision: str, path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file as it was at a commit; none if it was not there."""
    place = path.relative_to(PLACE.parent.parent)
    command = ["git", "show", f"{revision}:./{place}"]
    done = subprocess.run(command, cwd=PLACE.parent.parent, capture_output=True, check=False)
    return list(csv.DictReader(io.StringIO(done.stdout.decode())))


def compare_weights(folder: Path, old: Tables, tolerance: float = 0.01) -> Iterator[tuple[str, str]]:
    """Yield every number of an older study of single weights, and how the new one differs, or ""."""
    results = read_run(folder)
    boots = bootstraps(results)
    levels = {(r["method"], r["phase"], r["removed"]): r for r in by_level(results, boots)}
    for row in old["levels"]:
        method = "base" if row["strategy"] == "dense" else row["strategy"]
        yield from compare_row(row, levels[method, row["way"], float(row["sparsity"])], LEVELS)
    summary = {(r["method"], r["phase"]): r for r in summarize(results, tolerance, boots)}
    for row in old["rules"]:
        yield from compare_row(row, summary[row["strategy"], row["way"]], RULES)
    found = {
        (r["a"], r["phase of a"], r["b"], r["phase of b"], r["removed"]): r for r in pairs(results, boots)
    }
    for row in old["pairs"]:
        a, b = (row["a"], row["way of a"]), (row["b"], row["way of b"])
        at = float(row["sparsity"])
        if (*a, *b, at) in found:
            names = {name: name for name in ("difference", "low", "high")}
            yield from compare_row(row, found[*a, *b, at], names)
        else:  # the first method is now `a` of its pairs
            new = found[*b, *a, at]
            turned = {"difference": -new["difference"], "low": -new["high"], "high": -new["low"]}
            yield from compare_row(row, turned, {name: name for name in turned})


def compare_units(old: Tables, tolerance: float = 0.01) -> Iterator[tuple[str, str]]:
    """Yield every number of an older study of heads that follows from its rows.csv."""
    results = results_of(old["rows"], int(old["summary"][0]["units"]))
    summary = {r["method"]: r for r in summarize(results, tolerance, {})}
    for row in old["summary"]:
        new = summary[row["strategy"]]
        yield from compare_row(row, new, UNIT_SUMMARY)
        counts = {f"unbroken {p}": results.count(new[f"removed within {p}"]) for p in (1, 2, 5)}
        yield from compare_row(row, counts, {name: name for name in counts})
    levels = {(r["method"], r["removed units"]): r for r in by_level(results, {})}
    for row in old["by_level"]:
        at = int(row["removed"])
        for method in results.methods if at else ():
            new, is_random = levels[method, at], bool(results.curve(method).trials)
            names = {method: "value", f"{method} mean": "value"}
            names |= {f"{method} lowest": "lowest trial", f"{method} highest": "highest trial"}
            if results.random and not is_random:
                names[f"part of {results.random} below {method}"] = "trials below"
            yield from compare_row(row, new, {name: to for name, to in names.items() if name in row})
    found = {(r["a"], r["b"], r["removed"]): r for r in pairs(results, {})}
    for row in old["comparisons"]:
        new = found[row["a"], row["b"], None]
        same = ("difference", "levels", "levels a above", "levels b above")
        names = {"area a": "value of a", "area b": "value of b", **{name: name for name in same}}
        yield from compare_row(row, new, names)
        if row["at"]:
            there = found[row["a"], row["b"], int(row["at"]) / results.units]
            yield from compare_row(row, there, {"difference there": "difference"})


def results_of(rows: list[dict[str, str]], units: int) -> Results:
    """Return the results of heads that a rows.csv holds: no predictions, so no intervals."""
    trials: dict[str, dict[str, dict[float, float]]] = {}
    costs: dict[Any, dict[float, Cost]] = {}
    test: dict[Any, dict[float, tuple[float, ...]]] = {}
    for row in rows:
        method, removed, value = row["strategy"], int(row["removed"]) / units, float(row["value"])
        key = (method, "one-shot")
        if row["part"] == "test":
            scores = test.setdefault(key, {})
            scores[removed] = (*scores.get(removed, ()), value)
        else:
            trials.setdefault(method, {}).setdefault(row["trial"], {})[removed] = value
        cost = Cost(int(row["parameters"]), int(row["macs"]))
        costs.setdefault(key, {})[removed] = cost
        if not removed:
            costs.setdefault(BASE_KEY, {})[0.0] = cost
    curves = {}
    for method, found in trials.items():
        levels = tuple(next(iter(found.values())))
        values = [tuple(one.values()) for one in found.values()]
        random = "" not in found
        curve = Curve.of_trials(levels, values) if random else Curve(levels, values[0])
        curves[method, "one-shot"] = curve
    return Results(rows[0]["model"], rows[0]["metric"], units, curves, costs=costs, test=test)


def compare_row(
    old: Mapping[str, str], new: Mapping[str, Any], names: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield each number of a row and how the new one differs, or ""; what was empty may be known now."""
    where = " ".join(old[name] for name in list(old)[:6])
    for name, now in names.items():
        text = old[name]
        if text:
            value = new.get(now)
            known = value is not None and _is_number(text)
            same = text == str(value) or (known and abs(float(text) - float(value)) <= EQUAL)
            yield f"{where}: {name}", "" if same else f"was {text}, is {value}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()

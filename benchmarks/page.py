"""How large the page of a run is, and how soon it can be used: 25 random trials, 144 heads, seven methods.

    python benchmarks/page.py

The run is made up; its size is that of a comparison on BERT-base. Needs chromium, chromedriver and selenium.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

import browser  # noqa: E402

from espalier.analysis.curves import ONE_SHOT, Curve  # noqa: E402
from espalier.analysis.results import BASE_KEY, Cost, Results, SplitPredictions  # noqa: E402
from espalier.reports import Report  # noqa: E402
from espalier.reports.page import write_page  # noqa: E402

LAYERS, HEADS, TRIALS, EXAMPLES = 12, 12, 25, 872
METHODS = ("gnorm", "gnorm:static", "gnorm:reverse", "entropy", "entropy:reverse", "taylor")
VISITS = 5


def synthetic(seed: int = 0) -> Results:
    """Return a run with predictions: every method at every head, random trials at every sixth."""
    draw, units = np.random.default_rng(seed), LAYERS * HEADS
    truth = draw.integers(2, size=EXAMPLES).astype(np.int16)
    every, sixth = np.arange(units + 1) / units, np.arange(0, units + 1, 6) / units
    levels = {(name, ONE_SHOT): every for name in METHODS} | {("random:25", ONE_SHOT): sixth}
    curves, values, orders = {}, {}, {}
    for (name, phase), at in levels.items():
        trials = TRIALS if name.startswith("random") else 1
        wrong = draw.random((trials, len(at), EXAMPLES)) < 0.08 + 0.42 * at[None, :, None] ** draw.uniform(
            1, 6
        )
        wrong[:, 0] = np.arange(EXAMPLES) < 0.08 * EXAMPLES  # all start at the same model
        values[name, phase] = np.where(wrong, 1 - truth, truth).astype(np.int16)
        scores = (~wrong).mean(-1)
        whole = Curve.of_trials(at.tolist(), scores.tolist())
        curves[name, phase] = whole if trials > 1 else whole.trial(0)
        orders[name] = [divmod(int(unit), HEADS) for unit in draw.permutation(units)]
    removed = {key: tuple(at.tolist()) for key, at in levels.items()} | {BASE_KEY: (0.0,)}
    values[BASE_KEY] = next(iter(values.values()))[:, :1]
    costs = {
        key: {x: Cost(110_000_000 - int(28e6 * x), 11_000_000_000 - int(3e9 * x)) for x in at}
        for key, at in removed.items()
    }
    return Results(
        *("synthetic", "accuracy", units, curves),
        task="synthetic",
        layers=(HEADS,) * LAYERS,
        orders=orders,
        costs=costs,
        scores={name: draw.normal(size=(LAYERS, HEADS)) for name in ("gnorm", "entropy", "taylor")},
        predictions={"validation": SplitPredictions(truth, removed, values)},
        examples={"validation": EXAMPLES},
    )


def main() -> None:
    """Print the size of the page, the seconds to write it, and the milliseconds until it can be used."""
    if reason := browser.install():
        raise SystemExit(f"no browser: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        report = Report([synthetic()])
        start = time.perf_counter()
        write_page(report, path)
        written = time.perf_counter() - start
        with browser.opened() as driver:
            ready = [int(browser.visit(driver, path.as_uri(), 60)) for _ in range(VISITS)]
            moved = driver.execute_async_script(MOVE)
        print(f"page: {path.stat().st_size / 2**20:.2f} MiB, written in {written:.1f} s")
        print(f"ready after {', '.join(map(str, ready))} ms: median {statistics.median(ready):.0f} ms")
        print(f"slider: {moved:.0f} ms from one position to the next, drawn")


MOVE = """
const done = arguments[0], slider = document.querySelector(".level"), steps = 30, start = performance.now();
let at = 0;
function next() {
  if (at === steps) { done((performance.now() - start) / steps); return; }
  slider.value = ++at;
  slider.dispatchEvent(new Event("input"));
  requestAnimationFrame(() => setTimeout(next));
}
next();
"""

if __name__ == "__main__":
    main()

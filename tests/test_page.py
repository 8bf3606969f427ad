"""The page: what it holds, and what it does in a real browser."""

import dataclasses
import json
import re
import shlex

import browser
import pytest
from test_report import GNORM, made, weights

from espalier.analysis.curves import Curve
from espalier.analysis.results import Cost
from espalier.core.errors import DependencyError
from espalier.reports import Report, page
from espalier.reports.page import charts, facts, origin, to_script, tokens

HOSTILE = "</script><script>window.hacked = 1</script><b>model</b>"
RECORD = {"model": "tuned", "seed": 3, "max_length": 64, "precision": "bf16", "fingerprint": "abc"}
RECORD |= {
    "versions": {"torch": "2.13.0"},
    "splits": {"calibration": {"n": 16, "fingerprint": "c"}, "validation": {"n": 40, "fingerprint": "v"}},
}
LAYERS = [
    {"kept": [True, True, True], "scores": [None, 0.5, 0.25]},
    {"kept": [True, False, True], "scores": [None, 0.1, 0.3]},
]
TEXT = {"tokens": ["a", HOSTILE, "film"], "kept": [1.0, 0.25, 1.0]}
TOKENS = {"title": "Tokens", "texts": [{**TEXT, "layers": LAYERS}, TEXT]}


def recorded(model="toy", **more):
    settings = {"gnorm": {"criterion": "gnorm", "rescore": True, "step": 6, "every": 12}}
    about = {"task": "reviews", "record": RECORD, "settings": settings, "tokens": TOKENS, "source": "run"}
    return dataclasses.replace(made(model, majority=0.55), **(about | more))


def neurons():
    order = [(layer, unit) for unit in range(100) for layer in (0, 1)]
    curve = Curve((0.0, 0.25, 1.0), (0.9, 0.9, 0.5))
    bare = {"predictions": {}, "test": {}, "scores": {}, "pooling": {}, "costs": {}}
    more = {"units": 200, "layers": (100, 100), "target": "neurons", "curves": {GNORM: curve}}
    return dataclasses.replace(made("wide"), **bare, **more, orders={"gnorm": order})


def described(results):
    report = Report([results])
    return facts.describe(results, report.sheets, report.tolerance)


# ------------------------------------------------------------------------------------------ what it holds


def test_points_have_values_costs_and_the_chosen_one():
    found = described(made())
    points = found["points"]["gnorm"]
    assert [point["k"] for point in points] == [0, 1, 2, 3, 4]
    assert [point["chosen"] for point in points] == [False, True, False, False, False]
    assert found["start"]["gnorm"] == 1
    assert (points[2]["value"], points[2]["macs"], points[2]["mib"]) == (0.75, 98, 3.5)
    assert points[2]["low"] < 0.75 < points[2]["high"]
    random = found["points"]["random:3"][1]
    assert (random["lowest"], random["highest"], random["random"]) == (26 / 40, 36 / 40, True)
    assert found["orders"]["gnorm"]["ranks"] == [[1, 2], [3, 4]]
    assert found["scores"]["gnorm"]["values"] == [[1.0, None], [2.0, -3.0]]
    assert found["scores"]["entropy"] is None
    assert set(found["curves"]) == {"removed", "parameters", "macs", "mib"}
    assert set(found["pareto"]) == {"parameters", "macs", "mib"}


def test_latency_is_an_axis_where_it_was_measured():
    costs = {GNORM: {x: Cost(10, 5, latency=0.01 - x / 200) for x in (0.0, 0.25, 0.5, 0.75, 1.0)}}
    found = described(made(costs=costs))
    assert "ms" in found["curves"]
    assert found["points"]["gnorm"][2]["ms"] == pytest.approx(7.5)


def test_neurons_are_counted_by_layer_and_weights_have_no_map():
    found = described(neurons())
    assert not found["map"]
    assert found["orders"]["gnorm"]["lost"] == [[0, 0], [25, 25], [100, 100]]
    assert found["bars"]["data"] == {"name": "layers"}
    sparse = described(weights())
    assert sparse["units"] is sparse["bars"] is None
    assert "a recovered" in sparse["points"]


def test_the_command_repeats_the_run():
    words = origin.command(recorded(), 0.01).split()
    assert words[:3] == ["espalier", "compare", "tuned"]
    options = dict(zip(words[3::2], words[4::2]))
    assert options["--methods"].startswith("gnorm:step=6:every=12,")
    assert (options["--seed"], options["--calibration"], options["--max-length"]) == ("3", "16", "64")
    assert options["--set"] == "precision=bf16"
    columns = {"text": "review of it", "label": "stars", "kind": "regression"}
    record = {**RECORD, "precision": "fp32", "split_seed": 7, "columns": columns}
    words = shlex.split(origin.command(recorded(record=record), 0.01))
    typed = list(zip(words[3::2], words[4::2]))
    assert ("--columns", "text=review of it,label=stars") in typed
    assert [value for name, value in typed if name == "--set"] == ["split_seed=7", "kind=regression"]
    assert origin.command(made(), 0.01) == ""


def test_text_from_outside_stays_text():
    assert json.loads(to_script({"a": HOSTILE + "\u2028"})) == {"a": HOSTILE + "\u2028"}
    assert "<" not in to_script({"a": HOSTILE})
    assert "<b>" not in tokens.section(recorded())
    assert "<h3>" not in tokens.section(recorded())
    read = [{**TEXT, "model": name} for name in ("small", "<b>")]
    shown = tokens.section(recorded(tokens={"title": "Tokens of both", "texts": read}))
    assert re.findall("<h3>(.*?)</h3>", shown) == ["small", "&lt;b&gt;"]
    shown = page.render(Report([recorded(HOSTILE, notes=(HOSTILE,), task=HOSTILE)]))
    assert len(re.findall("<script", shown)) == 3
    assert "<b>model" not in shown


def test_the_page_needs_nothing_else_and_is_the_same_again():
    shown = page.render(Report([recorded()]))
    assert len(shown.encode()) < 2**21
    assert shown == page.render(Report([recorded()]))
    outside = shown.replace(page.library(), "")
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|@import|url\(""", outside)
    for spec in (charts.curves(described(made())["about"], "macs"), *described(made())["pareto"].values()):
        assert "url" not in json.dumps(spec)


def test_a_missing_library_is_named(monkeypatch):
    page.library.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "vl_convert", None)
    with pytest.raises(DependencyError) as error:
        page.library()
    assert error.value.extra == "report"


# ------------------------------------------------------------------------------------------ in a browser


@pytest.fixture(scope="module")
def driver():
    pytest.importorskip("selenium", reason="selenium is not installed: pip install selenium")
    if reason := browser.install():
        pytest.skip(reason)
    with browser.opened() as found:
        yield found


@pytest.fixture(scope="module")
def visited(driver, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    runs = [recorded(HOSTILE), neurons(), weights()]
    page.write_page(Report(runs), path)
    browser.visit(driver, path.as_uri())
    return driver


def move(driver, level, run=0):
    driver.execute_script(
        "const slider = document.querySelector(`#run-${arguments[1]} .level`);"
        "slider.value = arguments[0]; slider.dispatchEvent(new Event('input'))",
        level,
        run,
    )


def text_of(driver, selector):
    return driver.execute_script("return document.querySelector(arguments[0]).textContent", selector)


def count_lines(driver, wanted):
    """Wait until so many curves are drawn."""
    drawn = "document.querySelectorAll('#run-0 .curves g.mark-line path').length"
    return browser.wait_for(driver, f"return {drawn} === {wanted}")


def test_the_slider_moves_the_map_and_the_numbers(visited):
    move(visited, 0)
    browser.wait_for(visited, "return document.querySelector('#run-0 .at').textContent === '0 of 4'")
    for level in (4, 2, 0):
        move(visited, level)
        script = "return [...document.querySelectorAll('#run-0 .gone_marks path')]"
        gone = f"{script}.filter(p => Number(p.getAttribute('opacity') ?? 1) > 0).length === {level}"
        assert browser.wait_for(visited, gone)
    assert text_of(visited, "#run-0 .tiles").startswith("Accuracy on validation90.00 %")
    slider = visited.find_element("css selector", "#run-0 .level")
    slider.send_keys("\ue014\ue014")  # the right arrow, twice
    assert text_of(visited, "#run-0 .at") == "2 of 4"
    assert slider.get_attribute("aria-valuetext").startswith("2 of 4")


def test_boxes_toggle_curves_and_the_chosen_point_is_a_button_away(visited):
    assert count_lines(visited, 4)
    box = visited.find_element("css selector", "#run-0 .shown")
    for shown in (3, 4):
        box.click()
        assert count_lines(visited, shown)
    visited.find_element("css selector", "#run-0 .chosen").click()
    assert text_of(visited, "#run-0 .at") == "1 of 4"


def test_axes_tabs_themes_and_hostile_names(visited):
    axis = visited.find_element("css selector", "#run-0 .axis")
    axis.send_keys("mult")  # the keyboard chooses the option
    assert axis.get_attribute("value") == "macs"
    titles = "return document.querySelector('#run-0 .curves svg').textContent.includes('multiply')"
    assert browser.wait_for(visited, titles)
    tabs = visited.find_elements("css selector", "[role=tab]")
    assert text_of(visited, "#run-0 h1") == HOSTILE
    assert visited.execute_script("return window.hacked") is None
    tabs[0].send_keys("\ue014")  # the right arrow: the tab of the neurons
    assert browser.wait_for(visited, "return !document.getElementById('run-1').hidden")
    move(visited, 1, run=1)
    found = "[...document.querySelectorAll('#run-1 .bar_marks path')]"
    bars = f"return {found}.map(p => p.getBoundingClientRect().width)"
    widths = browser.wait_for(visited, bars)
    move(visited, 2, run=1)
    assert browser.wait_for(visited, bars.replace("width)", "width).every(w => w < 1)"))
    assert min(widths) > 20
    tabs[2].click()
    assert browser.wait_for(visited, "return document.querySelector('#run-2 .curves svg') !== null")
    colours = []
    for _ in range(2):
        colours.append(visited.execute_script("return getComputedStyle(document.body).backgroundColor"))
        visited.find_element("id", "theme").click()
    assert len(set(colours)) == 2


def test_the_layers_of_a_text_are_stepped_through_by_mouse_and_by_keys(visited):
    visited.execute_script("document.querySelector('[role=tab]').click()")
    gone = "return [...document.querySelectorAll('#run-0 .tokens .gone')].map(one => one.textContent)"
    slider = visited.find_element("css selector", "#run-0 .layer")
    slider.send_keys("\ue014")  # the right arrow: the next layer
    assert visited.execute_script(gone) == [HOSTILE]
    slider.send_keys("\ue012")  # the left arrow: the layer before
    assert visited.execute_script(gone) == []
    assert slider.get_attribute("aria-valuetext") == text_of(visited, "#run-0 .left")
    assert text_of(visited, "#run-0 .left").endswith("3 of 3 tokens")
    first, second, third = visited.find_elements("css selector", "#run-0 .text:first-of-type .tokens span")
    first.click()
    first.send_keys("\ue014")  # the right arrow: the next token
    assert visited.switch_to.active_element == second
    assert "score 0.5 in layer 0" in text_of(visited, "#run-0 .token-about")
    second.send_keys("\ue013")  # the arrow up: the next layer
    assert "score 0.1 in layer 1" in text_of(visited, "#run-0 .token-about")
    assert [one.get_attribute("tabindex") for one in (first, second, third)] == ["-1", "0", "-1"]
    visited.execute_script("arguments[0].dispatchEvent(new Event('mouseenter'))", third)
    assert "score 0.3" in text_of(visited, "#run-0 .token-about")
    assert "score 0.3" in third.get_attribute("title")
    assert visited.execute_script("return window.hacked") is None
    plain = "return document.querySelectorAll('#run-0 .text')[1].querySelector('input')"
    assert visited.execute_script(plain) is None  # a text without layers has no slider


def test_nothing_was_fetched_and_nothing_failed(visited):
    assert visited.get_log("browser") == []
    fetched = visited.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []

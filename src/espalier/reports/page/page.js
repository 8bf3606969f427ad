// The page: native inputs move the signals of Vega views. Text from files reaches the document by textContent only.
const all = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const remembered = { get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
                     set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* private */ } } };

function element(tag, text, parent) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

const number = (value, digits = 3) => value.toLocaleString("en", { maximumSignificantDigits: digits });
function count(value) {
  const sizes = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [size, letter] = sizes.find(([least]) => value >= least) ?? [1, ""];
  return number(value / size, 4) + letter;
}

class Run {
  constructor(facts, place) {
    Object.assign(this, { facts, place, views: {}, hidden: new Set(), begun: false });
    this.find = (name) => place.querySelector(name);
  }

  begin() {
    if (this.begun) return Promise.resolve();
    this.begun = true;
    const { facts, find } = this;
    for (const name of facts.about.methods) element("option", name, find(".focus")).value = name;
    for (const [name, title] of Object.entries(facts.axes)) element("option", title, find(".axis")).value = name;
    for (const name of Object.keys(facts.pareto)) element("option", facts.axes[name], find(".cost")).value = name;
    find(".pareto-figure").hidden = !Object.keys(facts.pareto).length;
    if ("macs" in facts.pareto) find(".cost").value = "macs";
    if ("ms" in facts.pareto) find(".cost").value = "ms";
    this.points = Object.values(facts.points).flat();
    find(".focus").addEventListener("change", () => this.look(find(".focus").value));
    find(".level").addEventListener("input", () => this.move());
    find(".axis").addEventListener("change", () => this.draw("curves", facts.curves[find(".axis").value]));
    find(".cost").addEventListener("change", () => this.draw("pareto", facts.pareto[find(".cost").value]));
    find(".chosen").addEventListener("click", () => this.go(facts.start[this.focus]));
    for (const box of this.place.querySelectorAll(".shown")) {
      box.addEventListener("change", () => this.toggle(box.value, box.checked));
      box.closest("tr").addEventListener("click", (event) => {
        if (event.target.closest("input, label") === null) this.look(box.value);
      });
    }
    find(".every").addEventListener("click", () => this.showOnly(() => true));
    find(".only").addEventListener("click", () => this.showOnly((name) => name === this.focus));
    this.focus = facts.focus;
    this.level = facts.start[this.focus];
    return this.drawAll();
  }

  async drawAll() {
    const { facts, find } = this;
    await Promise.all([
      this.look(this.focus, this.level),
      this.draw("curves", facts.curves[find(".axis").value]),
    ]);
    const cost = facts.pareto[find(".cost").value];  // below the rest: it can wait for a moment
    if (cost) setTimeout(() => this.draw("pareto", cost));
  }

  async draw(name, spec) {
    const datasets = name === "map" ? this.cells() : { points: this.points, here: [this.here] };
    const options = { renderer: "svg", actions: false, tooltip: { theme: "custom" }, logLevel: 1 };
    const made = await vegaEmbed(this.find(`.chart.${name}`), { ...structuredClone(spec), datasets }, options);
    this.views[name]?.finalize();
    this.views[name] = made.view;
    await this.update();
  }

  get here() { return this.facts.points[this.focus][this.level]; }

  look(name, level) {
    const before = this.facts.points[this.focus]?.[this.level]?.removed ?? 0;
    const points = this.facts.points[name];
    const near = points.map((point) => Math.abs(point.removed - before));
    this.focus = name;
    this.find(".focus").value = name;
    this.find(".level").max = points.length - 1;
    for (const box of this.place.querySelectorAll(".shown"))
      box.closest("tr").classList.toggle("focus", box.value === name);
    this.go(level ?? near.indexOf(Math.min(...near)));
    return this.drawUnits();
  }

  go(level) {
    this.find(".level").value = level;
    this.move();
  }

  move() {
    this.level = Number(this.find(".level").value);
    this.show();
    this.update();
  }

  toggle(name, shown) {
    if (shown) this.hidden.delete(name); else this.hidden.add(name);
    this.update();
  }

  showOnly(wanted) {
    for (const box of this.place.querySelectorAll(".shown")) {
      box.checked = wanted(box.value);
      if (box.checked) this.hidden.delete(box.value); else this.hidden.add(box.value);
    }
    this.update();
  }

  async update() {
    const { here, facts } = this;
    for (const name of ["curves", "pareto"]) {
      const view = this.views[name];
      if (!view) continue;
      const hidden = [...this.hidden].sort();  // signals only if they change: they draw everything again
      if (String(view.signal("hidden")) !== String(hidden)) view.signal("hidden", hidden);
      view.signal("focus", this.focus).data("here", [here]);
      await view.runAsync();
    }
    const view = this.views.map, order = facts.orders[this.focus];
    if (!view || !order) return;
    if (facts.map) {
      const points = facts.points[this.focus];
      view.signal("k", here.k).signal("before", this.level ? points[this.level - 1].k : 0);
    } else {
      view.data("layers", this.cells().layers);
    }
    await view.runAsync();
  }

  cells() {
    const { facts, level } = this, order = facts.orders[this.focus], scored = facts.scores[this.focus];
    if (!facts.map) return { layers: facts.layers.map((units, layer) =>
      ({ layer, units, kept: units - order.lost[level][layer], removed: order.lost[level][layer] })) };
    return { units: order.ranks.flatMap((row, layer) => row.map((rank, unit) =>
      ({ layer, unit, rank, score: scored ? scored.values[layer][unit] : rank }))) };
  }

  async drawUnits() {
    const { facts, find } = this, order = facts.orders[this.focus], place = find(".units");
    place.hidden = !facts.layers.length || !Object.values(facts.orders).some(Boolean);
    find(".two").classList.toggle("alone", place.hidden);
    const hint = find(".units-hint");
    if (place.hidden) return;
    if (!order) {
      this.views.map?.finalize();
      delete this.views.map;
      find(".chart.map").replaceChildren();
      hint.textContent = "The order of this method is not known.";
      return;
    }
    const scored = facts.scores[this.focus];
    const random = facts.points[this.focus][0].random ? " This is the first of the random orders." : "";
    if (facts.map) {
      hint.textContent = `Full cells are kept, small squares are removed; a frame marks the last step.` +
        (scored ? ` Colour: ${scored.name}, bigger means keep.` : " Colour: the place in the order.") + random;
      await this.draw("map", facts.units[scored ? "score" : "rank"]);
    } else {
      hint.textContent = "Coloured: kept. Grey: removed." + random;
      await this.draw("map", facts.bars);
    }
  }

  show() {
    const { here, facts } = this, base = facts.points[this.focus][0];
    const percent = `${number(100 * here.removed)} %`;
    this.find(".at").textContent = facts.layers.length ? here.at : percent;
    this.find(".level").setAttribute("aria-valuetext", `${here.at}, ${percent} removed`);
    const value = facts.about.share ? `${(100 * here.value).toFixed(2)} %` : number(here.value, 4);
    const less = (name, shown, unit) => here[name] === null ? null :
      [shown(here[name]) + unit, base[name] && here[name] !== base[name] ?
        `${number(100 * here[name] / base[name])} % of ${shown(base[name])}${unit}` : "as before"];
    const tiles = {
      [`${facts.about.metric} on validation`]: [value, here.between],
      "Change": here.change ? [here.change.split(" [")[0], here.change.includes("[") ? `[${here.change.split(" [")[1]}` : ""] : ["0", ""],
      "Test": here.test ? [here.test, here.chosen ? "chosen point" : ""] : null,
      "Parameters": less("parameters", count, ""),
      "MACs of the blocks": less("macs", count, ""),
      "Size": less("mib", (x) => number(x, 4), " MiB"),
      "Latency": less("ms", (x) => number(x, 3), " ms"),
    };
    const list = this.find(".tiles");
    list.replaceChildren();
    for (const [name, texts] of Object.entries(tiles)) {
      if (!texts) continue;
      const tile = element("div", "", list);
      element("dt", name, tile);
      const shown = element("dd", texts[0], tile);
      if (texts[1]) element("small", texts[1], shown);
    }
    this.find(".chosen").disabled = !facts.start[this.focus];
  }
}

// A text whose tokens are dropped layer by layer: position 0 of the slider is the text, 1 what is left after layer 0.
class TokenText {
  constructor({ tokens, layers }, place) {
    Object.assign(this, { tokens, layers, slider: place.querySelector(".layer"), here: 0 });
    this.find = (name) => place.querySelector(name);
    this.spans = [...place.querySelectorAll(".tokens span")];
    if (!layers.length || !this.spans.length) return;
    this.find(".controls").hidden = false;
    this.slider.addEventListener("input", () => this.show());
    this.spans.forEach((span, i) => {
      span.addEventListener("mouseenter", () => this.tell(i));
      span.addEventListener("click", () => this.go(i));
      span.addEventListener("focus", () => this.tell(i));
      span.addEventListener("keydown", (event) => this.press(event, i));
    });
    this.show();
  }

  get layer() { return Number(this.slider.value) - 1; }

  isKept(i, layer = this.layer) { return layer < 0 || this.layers[layer].kept[i]; }

  show() {
    const { layer, layers, tokens } = this;
    const scores = layer < 0 ? [] : layers[layer].scores.map((score, i) => this.isKept(i) ? score ?? 0 : 0);
    const most = Math.max(...scores.slice(1), 0);  // the first token is always kept, whatever it scores
    this.spans.forEach((span, i) => {
      const share = !this.isKept(i) ? 0 : most ? 0.2 + 0.8 * Math.min(1, (layers[layer].scores[i] ?? 0) / most) : 0.5;
      span.style.setProperty("--kept", share.toFixed(3));
      span.classList.toggle("gone", !this.isKept(i));
      span.title = this.describe(i);
      span.tabIndex = i === this.here ? 0 : -1;
    });
    const left = tokens.filter((_, i) => this.isKept(i)).length;
    const text = layer < 0 ? `the text: ${tokens.length} tokens` : `after layer ${layer}: ${left} of ${tokens.length} tokens`;
    this.find(".left").textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
    this.tell(this.here);
  }

  describe(i) {
    const { layer, layers } = this;
    const first = layers.findIndex((one) => !one.kept[i]);
    const until = first < 0 ? "kept by every layer" : `dropped by layer ${first}`;
    const score = layer < 0 ? null : layers[layer].scores[i];
    return score === null ? until : `score ${number(score, 3)} in layer ${layer}; ${until}`;
  }

  tell(i) { this.find(".token-about").textContent = `${this.tokens[i]}: ${this.describe(i)}`; }

  go(i) {
    this.spans[this.here].tabIndex = -1;
    this.here = i;
    this.spans[i].tabIndex = 0;
    this.spans[i].focus();
  }

  press(event, i) {
    const last = this.spans.length - 1;
    const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: last }[event.key];
    const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (to === undefined && step === undefined) return;
    event.preventDefault();
    if (to !== undefined) return this.go(Math.min(last, Math.max(0, to)));
    this.slider.value = Number(this.slider.value) + step;
    this.here = i;
    this.show();
  }
}

all.runs.forEach((facts, i) => {
  const places = document.getElementById(`run-${i}`).querySelectorAll(".text");
  facts.tokens.forEach((text, n) => new TokenText(text, places[n]));
});

const runs = all.runs.map((facts, i) => new Run(facts, document.getElementById(`run-${i}`)));
const tabs = [...document.querySelectorAll("[role=tab]")];

function choose(number) {
  runs.forEach((run, i) => { run.place.hidden = i !== number; });
  tabs.forEach((tab, i) => {
    tab.setAttribute("aria-selected", String(i === number));
    tab.tabIndex = i === number ? 0 : -1;
  });
  return runs[number].begin();
}

tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => choose(i));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (i + step + tabs.length) % tabs.length;
    tabs[next].focus();
    choose(next);
  });
});

const system = matchMedia("(prefers-color-scheme: dark)");
const button = document.getElementById("theme");
function paint() {
  const dark = (remembered.get("espalier-theme") ?? (system.matches ? "dark" : "light")) === "dark";
  root.dataset.theme = dark ? "dark" : "light";
  button.setAttribute("aria-pressed", String(dark));
}
button.addEventListener("click", () => {
  remembered.set("espalier-theme", root.dataset.theme === "dark" ? "light" : "dark");
  if (remembered.get("espalier-theme") === null) root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  else paint();
});
system.addEventListener("change", paint);
paint();

// A live page begins where the one before it was.
const kept = all.live ? JSON.parse(remembered.get("espalier-live") ?? "{}") : {};
if (kept.focus in runs[0].facts.points) {
  runs[0].facts.focus = kept.focus;
  const near = runs[0].facts.points[kept.focus].map((point) => Math.abs(point.removed - kept.removed));
  runs[0].facts.start[kept.focus] = near.indexOf(Math.min(...near));
}
choose(0).then(() => { root.dataset.ready = String(Math.round(performance.now())); });

if (all.live) {
  setInterval(async () => {
    const answer = await fetch("state").catch(() => null);
    if (!answer || !answer.ok || (await answer.text()) === all.live) return;
    const { focus, here } = runs[0];
    remembered.set("espalier-live", JSON.stringify({ focus, removed: here.removed }));
    location.reload();
  }, 2000);
}

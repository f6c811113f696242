"use strict";
const all = (selector, of = document) => [...of.querySelectorAll(selector)];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const large = document.createElement("dialog"), closer = document.createElement("button");
let enlarged = null;  // the figure of the grid that is large
Object.assign(large, { className: "large", ariaLabel: "A grid, enlarged" });
large.append(new Image(), document.createElement("p"), closer);
closer.textContent = "close";
document.body.append(large);
large.addEventListener("click", () => large.close());
const enlarge = (figure) => {
  const { src, alt, className } = figure.querySelector("img");
  enlarged = figure;
  Object.assign(large.querySelector("img"), { src, alt, className });
  large.querySelector("p").textContent = figure.querySelector("figcaption").textContent;
};
for (const button of all(".look"))
  button.addEventListener("click", () => {
    enlarge(button.closest("figure"));
    large.showModal();
  });

for (const film of all(".film")) {
  const frames = all(".frame", film), slider = film.querySelector("input"), [back, on, play] = all(".controls button", film);
  let timer = 0;
  const show = (index) => {
    slider.value = Math.max(0, Math.min(frames.length - 1, index));
    frames.forEach((frame, number) => { frame.hidden = number !== Number(slider.value); });
    if (large.open && frames.includes(enlarged)) enlarge(frames[slider.value]);
    slider.setAttribute("aria-valuetext", frames[slider.value].querySelector("figcaption").textContent);
    // A button with "disabled" would lose the focus, and with it the arrow keys.
    back.setAttribute("aria-disabled", Number(slider.value) === 0);
    on.setAttribute("aria-disabled", Number(slider.value) === frames.length - 1);
  };
  const step = (move) => {
    timer = clearInterval(timer);
    play.textContent = "▶";
    show(Number(slider.value) + move);
  };
  slider.addEventListener("input", () => step(0));
  back.addEventListener("click", () => step(-1));
  on.addEventListener("click", () => step(1));
  play.addEventListener("click", () => {
    if (timer) return step(0);
    if (Number(slider.value) === frames.length - 1) show(0);
    play.textContent = "❚❚";
    timer = setInterval(() => (Number(slider.value) < frames.length - 1 ? show(Number(slider.value) + 1) : step(0)), 400);
  });
  document.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key], own = event.target.closest?.("[type=range], select, audio, .cut");
    if (!move || own || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    step(move);
  });
  film.querySelector(".controls").hidden = false;
  show(frames.length - 1);
}

for (const button of all(".copy")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    getSelection().selectAllChildren(button.previousElementSibling.firstElementChild);
    button.textContent = document.execCommand("copy") ? "copied" : "selected";
  });
}

const cut = new ResizeObserver((entries) => {
  for (const { target } of entries) target.classList.toggle("cut", target.scrollWidth > target.clientWidth + 1);
});
all(".table").forEach((table) => cut.observe(table));

for (const button of all("thead button")) {
  const head = button.parentElement, table = head.closest("table");
  const value = (row) => {
    const text = row.cells[head.cellIndex].textContent.trim(), number = Number(text.replaceAll(",", ""));
    return text === "" ? null : Number.isNaN(number) ? text : number;
  };
  button.addEventListener("click", () => {
    const sign = head.ariaSort === "ascending" ? -1 : 1;
    all("th", table.tHead).forEach((one) => one.removeAttribute("aria-sort"));
    head.ariaSort = sign === 1 ? "ascending" : "descending";
    const order = (a, b) => (typeof a === typeof b ? sign * (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);
    const empty = (row) => value(row) === null;
    const rows = [...table.tBodies[0].rows].sort((a, b) => empty(a) - empty(b) || order(value(a), value(b)));
    table.tBodies[0].append(...rows);
  });
}

const facts = document.getElementById("curves");
if (facts && window.Bokeh) draw(JSON.parse(facts.textContent));

async function draw({ document: saved, images, clock }) {
  Bokeh.logger.set_level("error");
  const options = document.querySelector(".options"), { x, smooth, zoom } = options.elements;
  const roots = Object.fromEntries(saved.roots.map((root) => [root.id, root.attributes.name]));
  const places = Object.fromEntries(Object.values(roots).map((id) => [id, document.getElementById(id).parentElement]));
  const [views] = await Bokeh.embed.embed_items({ all: saved }, [{ docid: "all", roots, root_ids: Object.keys(roots) }]);
  const model = (name, values) => new (Bokeh.Models.get(name))(values);
  const charts = views.roots.filter((view) => places[view.model.name]).map((view) => {
    const plot = view.model, figure = places[plot.name].closest("figure"), element = figure.querySelector(".plot");
    const tagged = (tag) => plot.renderers.filter((one) => one.tags[0] === tag);
    return { view, plot, element, figure, keys: all(".key", figure), lines: tagged("line"), tagged };
  });
  const columns = new Map();  // as they were saved, by their source
  for (const { data_source: source } of charts.flatMap(({ plot }) => plot.renderers))
    columns.set(source, Object.fromEntries(["step", "shown", "first", "last"].map((name) => [name, source.get_array(name)])));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const range = charts[0].plot.x_range, end = range.end;

  const hours = clock.length > 1 && clock.at(-1)[1] > 7200, unit = hours ? 3600 : 60;
  const axes = {
    step: ["step", (step) => step],
    images: ["images", (step) => step * images],
    time: [hours ? "hours" : "minutes", (step) => {
      const after = Math.max(1, clock.findIndex(([at]) => at >= step)), [[a, from], [b, to]] = clock.slice(after - 1, after + 1);
      return (from + (to - from) * (step - a) / Math.max(1, b - a)) / unit;
    }],
  };
  const smoothed = (values, weight) => {  // as TensorBoard does
    let mean = 0, seen = 0;
    return Array.from(values, (value) => {
      if (!Number.isFinite(value)) return value;
      mean = weight * mean + (1 - weight) * value;
      seen = weight * seen + 1 - weight;
      return mean / seen;
    });
  };
  const place = () => {
    const [name, map] = axes[x ? x.value : "step"], weight = Number(smooth.value);
    for (const [source, { step, shown, first, last }] of columns) {
      const moved = Object.entries({ step, first, last }).filter(([, values]) => values.length);
      const data = moved.map(([column, values]) => [column, Array.from(values, map)]);
      if (shown.length) data.push(["at", step], ["value", shown], ["shown", weight && shown.length > 1 ? smoothed(shown, weight) : shown]);
      source.data = new Map(data);
    }
    for (const { plot } of charts) plot.below[0].axis_label = name;
    whole();
  };
  const whole = () => {
    const [, map] = axes[x ? x.value : "step"];
    range.setv({ start: -0.01 * map(end), end: 1.01 * map(end) });
  };
  // The points of the visible lines at a place of a chart (pixels of the window), the nearest of each.
  const nearest = ({ view, element, lines, keys }, { clientX, clientY }) => {
    const box = view.el.getBoundingClientRect(), { bbox, x_scale: scale } = view.frame;
    const [x, y] = [clientX - box.left, clientY - box.top];
    if (x < bbox.left || x > bbox.right || y < bbox.top || y > bbox.bottom) return [];
    const found = lines.flatMap((line, index) => {
      const [at, steps, values] = ["step", "at", "value"].map((name) => line.data_source.get_array(name));
      let best = -1, least = 30;  // pixels from which on a point is another one's
      for (let place = 0; line.visible && place < at.length; place++) {
        const away = Math.abs(scale.compute(at[place]) - x);
        if (away < least && Number.isFinite(values[place])) [best, least] = [place, away];
      }
      return best < 0 ? [] : [{ key: keys[index], step: steps[best], value: values[best], away: least }];
    });
    const least = Math.min(...found.map((each) => each.away));
    return found.filter((each) => each.away < least + 3);
  };
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const point = (chart, event) => {
    const found = nearest(chart, event);
    tip.hidden = found.length === 0;
    if (tip.hidden) return;
    const row = (...parts) => {
      const line = document.createElement("p");
      line.append(...parts);
      return line;
    };
    const bold = (text) => Object.assign(document.createElement("b"), { textContent: text });
    tip.replaceChildren(row(`step ${found[0].step.toLocaleString("en")}`), ...found.map(({ key, value }) =>
      row(key.querySelector("i").cloneNode(), key.textContent, bold(String(Number(value.toPrecision(4)))))));
    tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 12)}px`;
    const right = event.clientX + 16, room = innerWidth - tip.offsetWidth - 4;
    tip.style.left = `${right < room ? right : Math.max(4, event.clientX - tip.offsetWidth - 16)}px`;
  };
  const save = (title, keys, lines) => {
    const table = new Map();  // of a row by its step
    lines.forEach((line, index) => {
      const { step, shown } = columns.get(line.data_source);
      step.forEach((at, place) => {
        if (!table.has(at)) table.set(at, Array(lines.length).fill(""));
        if (Number.isFinite(shown[place])) table.get(at)[index] = shown[place];
      });
    });
    const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
    const rows = [...table].sort(([a], [b]) => a - b).map(([step, values]) => [step, ...values]);
    const text = [["step", ...keys.map((key) => quoted(key.textContent))], ...rows].map((row) => row.join(",")).join("\n");
    const href = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
    Object.assign(document.createElement("a"), { href, download: `${title.replace(/[^\w.-]+/g, "_")}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(href), 1000);
  };
  const paint = () => {
    const [ink, rule] = [css("--muted"), css("--rule")];
    for (const { plot, tagged } of charts) {
      for (const axis of [...plot.below, ...plot.left])
        axis.setv({ major_label_text_color: ink, axis_label_text_color: ink, axis_line_color: rule, major_tick_line_color: rule, minor_tick_line_color: null });
      for (const grid of plot.center) grid.setv({ grid_line_color: rule });
      for (const { glyph } of tagged("band")) glyph.setv({ fill_color: css("--band"), fill_alpha: 1 });
      for (const { glyph } of [...tagged("mark"), ...tagged("best")]) glyph.setv({ line_color: css("--mark") });
      for (const { glyph, tags } of tagged("line")) glyph.setv({ line_color: css(`--c${tags[1]}`) });
      for (const { glyph, tags } of tagged("dots")) glyph.setv({ fill_color: css(`--c${tags[1]}`) });
    }
  };
  for (const chart of charts) {
    const { plot, element, figure, keys, lines, tagged } = chart;
    element.addEventListener("pointermove", (event) => point(chart, event));
    for (const kind of ["pointerleave", "pointercancel"]) element.addEventListener(kind, () => { tip.hidden = true; });
    const csv = figure.querySelector(".csv");
    csv.hidden = false;
    csv.addEventListener("click", () => save(figure.querySelector("h3").textContent, keys, lines));
    plot.below[0].formatter = model("NumeralTickFormatter", { format: "0,0[.]0" });
    keys.forEach((key, index) => {
      key.disabled = false;
      key.addEventListener("click", () => {
        const line = lines[index], visible = !line.visible;
        for (const one of [line, ...tagged("dots").filter((dots) => dots.data_source === line.data_source)]) one.visible = visible;
        key.setAttribute("aria-pressed", visible);
      });
    });
    const log = figure.querySelector(".log");
    if (log) {
      log.parentElement.hidden = false;
      log.addEventListener("change", () => {
        const kind = log.checked ? "Log" : "Linear", ticks = log.checked ? "Log" : "Basic";
        const ticker = model(`${ticks}Ticker`);
        plot.left[0].setv({ ticker, formatter: model(`${ticks}TickFormatter`) });
        for (const grid of plot.center) if (grid.dimension === 1) grid.ticker = ticker;
        plot.y_range.scale_hint = log.checked ? "log" : "auto";
        plot.y_scale = model(`${kind}Scale`);
      });
    }
    figure.addEventListener("dblclick", whole);
  }
  const fit = () => {
    for (const { plot, element } of charts) plot.below[0].ticker.desired_num_ticks = Math.min(6, Math.max(2, Math.round(element.clientWidth / 110)));
  };
  // A drag would fix the y axis of its own chart alone, which then fits no other part of the curve.
  range.change.connect(() => queueMicrotask(() => { for (const { plot } of charts) plot.y_range.have_updated_interactively = false; }));
  addEventListener("resize", fit);
  const drag = () => {
    for (const { plot } of charts) plot.toolbar.active_drag = zoom.checked ? plot.toolbar.tools.find((tool) => tool.type === "BoxZoomTool") : null;
  };
  zoom.checked = matchMedia("(pointer: fine)").matches;  // a finger scrolls the page
  zoom.addEventListener("change", drag);
  x?.addEventListener("change", place);
  smooth.addEventListener("input", place);
  options.querySelector("button").addEventListener("click", whole);
  options.addEventListener("submit", (event) => event.preventDefault());
  options.hidden = false;
  dark.addEventListener("change", paint);
  addEventListener("beforeprint", () => {
    for (const { view, element } of charts) {
      element.querySelector(":scope > canvas")?.remove();
      const { canvas } = view.export("png");
      canvas.classList.toggle("dark", dark.matches);  // painted for a dark page, and printed on paper
      element.append(canvas);
    }
  });
  drag();
  fit();
  place();
  paint();
  document.documentElement.dataset.drawn = charts.length;
}

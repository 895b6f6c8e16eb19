// Should the circuit be believed: faithfulness under every ablation, and what else was checked.

/** Faithfulness by ablation, each with where it was measured. */
function faithfulnessRows(run) {
  const rows = (found, by, count) => Object.entries(asMap(found)).map(([ablation, f]) => ({
    ablation, by, value: f.value, interval: asList(f.interval), metric: f.metric, full: f.full, empty: f.empty, prompts: f.prompts ?? count,
  }));
  return [...rows(asMap(run.verdict).faithfulness, "discover", run.held_out), ...rows(run.evaluation.faithfulness, "evaluate", run.evaluation.prompts)];
}

function verdictPanel(host, run) {
  const rows = faithfulnessRows(run), facts = verdictFacts(run);
  host.replaceChildren();
  if (!asMap(run.verdict).sentence) {
    host.append(el("p", {class: "empty"}, rows.length ? "This run has no verdict of its own; these figures were measured by unweave evaluate." : "This run was not checked yet:", " ", rows.length ? null : el("code", {}, run.commands.evaluate)));
  }
  const two = el("div", {class: "two wide"}), left = el("div"), right = el("div");
  if (rows.length) {
    ablationFigure(left, rows);
    left.append(el("div", {class: "scroll"}, el("table", {class: "compare", id: "ablations"},
      el("caption", {}, "Faithfulness by ablation: (circuit − none) / (model − none) of the metric"),
      el("thead", {}, el("tr", {}, ["ablation", "prompts", "faithfulness", "95% interval", "circuit", "model", "none"].map((t) => el("th", {scope: "col"}, t)))),
      el("tbody", {}, rows.map((r) => el("tr", {}, el("th", {scope: "row"}, show(r.ablation, 30)),
        [`${r.prompts ?? "–"} (${r.by})`, num(r.value), r.interval.length ? `${num(r.interval[0])} to ${num(r.interval[1])}` : "–", num(r.metric), num(r.full), num(r.empty)].map((v) => el("td", {}, v))))))));
  }
  if (facts.length) right.append(el("dl", {class: "facts terms", id: "verdict-facts"}, facts.flatMap(([name, value, told]) => [el("dt", {}, name), el("dd", {}, el("b", {}, value), told ? [" ", el("span", {class: "muted"}, told)] : null)])));
  two.append(...[left, right].filter((part) => part.childNodes.length));
  host.append(two);
}

/** Dots with their intervals, one line an ablation. */
function ablationFigure(host, rows) {
  const known = rows.filter((r) => isNumber(r.value));
  if (!known.length) return;
  const all = known.flatMap((r) => [r.value, ...r.interval]).filter(isNumber);
  figure(host, "Faithfulness by ablation", (_, axis) => ({
    height: 70 + 26 * known.length,
    data: [whiskers(known.map((r) => r.interval)), {
      type: "scatter", mode: "markers", x: known.map((r) => r.value), y: known.map((_, i) => i), marker: {size: 10, color: known.map((r) => colour(r.by === "discover" ? "s0" : "s1"))},
      hoverinfo: "text", hovertext: known.map((r) => literal(`${r.ablation}, ${r.by}: ${num(r.value)}`)),
    }],
    layout: {
      margin: {l: 165, r: 12, t: 14, b: 40},
      shapes: [0, 1].map((x) => ({type: "line", yref: "paper", y0: 0, y1: 1, x0: x, x1: x, layer: "below", line: {color: colour("muted"), width: 1, dash: "5px,4px"}})),
      xaxis: axis("faithfulness", {range: [Math.max(-1, Math.min(0, ...all)) - 0.08, Math.min(2.2, Math.max(1, ...all)) + 0.08]}),
      yaxis: axis("", {range: [known.length - 0.5, -0.5], showgrid: false, tickvals: known.map((_, i) => i), ticktext: known.map((r) => literal(`${r.ablation} (${r.by})`, 32))}),
    },
  }));
}

/** Name, figure and meaning of everything else that was checked. */
function verdictFacts(run) {
  const verdict = asMap(run.verdict), ev = run.evaluation, facts = [];
  const mean = (v) => v.reduce((a, b) => a + b, 0) / v.length;
  for (const d of asList(verdict.random)) {
    const values = asList(d.faithfulness).filter(isNumber);
    if (values.length) facts.push([`${values.length} random circuits of ${d.size} ${run.counted.what}`, num(mean(values)), `faithfulness on average, from ${num(Math.min(...values))} to ${num(Math.max(...values))}, on ${prompts(verdict.prompts, "held-out")} (discover)`]);
  }
  for (const [by, found] of [["discover", verdict], ["evaluate", ev]]) {
    for (const [name, f] of Object.entries(asMap(found.templates))) facts.push([`faithfulness, ${name} templates`, num(f.value), `95% ${asList(f.interval).map((x) => num(x)).join(" to ")}, on ${prompts(f.prompts, "held-out")} (${by})`]);
    const gap = asMap(found.completeness), idle = asMap(found.minimality).idle;
    if (isNumber(gap.mean_gap)) facts.push(["completeness gap", num(gap.mean_gap), `on average, at worst ${num(gap.worst_gap)}: how differently circuit and model lose faithfulness when the same ${run.counted.what} are ablated in both, on ${prompts(found.prompts, "held-out")}; 0 is complete (${by})`]);
    if (Array.isArray(idle)) facts.push(["could lose", `${idle.length} of ${run.counted.size} ${run.counted.what}`, `that change faithfulness by less than 0.01 one at a time${idle.length ? ": " + idle.slice(0, 8).map((s) => show(s, 20)).join(", ") + (idle.length > 8 ? " …" : "") : ""} (${by})`]);
  }
  const over = asList(run.overshoot);
  if (over.length) facts.push(["above 1 because of", over.slice(0, 8).map((o) => `${show(o.site, 20)} ${signed(o.effect)}`).join(", "), "nodes outside the circuit that lower the metric"]);
  const {curve_gap: gap, curve_area: area, k80, k95, prompts: count} = asMap(run.summary), of = `discover's curve, on ${prompts(count, "held-out")}`;
  if (isNumber(gap)) facts.push(["size for 80% and 95%", `${num(k80)} and ${num(k95)} nodes`, `the first sizes with faithfulness ≥ 0.8 and ≥ 0.95 on ${of}`], ["curve gap, curve area", `${num(gap)}, ${num(area)}`, `areas of |1 − faithfulness| and of faithfulness over the fraction of nodes, of ${of}`]);
  if (ev.stability) facts.push(["stability", num(ev.stability.overlap, 2), `Jaccard overlap of the top nodes with those of resampled prompts; ${num(ev.stability.between, 2)} between resamples (evaluate)`]);
  return facts;
}

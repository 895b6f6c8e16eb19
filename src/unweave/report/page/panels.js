// Faithfulness, ROC and runtime, and the test against test.

/** Every line there is for the faithfulness chart. */
function faithfulnessLines(run) {
  const lines = [], ev = run.evaluation, dot = (name, x, y) => lines.push({name, x: [x], y: [y], dots: true});
  const curve = asMap(run.curve);
  if (asList(curve.sizes).length) {
    const band = asList(curve.low).length ? {low: curve.low, high: asList(curve.high)} : {};
    lines.push({name: `${run.method}, on ${prompts(curve.prompts, "held-out")} (discover)`, x: curve.sizes, y: asList(curve.faithfulness), ...band});
  }
  for (const [name, c] of Object.entries(asMap(ev.curves))) {
    lines.push({name: `${run.method}, ${name} ablation, on ${prompts(ev.prompts, "held-out")} (evaluate)`, x: asList(c.sizes), y: asList(c.faithfulness), dash: name !== ev.ablation});
  }
  for (const line of asList(asMap(run.comparison.figures).faithfulness_against_size)) {
    if (line.line === "random" && asList(ev.random).length) continue;
    lines.push({name: `${line.line} (compare)`, x: asList(line.sizes), y: asList(line.faithfulness), dash: line.line === "random", dots: asList(line.sizes).length < 2});
  }
  const random = randomCircuits(run);
  if (random.length) {
    const of = (f) => random.map((d) => f(d.faithfulness.filter(isNumber)));
    lines.push({
      name: `random circuits (mean, range), on ${byRandom(run)}`, dash: true, x: random.map((d) => d.size),
      y: of((v) => v.reduce((a, b) => a + b, 0) / v.length), low: of((v) => Math.min(...v)), high: of((v) => Math.max(...v)),
    });
  }
  for (const [name, value] of Object.entries(asMap(ev.known))) {
    dot(`${name} circuit, on ${prompts(ev.prompts, "held-out")} (evaluate)`, asMap(asMap(ev.roc)[name]).known, value);
  }
  if (isNumber(run.faithfulness)) dot(`this circuit, on ${prompts(run.held_out, "held-out")}`, run.counted.size, run.faithfulness);
  return lines;
}

/** The prompts that random circuits were measured on. */
const byRandom = (run) => (asList(run.evaluation.random).length ? `${prompts(run.evaluation.prompts, "held-out")} (evaluate)` : `${prompts(run.held_out, "held-out")} (discover)`);

/** Random circuits of each size, from the evaluation or else from the verdict. */
function randomCircuits(run) {
  const usable = (list) => asList(list).filter((d) => asList(d.faithfulness).some(isNumber));
  const evaluated = usable(run.evaluation.random);
  return evaluated.length ? evaluated : usable(asMap(run.verdict).random);
}

/** The range to show: all values, but no outlier may flatten the rest. */
function faithRange(lines) {
  const all = lines.flatMap((l) => [...l.y, ...(l.low || []), ...(l.high || [])]).filter(isNumber);
  return [Math.max(-1, Math.min(0, ...all)), Math.min(2.2, Math.max(1.1, ...all))];
}

function faithfulnessPanel(host, run) {
  const lines = faithfulnessLines(run);
  if (!lines.length) { empty(host, "No curve was measured."); return {move() {}}; }
  return curveChart(host, lines, run.counted.total, run.counted.what);
}

function curveChart(host, lines, total, what = "nodes") {
  const box = el("div"), scale = el("input", {type: "checkbox", checked: true});
  host.replaceChildren(el("div", {class: "controls"}, el("label", {}, scale, " stretch small circuits")), box);
  const axis = {label: `${what} in the circuit`, stretch: true, range: [0, total]};
  const made = chart(box, {
    title: `Faithfulness over the number of ${what}`, lines, x: axis,
    y: {label: "faithfulness", range: faithRange(lines)},
    marks: [{on: "y", at: 1, label: "whole model"}, {on: "y", at: 0}],
  });
  scale.addEventListener("change", () => { axis.stretch = scale.checked; made.draw(); });
  return made;
}

function rocPanel(host, run) {
  const known = Object.entries(asMap(run.evaluation.roc)).filter(([, r]) => asList(r.points).length);
  const others = asList(asMap(run.comparison.figures).runtime_against_auc).filter((d) => isNumber(d.auc) && d.seconds > 0);
  if (!known.length && !others.length) {
    const none = run.published === false || Object.keys(run.evaluation).length;
    return empty(host, none
      ? "No published circuit is known for this task on this model, so there is nothing to rank the scores against."
      : "Not evaluated yet:", none ? null : run.commands.evaluate);
  }
  host.replaceChildren();
  if (known.length) {
    const box = el("div");
    host.append(el("p", {}, known.map(([name, r]) => `Against the ${show(name, 40)} circuit (${r.known} of ${r.nodes} nodes): AUC ${num(r.auc)} by rank, ${num(r.sweep_auc)} over percentiles 90–99. `)), box);
    const path = (r) => [[0, 0], ...r.points.map((p) => [p[1], p[2]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]), [1, 1]];
    chart(box, {
      title: "ROC", aspect: 0.8, x: {label: "false positive rate", range: [0, 1]}, y: {label: "true positive rate", range: [0, 1]},
      lines: [...known.map(([name, r]) => ({name, x: path(r).map((p) => p[0]), y: path(r).map((p) => p[1])})),
        {name: "random order", x: [0, 1], y: [0, 1], dash: true}],
    });
  }
  if (others.length) {
    const box = el("div"), marked = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000];
    const decades = [Math.min, Math.max].map((f) => Math.log10(f(...others.map((d) => d.seconds))));
    host.append(el("h4", {}, "Runtime against AUC"), box);
    chart(box, {
      title: "AUC over seconds", lines: others.map((d) => ({name: d.method, x: [d.seconds], y: [d.auc], dots: true})),
      x: {label: "seconds to score all nodes", type: "log", range: [decades[0] - 0.3, decades[1] + 0.3], tickvals: marked, ticktext: marked.map(String)},
      y: {label: "ROC AUC", range: [Math.min(0.4, ...others.map((d) => d.auc)), 1]},
    });
  }
}

function runtimePanel(host, run) {
  const phases = Object.entries(asMap(run.seconds)).filter(([, s]) => isNumber(s));
  if (!phases.length) return empty(host, "No times were kept.");
  const names = phases.map(([name]) => name), seconds = phases.map(([, s]) => s);
  host.replaceChildren();
  figure(host, "Seconds by phase", (_, axis) => ({
    height: 62 + 30 * phases.length,
    data: [{
      type: "bar", orientation: "h", x: seconds, y: names.map((_, i) => i), marker: {color: colour("pos")}, width: 0.6,
      text: seconds.map((s) => num(s)), textposition: "outside", hoverinfo: "none",
    }],
    layout: {
      margin: {l: 120, r: 12, t: 22, b: 40},
      xaxis: axis("seconds", {range: [0, 1.15 * Math.max(...seconds) || 1]}),
      yaxis: axis("", {autorange: "reversed", showgrid: false, tickvals: names.map((_, i) => i), ticktext: names.map((name) => literal(name, 24))}),
    },
  }));
  const passes = asMap(run.forwards);
  host.append(dataTable("Seconds by phase: the values", ["phase", "seconds", "forward passes"],
    [...new Set([...names, ...Object.keys(passes)])].map((name) => [show(name, 60), num(asMap(run.seconds)[name]), num(passes[name], 6)])));
}

function randomPanel(host, run) {
  const test = run.evaluation.random_circuits, random = randomCircuits(run);
  const shares = asList(asMap(test).shares);
  if (!shares.length && !random.length) return empty(host, "The circuit was not tested against random circuits yet:", run.commands.evaluate);
  const spread = el("div"), beaten = el("div");
  const own = shares.length ? test : {size: run.counted.size, faithfulness: run.faithfulness};
  const of = shares.length ? `${prompts(run.evaluation.prompts, "held-out")} (evaluate)` : prompts(run.held_out, "held-out");
  const told = shares.length
    ? `At faithfulness ${num(test.faithfulness)} on ${of} with ${test.size} ${run.counted.what} it is more faithful than ${percent(test.mark)} of random circuits up to ${percent(test.up_to)} of the model, and closer to 1 than ${percent(test.mark)} of them up to ${percent(test.up_to_farther)}.`
    : `Random circuits on ${of}; the test at every size takes `;
  host.replaceChildren(el("p", {}, told, shares.length ? null : el("code", {}, run.commands.evaluate)), el("div", {class: "two"}, shares.length ? beaten : null, spread));
  const share = {range: [0, 1], format: percent, tickformat: ".0%"};
  if (shares.length) {
    const x = shares.map((s) => s.fraction);
    chart(beaten, {
      title: "Share of random circuits beaten, by their size", aspect: 0.7,
      x: {label: "size of the random circuits", ...share}, y: {label: "share beaten", ...share},
      lines: [{name: "less faithful", x, y: shares.map((s) => s.beaten)}, {name: "farther from 1", x, y: shares.map((s) => s.farther), dash: true}],
      marks: [{on: "y", at: test.mark, label: "q* = " + num(test.mark)}],
      table: dataTable("The test as a table", ["size", "of the model", "random circuits", "less faithful", "farther from 1"],
        shares.map((s) => [num(s.size), percent(s.fraction), num(s.draws), percent(s.beaten), percent(s.farther)])),
    });
  }
  const points = random.flatMap((d) => d.faithfulness.filter(isNumber).map((f) => [d.fraction ?? d.size / run.counted.total, f]));
  if (points.length) {
    const lines = [{name: "random circuits", x: points.map((p) => p[0]), y: points.map((p) => p[1]), dots: true},
      {name: `this circuit, on ${of}`, x: [own.size / run.counted.total], y: [own.faithfulness], dots: true}];
    chart(spread, {
      title: "Faithfulness of random circuits", aspect: 0.7, lines, marks: [{on: "y", at: 1}],
      x: {label: "size of the random circuits", ...share},
      y: {label: "faithfulness", range: faithRange(lines)},
    });
  }
}

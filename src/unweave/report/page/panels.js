// Faithfulness, ROC and runtime, and the test against chance.

/** Every line there is for the faithfulness chart. */
function faithfulnessLines(run) {
  const lines = [], points = [], ev = run.evaluation;
  const curve = asMap(run.curve);
  if (asList(curve.sizes).length) lines.push({name: `${run.method}, as found`, x: curve.sizes, y: asList(curve.faithfulness)});
  for (const [name, c] of Object.entries(asMap(ev.curves))) {
    lines.push({name: `${run.method}, ${name} ablation`, x: asList(c.sizes), y: asList(c.faithfulness), dash: name !== ev.ablation});
  }
  for (const line of asList(asMap(run.comparison.figures).faithfulness_against_size)) {
    if (line.line === "random" && asList(ev.random).length) continue;
    if (asList(line.sizes).length > 1) lines.push({name: line.line, x: line.sizes, y: line.faithfulness, dash: line.line === "random"});
    else points.push({name: line.line, x: line.sizes[0], y: line.faithfulness[0]});
  }
  const random = asList(ev.random).filter((d) => asList(d.faithfulness).some(isNumber));
  if (random.length) {
    const of = (f) => random.map((d) => f(d.faithfulness.filter(isNumber)));
    lines.push({
      name: "random circuits (mean, range)", dash: true, x: random.map((d) => d.size),
      y: of((v) => v.reduce((a, b) => a + b, 0) / v.length), low: of((v) => Math.min(...v)), high: of((v) => Math.max(...v)),
    });
  }
  for (const [name, value] of Object.entries(asMap(ev.known))) {
    points.push({name: `${name} circuit`, x: asMap(asMap(ev.roc)[name]).known, y: value});
  }
  if (isNumber(run.faithfulness)) points.push({name: "this circuit", x: run.size, y: run.faithfulness});
  return {lines, points};
}

/** The range to show: all values, but no outlier may flatten the rest. */
function faithRange(lines, points) {
  const all = [...lines.flatMap((l) => [...l.y, ...(l.low || []), ...(l.high || [])]), ...points.map((p) => p.y)].filter(isNumber);
  return [Math.max(-1, Math.min(0, ...all)), Math.min(2.2, Math.max(1.1, ...all))];
}

function faithfulnessPanel(host, run) {
  const {lines, points} = faithfulnessLines(run);
  if (!lines.length && !points.length) { empty(host, "No curve was measured."); return {move() {}}; }
  return curveChart(host, lines, points, run.total);
}

function curveChart(host, lines, points, total) {
  const box = el("div"), scale = el("input", {type: "checkbox", checked: true});
  const table = dataTable("These curves as a table", ["line", "nodes: faithfulness"],
    [...lines.map((l) => [show(l.name, 60), l.x.map((x, i) => `${x}: ${num(l.y[i])}`).join(", ")]),
      ...points.map((p) => [show(p.name, 60), `${num(p.x)}: ${num(p.y)}`])]);
  host.replaceChildren(el("div", {class: "controls"}, el("label", {}, scale, " stretch small circuits")), box, table);
  let made = null, last = null;
  const draw = () => {
    made = chart(box, {
      title: "Faithfulness over the number of nodes", lines, points,
      x: {label: "nodes in the circuit", scale: scale.checked ? "sqrt" : "linear", domain: [0, total]},
      y: {label: "faithfulness", domain: faithRange(lines, points)},
      marks: [{axis: "y", at: 1, label: "whole model"}, {axis: "y", at: 0}],
    });
    if (last) made.move(...last);
  };
  scale.addEventListener("change", draw);
  draw();
  return {move(x, y) { last = [x, y]; made.move(x, y); }};
}

function rocPanel(host, run) {
  const known = Object.entries(asMap(run.evaluation.roc)).filter(([, r]) => asList(r.points).length);
  const others = asList(asMap(run.comparison.figures).runtime_against_auc).filter((d) => isNumber(d.auc) && isNumber(d.seconds));
  if (!known.length && !others.length) {
    return empty(host, Object.keys(run.evaluation).length
      ? "No published circuit is known for this task on this model, so there is nothing to rank the scores against."
      : "Not evaluated yet:", Object.keys(run.evaluation).length ? null : `unweave evaluate ${run.name}`);
  }
  host.replaceChildren();
  if (known.length) {
    const box = el("div");
    host.append(el("p", {}, known.map(([name, r]) => `Against the ${show(name, 40)} circuit (${r.known} of ${r.nodes} nodes): AUC ${num(r.auc)} by rank, ${num(r.sweep_auc)} over percentiles 90–99. `)), box);
    const path = (r) => [[0, 0], ...r.points.map((p) => [p[1], p[2]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]), [1, 1]];
    chart(box, {
      title: "ROC", aspect: 0.8, x: {label: "false positive rate", domain: [0, 1]}, y: {label: "true positive rate", domain: [0, 1]},
      lines: [...known.map(([name, r]) => ({name, x: path(r).map((p) => p[0]), y: path(r).map((p) => p[1])})),
        {name: "chance", x: [0, 1], y: [0, 1], dash: true}],
    });
  }
  if (others.length) {
    const box = el("div"), seconds = others.map((d) => d.seconds);
    host.append(el("h4", {}, "Runtime against AUC"), box);
    chart(box, {
      title: "AUC over seconds", lines: [], points: others.map((d) => ({name: d.method, x: d.seconds, y: d.auc})),
      x: {label: "seconds to score all nodes", scale: "log", domain: [Math.min(...seconds) / 2, Math.max(...seconds) * 2]},
      y: {label: "ROC AUC", domain: [Math.min(0.4, ...others.map((d) => d.auc)), 1]},
    });
  }
}

function runtimePanel(host, run) {
  const phases = Object.entries(asMap(run.seconds)).filter(([, s]) => isNumber(s));
  if (!phases.length) return empty(host, "No times were kept.");
  const largest = Math.max(...phases.map(([, s]) => s)) || 1;
  host.replaceChildren(el("table", {class: "bars"}, el("caption", {}, "Seconds by phase"), el("tbody", {}, phases.map(([name, s]) => {
    const bar = el("span", {class: "meter pos"});
    bar.style.setProperty("--m", (100 * s) / largest);
    return el("tr", {}, el("th", {scope: "row"}, show(name, 40)), el("td", {class: "wide"}, bar), el("td", {class: "value"}, num(s)));
  }))));
}

function chancePanel(host, run) {
  const {chance, random} = run.evaluation;
  const shares = asList(asMap(chance).shares);
  if (!shares.length) return empty(host, "The circuit was not tested against random circuits yet:", `unweave evaluate ${run.name}`);
  const drawn = el("div"), beaten = el("div");
  const verdict = `At faithfulness ${num(chance.faithfulness)} with ${chance.size} nodes it is more faithful than ${percent(chance.mark)} of random circuits up to ${percent(chance.up_to)} of the model, and closer to 1 than ${percent(chance.mark)} of them up to ${percent(chance.up_to_farther)}.`;
  host.replaceChildren(el("p", {}, verdict), el("div", {class: "two"}, beaten, drawn), dataTable("The test as a table",
    ["size", "of the model", "random circuits", "less faithful", "farther from 1"],
    shares.map((s) => [num(s.size), percent(s.fraction), num(s.draws), percent(s.beaten), percent(s.farther)])));
  const x = shares.map((s) => s.fraction);
  chart(beaten, {
    title: "Share of random circuits beaten, by their size", aspect: 0.7,
    x: {label: "size of the random circuits", domain: [0, 1.02], format: percent}, y: {label: "share beaten", domain: [0, 1.02], format: percent},
    lines: [{name: "less faithful", x, y: shares.map((s) => s.beaten)}, {name: "farther from 1", x, y: shares.map((s) => s.farther), dash: true}],
    marks: [{axis: "y", at: chance.mark, label: "q* = " + num(chance.mark)}],
  });
  const points = asList(random).flatMap((d) => d.faithfulness.filter(isNumber).map((f) => [d.fraction, f]));
  if (points.length) {
    const values = [...points.map((p) => p[1]), chance.faithfulness].filter(isNumber);
    chart(drawn, {
      title: "Faithfulness of random circuits", aspect: 0.7,
      x: {label: "size of the random circuits", domain: [0, 1.02], format: percent},
      y: {label: "faithfulness", domain: [Math.max(-1, Math.min(0, ...values)), Math.min(2.2, Math.max(1.1, ...values))]},
      lines: [], points: points.map(([px, py]) => ({name: "random circuits", x: px, y: py})).concat([{name: "this circuit", x: chance.size / run.total, y: chance.faithfulness}]),
      marks: [{axis: "y", at: 1}],
    });
  }
}

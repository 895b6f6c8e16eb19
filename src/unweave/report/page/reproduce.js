// The figures of the paper, one group a subject. Tables are in the page already.

const data = JSON.parse(byId("data").textContent);
const entries = (x) => Object.entries(asMap(x));

/** Runtime against ROC AUC, one dot a method and subject. */
function overviewPlot(host, subjects) {
  const methods = [...new Set(subjects.flatMap((one) => entries(one.methods).map(([name]) => name)))];
  const lines = methods.map((name) => {
    const dots = subjects.map((one) => asMap(one.methods[name])).filter((m) => isNumber(asMap(m.roc).auc) && m.seconds > 0);
    return {name, dots: true, x: dots.map((m) => Math.log10(m.seconds)), y: dots.map((m) => m.roc.auc)};
  }).filter((line) => line.x.length);
  if (!lines.length) return empty(host, "No model here has a known circuit, so there is no ROC AUC.");
  const all = lines.flatMap((line) => line.x), low = Math.floor(Math.min(...all)), high = Math.ceil(Math.max(...all));
  const ticks = Array.from({length: high - low + 1}, (_, i) => low + i);
  chart(host, {
    title: "ROC AUC and runtime", lines,
    x: {label: "seconds a run", range: [low, Math.max(high, low + 1)], format: (x) => `${num(10 ** x)} s`, tickvals: ticks, ticktext: ticks.map((t) => num(10 ** t))},
    y: {label: "ROC AUC", range: [0, 1]},
  });
}

const plots = {
  roc(host, one) {
    const lines = entries(one.methods).filter(([, m]) => asList(asMap(m.roc).points).length).map(([name, m]) => {
      const points = [[0, 0], ...m.roc.points.map(([, x, y]) => [x, y]).toSorted((a, b) => a[0] - b[0] || a[1] - b[1]), [1, 1]];
      return {name: `${name}: ${num(m.roc.auc)}`, x: points.map((p) => p[0]), y: points.map((p) => p[1])};
    });
    if (!lines.length) return empty(host, "No circuit of this model is known or published for this task.");
    chart(host, {title: "ROC", lines, x: {label: "false positive rate", range: [0, 1]}, y: {label: "true positive rate", range: [0, 1]}});
  },
  curves(host, one) {
    const found = asMap(one.curves), lines = entries(found.lines).map(([name, c]) => ({name, x: c.sizes, y: c.faithfulness}));
    if (!lines.length) return empty(host, "Not measured.");
    lines.push({name: "random order", dash: true, x: found.random.sizes, y: found.random.faithfulness});
    for (const [name, dot] of entries(found.known)) lines.push({name: `${name} circuit`, dots: true, x: [dot.size], y: [dot.faithfulness]});
    const values = lines.flatMap((line) => line.y).filter(isNumber);
    chart(host, {
      title: "Faithfulness by size", lines, marks: [{on: "y", at: 1, label: "whole model"}],
      x: {label: "nodes", range: [0, found.nodes]},
      y: {label: "faithfulness", range: [clamp(Math.min(0, ...values), -1, 0), clamp(Math.max(1.05, ...values), 1, 2)]},
    });
  },
  random_circuits(host, one) {
    const lines = entries(asMap(one.random_circuits).methods).map(([name, m]) => ({
      name: `${name} (${m.size} nodes)`, x: m.shares.map((s) => s.fraction), y: m.shares.map((s) => s.beaten),
    }));
    if (!lines.length) return empty(host, "Not measured.");
    chart(host, {
      title: "Against random circuits", lines, marks: [{on: "y", at: 0.8, label: "q* = 0.8"}],
      x: {label: "size of the random circuits, share of the model", range: [0, 1], format: percent}, y: {label: "share that is less faithful", range: [0, 1], format: percent},
    });
  },
  rounds(host, one) {
    asList(asMap(one.heatmaps).rounds).forEach((round, i) => heat(host, `Round ${i + 1}: relevance to ${round.targets.slice(0, 4).join(", ")}${round.targets.length > 4 ? ", …" : ""}`, round.values, round.selected));
  },
  stages(host, one) {
    for (const stage of asList(asMap(one.heatmaps).stages)) heat(host, `Heads at ${stage.position}: relevance to ${stage.target}${stage.target === "logits" ? "" : " heads"}`, stage.values, []);
  },
};

/** Layer × head; MLPs have a column of their own. */
function heat(host, title, values, selected) {
  const cells = entries(values).map(([site, value]) => {
    const head = /^[ac](\d+)\.h(\d+)/.exec(site), mlp = /^m(\d+)$/.exec(site);
    return {site, value, layer: Number((head || mlp || [0, 0])[1]), column: head ? Number(head[2]) : "MLP"};
  });
  const layers = Math.max(...cells.map((c) => c.layer)) + 1;
  const heads = Math.max(-1, ...cells.map((c) => c.column).filter(isNumber)) + 1;
  const columns = [...Array(heads).keys(), ...(cells.some((c) => c.column === "MLP") ? ["MLP"] : [])];
  const at = new Map(cells.map((c) => [`${c.layer} ${c.column}`, c]));
  const grid = Array.from({length: layers}, (_, l) => columns.map((c) => asMap(at.get(`${l} ${c}`)).value ?? null));
  const text = Array.from({length: layers}, (_, l) => columns.map((c) => { const cell = at.get(`${l} ${c}`); return cell ? `${literal(cell.site)}: ${num(cell.value)}` : ""; }));
  const most = Math.max(1e-12, ...cells.map((c) => Math.abs(c.value)).filter(isNumber)), chosen = cells.filter((c) => selected.includes(c.site));
  const box = el("div", {}, el("p", {class: "muted"}, show(title, 120)));
  host.append(box);
  figure(box, title, (width, axis) => ({
    height: clamp(26 * layers + 80, 160, 460),
    data: [
      {type: "heatmap", x: columns.map(String), y: [...Array(layers).keys()], z: grid, text, hoverinfo: "text", zmin: -most, zmax: most, xgap: 1, ygap: 1,
       colorscale: [[0, colour("neg")], [0.5, colour("soft")], [1, colour("pos")]], showscale: false},
      {type: "scatter", mode: "markers", x: chosen.map((c) => String(c.column)), y: chosen.map((c) => c.layer), hoverinfo: "skip", marker: {color: colour("ink"), size: 6}},
    ],
    layout: {xaxis: axis("head", {type: "category"}), yaxis: axis("layer", {autorange: "reversed", dtick: Math.ceil(layers / 12)})},
  }));
  box.append(dataTable(`${title}: the values`, ["node", "relevance"], cells.map((c) => [c.site, num(c.value)])));
}

wireTheme();
overviewPlot(byId("overview-plot"), data.subjects);
for (const host of document.querySelectorAll("[data-plot]")) plots[host.dataset.plot](host, data.subjects[Number(host.dataset.subject)]);
loaded.then(() => Promise.all(drawn)).then(() => { document.documentElement.dataset.ready = "yes"; });

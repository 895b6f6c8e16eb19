// The circuit as a layered graph: layers upward, heads or positions from left to right. Drawn by
// hand, since keys move from node to node and screen readers name each, which plotly cannot give.

/** Nodes and edges of a run in a form that is quick to ask. */
function network(run) {
  const {site, kind, row, unit, position, score, spread} = run.nodes;
  const nodes = site.map((name, i) => ({
    i, site: name, kind: kind[i], row: row[i], unit: unit[i], position: position[i],
    score: score[i], spread: spread[i], inside: i < run.size,
  }));
  const edges = {};
  for (const [measure, {targets, values}] of Object.entries(run.edges)) {
    edges[measure] = targets.flatMap((list, source) => list.map((target, j) => ({source, target, value: values[source][j]})))
      .sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  }
  return {nodes, edges, largest: Math.max(0, ...nodes.map((n) => Math.abs(n.score) || 0))};
}

/** Faithfulness of the first n nodes, on the line between the measured sizes. */
function faithfulnessAt(run, n) {
  if (n === run.size && isNumber(run.faithfulness)) return run.faithfulness;
  // The evaluation's curve is the finer one, where there is one.
  const measured = asMap(asMap(run.evaluation.curves)[run.evaluation.ablation]);
  const {sizes, faithfulness} = asList(measured.sizes).length ? measured : asMap(run.curve);
  const points = asList(sizes).map((s, i) => [s, asList(faithfulness)[i]]).filter(([, f]) => isNumber(f));
  let below = null;
  for (const [size, value] of points) {
    if (size === n) return value;
    if (size > n) return below ? below[1] + ((value - below[1]) * (n - below[0])) / (size - below[0]) : null;
    below = [size, value];
  }
  return null;
}

/**
 * Draws the graph. Returns {show(n), select(i), edges(count), measure(name), attend(tokens)}.
 * on: {select(node)}
 */
function circuitGraph(host, run, net, on) {
  const state = {n: run.size, chosen: -1, edges: 60, measure: Object.keys(net.edges)[0], attention: null};
  let parts = null;
  onWidth(host, draw);
  return {
    show(n) { state.n = n; update(); },
    edges(count) { state.edges = count; update(); },
    measure(name) { state.measure = name; update(); },
    attend(weights) { state.attention = weights; attention(); },
    select,
  };

  function select(i, focus) {
    state.chosen = i;
    update();
    if (focus && parts && parts.marks[i]) parts.marks[i].focus();
    on.select(i < 0 ? null : net.nodes[i]);
  }

  function draw(width) {
    const layout = place(run, net, width);
    const lines = svg("g", {class: "edges", "aria-hidden": "true"});
    const tokens = svg("g", {class: "attention", "aria-hidden": "true"});
    const list = svg("g", {role: "listbox", "aria-label": "Nodes, the most important first. Arrow keys move, Enter shows details."});
    list.addEventListener("keydown", keys);
    const root = svg("svg", {
      width, height: layout.height, viewBox: `0 0 ${width} ${layout.height}`, role: "group",
      "aria-label": `Circuit graph: ${run.rows.length} layers upward; logits at the top`,
    }, scenery(run, layout, width), lines, tokens, list);
    parts = {layout, lines, tokens, list, marks: []};
    host.replaceChildren(root);
    update();
  }

  function mark(node, layout) {
    const at = layout.at(node);
    if (!at) return null;
    const r = layout.radius(node);
    const shape = node.kind === "mlp" || node.kind === "neuron"
      ? svg("rect", {x: -r, y: -r, width: 2 * r, height: 2 * r, rx: r / 3})
      : node.kind === "stream" ? svg("path", {d: `M0${-r} ${r} 0 0 ${r} ${-r} 0Z`}) : svg("circle", {r});
    const told = `${show(node.site)}, rank ${node.i + 1}, score ${signed(node.score)}${node.inside ? ", in the circuit" : ""}`;
    return svg("g", {
      class: `node ${sign(node.score)}${isNumber(node.score) ? "" : " unknown"}`, role: "option", tabindex: -1, "data-i": node.i,
      "aria-label": told, "aria-selected": "false", transform: `translate(${at[0]},${at[1]})`,
      onclick: () => select(node.i, true),
    }, svg("title", {}, told), svg("circle", {class: "halo", r: r + 4}), shape,
      svg("text", {x: r + 3, y: 3.5}, brief(node.site)));
  }

  function keys(event) {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    const here = Number(event.target.closest("[data-i]")?.dataset.i);
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(here, true); return; }
    if (event.key === "Escape") { select(-1); return; }
    const to = event.key === "Home" ? 0 : event.key === "End" ? state.n - 1 : here + step;
    if (!Number.isInteger(to)) return;
    event.preventDefault();
    const next = parts.marks[clamp(to, 0, state.n - 1)];
    if (next) next.focus();
  }

  function update() {
    if (!parts) return;
    const {marks, layout, list} = parts;
    // Marks are made when they are first shown: thousands of nodes must not slow down the start.
    while (marks.length < state.n) {
      const made = mark(net.nodes[marks.length], layout);
      if (made) list.append(made);
      marks.push(made);
    }
    const few = state.n <= layout.labels;
    const first = state.chosen >= 0 && state.chosen < state.n ? state.chosen : 0;
    const near = new Set();
    parts.lines.replaceChildren(...chosenEdges().map((edge) => {
      if (edge.source === state.chosen && edge.target >= 0) near.add(edge.target);
      if (edge.target === state.chosen) near.add(edge.source);
      return edgeLine(edge);
    }));
    marks.forEach((g, i) => {
      if (!g) return;
      const visible = i < state.n;
      g.setAttribute("display", visible ? "" : "none");
      g.setAttribute("tabindex", i === first ? 0 : -1);
      g.setAttribute("aria-selected", String(i === state.chosen));
      g.classList.toggle("chosen", i === state.chosen);
      g.classList.toggle("dim", state.chosen >= 0 && i !== state.chosen && !near.has(i));
      g.classList.toggle("named", few || i === state.chosen || near.has(i));
    });
    attention();
  }

  /** The strongest edges among the visible nodes; around the chosen one, if there is one. */
  function chosenEdges() {
    const shown = (i) => i < state.n && parts.marks[i];
    const found = [];
    for (const edge of net.edges[state.measure] || []) {
      if (found.length >= state.edges) break;
      if (!shown(edge.source) || !shown(edge.target)) continue;
      if (state.chosen >= 0 && edge.source !== state.chosen && edge.target !== state.chosen) continue;
      found.push(edge);
    }
    const largest = Math.abs(found[0]?.value) || 1;
    const scaled = found.map((edge) => ({...edge, part: Math.abs(edge.value) / largest}));
    const direct = net.nodes.slice(0, state.n)
      .filter((n) => parts.marks[n.i] && isNumber(n.score) && n.score !== 0 && (state.chosen < 0 || n.i === state.chosen))
      .sort((a, b) => Math.abs(b.score) - Math.abs(a.score)).slice(0, Math.ceil(state.edges / 4))
      .map((n) => ({source: n.i, target: -1, value: n.score, part: Math.abs(n.score) / (net.largest || 1)}));
    // The strongest are drawn last, on top.
    return [...scaled, ...direct].sort((a, b) => a.part - b.part);
  }

  function edgeLine(edge) {
    const {at, logits} = parts.layout;
    const from = at(net.nodes[edge.source]);
    const to = edge.target < 0 ? logits(from) : at(net.nodes[edge.target]);
    const bend = Math.max(14, Math.abs(from[1] - to[1]) * 0.45);
    const line = svg("path", {
      class: `edge ${sign(edge.value)}${edge.target < 0 ? " direct" : ""}`,
      d: `M${from[0]},${from[1]}C${from[0]},${from[1] - bend} ${to[0]},${to[1] + bend} ${to[0]},${to[1]}`,
      "stroke-width": (0.6 + (edge.target < 0 ? 2.4 : 5) * edge.part).toFixed(2),
    });
    line.style.opacity = (0.18 + (edge.target < 0 ? 0.5 : 0.67) * edge.part).toFixed(2);
    return line;
  }

  /** Lines from the tokens that the chosen head looks at. */
  function attention() {
    if (!parts) return;
    const node = net.nodes[state.chosen];
    const to = node && node.i < state.n ? parts.layout.at(node) : null;
    const weights = to && state.attention ? state.attention.weights : [];
    const query = to && state.attention ? state.attention.query : -1;
    host.querySelectorAll(".token").forEach((g, word) => {
      const k = run.positions.length ? run.positions[word].index : word;
      g.style.setProperty("--m", 100 * (weights[k] || 0));
      g.classList.toggle("query", k === query);
    });
    parts.tokens.replaceChildren(...parts.layout.tokens.map((at, k) => [at, weights[k] || 0])
      .filter(([, w]) => w > 0.02)
      .map(([at, w]) => svg("path", {
        class: "look", "stroke-width": (0.5 + 5 * w).toFixed(2),
        d: `M${at[0]},${at[1]}C${at[0]},${at[1] - 60} ${to[0]},${to[1] + 60} ${to[0]},${to[1]}`,
      })));
  }
}

// The circuit as a layered graph: layers upward; heads, positions or roles from left to right. Drawn
// by hand, since keys move from node to node and screen readers name each, which plotly cannot give.
const INPUT = -1, LOGITS = -2; // ends of an edge that are no nodes

/** Nodes and edges of a run in a form that is quick to ask. */
function network(run) {
  const of = (key, i) => (run.nodes[key] ? run.nodes[key][i] : null);
  const nodes = run.nodes.site.map((site, i) => ({
    i, site, kind: of("kind", i), row: of("row", i), unit: of("unit", i), position: of("position", i),
    score: of("score", i), spread: of("spread", i), effect: of("effect", i), interval: of("interval", i),
    group: of("group", i), frequency: of("frequency", i), swaps: asList(of("swaps", i)), whole: of("whole", i), roles: asList(of("roles", i)).map(String),
    sentence: of("sentence", i), matters: of("at", i), inside: i < run.size,
  }));
  const pairs = {};
  for (const [measure, {targets, values}] of Object.entries(run.pairs)) {
    pairs[measure] = targets.flatMap((list, source) => list.map((target, j) => ({source, target, value: values[source][j]})))
      .sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  }
  const edges = run.edges.map(([source, target, branch, score, effect]) => ({source, target, branch, score, effect}));
  const feeders = run.feeders.map(([source, target, branch, share, held]) => ({source, target, branch, share, held}));
  const largest = (key) => Math.max(0, ...nodes.map((n) => Math.abs(n[key]) || 0));
  return {nodes, pairs, edges, feeders, roles: [...new Set(nodes.flatMap((n) => n.roles.slice(0, 1)))], largest: {score: largest("score"), effect: largest("effect")}};
}

/** Faithfulness of the first n nodes, on the line between the measured sizes, and its prompts. */
function faithfulnessAt(run, n) {
  if (n === run.size && isNumber(run.faithfulness)) return {value: run.faithfulness, told: `on ${prompts(run.held_out, "held-out")}`};
  if (run.level === "edge") return {value: null, told: "curves of this run count edges: only the whole circuit was measured"};
  // The evaluation's curve is the finer one, where there is one.
  const measured = asMap(asMap(run.evaluation.curves)[run.evaluation.ablation]), own = asMap(run.curve);
  const fine = asList(measured.sizes).length;
  const {sizes, faithfulness} = fine ? measured : own;
  const points = asList(sizes).map((s, i) => [s, asList(faithfulness)[i]]).filter(([, f]) => isNumber(f));
  const where = fine ? `on ${prompts(run.evaluation.prompts, "held-out")} (evaluate)` : `on ${prompts(own.prompts, "held-out")} (discover's curve)`;
  let below = null;
  for (const [size, value] of points) {
    if (size === n) return {value, told: where};
    if (size > n) return {value: below ? below[1] + ((value - below[1]) * (n - below[0])) / (size - below[0]) : null, told: `${where}, between measured sizes`};
    below = [size, value];
  }
  return {value: null, told: "not measured at this size"};
}

/**
 * Draws the graph. Returns {set(changes), select(i, focus), attend(weights), redraw()}.
 * state: n nodes; chosen node; size: "effect" or "score"; columns: "head" or "role"; colours: "sign"
 * or "role"; hidden: roles whose nodes are not shown; relevance: a measure or null; count of
 * relevance lines; path: a list of ends to mark.
 * on: {select(node)}
 */
function circuitGraph(host, run, net, on, start = {}) {
  const state = {n: run.size, chosen: -1, size: sizes(net)[0], columns: "head", colours: "sign", hidden: new Set(), relevance: null, count: 60, path: [], attention: null, ...start};
  let parts = null, width = 0;
  onWidth(host, (w) => draw((width = w)));
  return {
    set(changes) {
      const whole = ["size", "columns", "colours"].some((key) => key in changes && changes[key] !== state[key]);
      Object.assign(state, changes);
      if (whole) draw(width); else update();
    },
    attend(weights) { state.attention = weights; attention(); },
    redraw: () => draw(width),
    select,
  };

  function select(i, focus) {
    state.chosen = i;
    update();
    if (focus && parts && parts.marks.get(i)) parts.marks.get(i).focus();
    on.select(i < 0 ? null : net.nodes[i]);
  }

  function draw() {
    if (!width) return;
    const layout = place(run, net, width, state);
    const lines = svg("g", {class: "edges"});
    const tokens = svg("g", {class: "attention", "aria-hidden": "true"});
    const list = svg("g", {role: "listbox", "aria-label": "Nodes in the method's order. Arrow keys move, Enter shows details."});
    list.addEventListener("keydown", keys);
    const root = svg("svg", {
      width, height: layout.height, viewBox: `0 0 ${width} ${layout.height}`, role: "group",
      "aria-label": `Circuit graph: ${run.rows.length} layers upward; logits at the top`,
    }, scenery(run, layout, width), lines, tokens, list);
    parts = {layout, lines, tokens, list, marks: new Map()};
    host.replaceChildren(root);
    update();
  }

  function mark(node, layout) {
    const at = layout.at(node);
    if (!at) return null;
    const r = layout.radius(node), value = node[state.size];
    const shape = node.kind === "mlp" || node.kind === "neuron"
      ? svg("rect", {x: -r, y: -r, width: 2 * r, height: 2 * r, rx: r / 3})
      : node.kind === "stream" ? svg("path", {d: `M0${-r} ${r} 0 0 ${r} ${-r} 0Z`}) : svg("circle", {r});
    const role = node.roles.length ? `, ${node.roles.join(", ")}` : "";
    const told = `${show(node.site)}, order ${node.i + 1}, ${isNumber(node.effect) ? `effect ${signed(node.effect)}, ` : ""}score ${signed(node.score)}${show(role)}${node.inside ? ", in the circuit" : ""}`;
    return svg("g", {
      class: `node ${sign(value)}${isNumber(value) ? "" : " unknown"}${state.colours === "role" ? ` by-role ${roleClass(net, node)}` : ""}`, role: "option", tabindex: -1, "data-i": node.i,
      "aria-label": told, "aria-selected": "false", transform: `translate(${at[0]},${at[1]})`,
      onclick: () => select(node.i, true),
    }, svg("title", {}, told), svg("circle", {class: "halo", r: r + 4}), shape, ports(node, r),
      svg("text", {x: r + 3, y: 3.5}, brief(node.site), svg("tspan", {class: "role", x: r + 3, dy: 10}, layout.arranged ? "" : show(node.roles[0] || "", 18)),
        svg("tspan", {class: "note", x: r + 3, dy: 10})));
  }

  /** Where lines enter a head: its query, key or value, each named where a line comes in. */
  function ports(node, r) {
    const used = new Set([...net.edges, ...fed()].filter((e) => e.target === node.i && e.branch).map((e) => e.branch));
    return [...used].map((branch) => svg("text", {class: "port", x: PORTS[branch] * (r + 2), y: r + 8, "text-anchor": "middle"}, branch));
  }

  /** Feeders to draw: those that patching confirmed, where no edges of a circuit were found. */
  function fed() {
    return net.edges.length ? [] : net.feeders.filter((e) => e.held);
  }

  function keys(event) {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    const here = Number(event.target.closest("[data-i]")?.dataset.i);
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(here, true); return; }
    if (event.key === "Escape") { select(-1); return; }
    const to = event.key === "Home" ? 0 : event.key === "End" ? state.n - 1 : here + step;
    if (!Number.isInteger(to)) return;
    event.preventDefault();
    const next = parts.marks.get(clamp(to, 0, state.n - 1));
    if (next) next.focus();
  }

  function visible(i) {
    if (pins.has(net.nodes[i].site)) return net.nodes[i].row !== null;
    return i < state.n && !state.hidden.has(net.nodes[i].roles[0] || "");
  }

  function update() {
    if (!parts) return;
    const {marks, layout, list} = parts;
    // Marks are made when they are first shown: thousands of nodes must not slow down the start.
    for (const node of net.nodes) {
      if (marks.has(node.i) || !visible(node.i)) continue;
      const made = mark(node, layout);
      if (made) list.append(made);
      marks.set(node.i, made);
    }
    const few = state.n <= layout.labels;
    const first = state.chosen >= 0 && state.chosen < state.n ? state.chosen : 0;
    const near = new Set();
    parts.lines.replaceChildren(...allLines().map((line) => {
      if (line.source === state.chosen && line.target >= 0) near.add(line.target);
      if (line.target === state.chosen && line.source >= 0) near.add(line.source);
      return edgeLine(line);
    }));
    for (const [i, g] of marks) {
      if (!g) continue;
      const {site} = net.nodes[i], pinned = pins.has(site);
      g.setAttribute("display", visible(i) ? "" : "none");
      g.setAttribute("tabindex", i === first ? 0 : -1);
      g.setAttribute("aria-selected", String(i === state.chosen));
      g.classList.toggle("chosen", i === state.chosen);
      g.classList.toggle("pinned", pinned);
      g.classList.toggle("dim", state.chosen >= 0 && i !== state.chosen && !near.has(i) && !pinned);
      g.classList.toggle("named", few || pinned || i === state.chosen || near.has(i));
      g.querySelector(".note").textContent = pinned ? show(pins.get(site), 24) : "";
    }
    attention();
  }

  /** Lines to draw, the strongest last: edges of the circuit, untested relevance, a path. */
  function allLines() {
    const shown = (i) => i < 0 || parts.marks.get(i) && visible(i);
    const around = (e) => state.chosen < 0 || e.source === state.chosen || e.target === state.chosen;
    const scaled = (list, value) => {
      const largest = Math.max(0, ...list.map((e) => Math.abs(value(e)) || 0)) || 1;
      return list.map((e) => ({...e, value: value(e), part: (Math.abs(value(e)) || 0) / largest}));
    };
    const tested = net.edges.filter((e) => shown(e.source) && shown(e.target) && around(e));
    const feeding = fed().filter((e) => shown(e.source) && shown(e.target) && around(e));
    const lines = [
      ...scaled(tested, (e) => e.effect ?? e.score).map((e) => ({...e, kind: "tested"})),
      ...scaled(feeding, (e) => e.share).map((e) => ({...e, kind: "fed"})),
    ];
    const path = state.path.slice(1).map((to, j) => ({...to, source: state.path[j].at, from: state.path[j], target: to.at, kind: "path", value: 0, part: 1}));
    if (!state.relevance) return [...lines, ...path].sort((a, b) => a.part - b.part);
    const pairs = [];
    for (const pair of net.pairs[state.relevance] || []) {
      if (pairs.length >= state.count) break;
      if (shown(pair.source) && shown(pair.target) && around(pair)) pairs.push(pair);
    }
    const direct = net.nodes.filter((n) => parts.marks.get(n.i) && visible(n.i) && n.score && (state.chosen < 0 || n.i === state.chosen))
      .sort((a, b) => Math.abs(b.score) - Math.abs(a.score)).slice(0, Math.ceil(state.count / 4)).map((n) => ({source: n.i, target: LOGITS, value: n.score}));
    const untested = scaled(pairs, (e) => e.value).map((e) => ({...e, kind: state.relevance === "signed" ? "untested" : "untested unsigned"}));
    return [...untested, ...scaled(direct, (e) => e.value).map((e) => ({...e, kind: "direct"})), ...lines, ...path].sort((a, b) => a.part - b.part);
  }

  function edgeLine(edge) {
    const {at, logits, input, radius, token} = parts.layout;
    const node = net.nodes[edge.target], before = net.nodes[edge.source];
    const aim = edge.target >= 0 ? at(node) : null;
    const from = edge.from && edge.from.token !== undefined ? token(edge.from.token) : edge.source >= 0 ? at(before) : input(aim || [0, 0]);
    const to = edge.target < 0 ? logits(from) : edge.branch ? [aim[0] + PORTS[edge.branch] * (radius(node) + 2), aim[1] + radius(node)] : aim;
    const bend = Math.max(14, Math.abs(from[1] - to[1]) * 0.45), thin = edge.kind === "direct";
    const line = svg("path", {
      class: `edge ${edge.kind} ${sign(edge.value)}`,
      d: `M${from[0]},${from[1]}C${from[0]},${from[1] - bend} ${to[0]},${to[1] + bend} ${to[0]},${to[1]}`,
      "stroke-width": (0.6 + (thin ? 2.4 : 5) * edge.part).toFixed(2),
    }, svg("title", {}, edgeName(edge)));
    line.style.opacity = (0.18 + (thin ? 0.5 : 0.67) * edge.part).toFixed(2);
    return line;
  }

  function edgeName(edge) {
    const ends = [edge.source, edge.target].map((i) => (i >= 0 ? show(net.nodes[i].site) : i === INPUT ? "input" : "logits"));
    if (edge.kind === "fed" && edge.target === LOGITS) return `${ends.join(" → ")} ${percent(edge.share)} of the metric directly`;
    if (edge.kind === "fed") return `${ends.join(" → ")} (${edge.branch || "input"}) ${percent(edge.share)} of it`;
    const value = edge.kind === "tested" ? `effect ${signed(edge.effect)}, score ${signed(edge.score)}` : edge.kind === "path" ? "" : `${edge.kind === "direct" ? "score" : state.relevance} ${signed(edge.value)}`;
    return `${ends.join(" → ")}${edge.branch ? ` (${edge.branch})` : ""} ${value}`;
  }

  /** Lines from the tokens that the chosen head looks at. */
  function attention() {
    if (!parts) return;
    const node = net.nodes[state.chosen];
    const to = node && visible(node.i) ? parts.layout.at(node) : null;
    const weights = to && state.attention ? state.attention.weights : [];
    const query = to && state.attention ? state.attention.query : -1;
    host.querySelectorAll(".token").forEach((g, word) => {
      const k = parts.layout.at_positions ? run.positions[word].index : word;
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

const PORTS = {q: -1, k: 0, v: 1};

/** The colour of a node's first role; roles past the palette, and none, share a grey. Orange is kept
 * for the ring of nodes below 0. */
const ROLE_COLOURS = ["s0", "s2", "s3", "s4", "s5", "s7", "s8", "s9", "s10", "s11"];
const roleClass = (net, node) => ROLE_COLOURS[net.roles.indexOf(node.roles[0])] || "s6";

/** What size and colour of a node can stand for, the best first. */
const sizes = (net) => (net.largest.effect ? ["effect", "score"] : ["score"]);

const MEASURES = {
  share: ["", "", "share of the target's output that comes from the source: 0 to 1, no sign"],
  ratio: ["", "", "size of the source's part of the target's output over the rest of it (‖β‖₁/‖γ‖₁): no sign, no unit"],
  signed: ["the source pushes the target's output away from its ablated value", "back towards it",
    "dot product of the source's part with how far the target's output is from its ablated value: units of activations squared, not comparable with scores; it says nothing about the answer"],
};
const NODE_COLOURS = {
  effect: ["faithfulness falls without the node", "rises without it"],
  score: ["the node raises the metric (score above 0)", "lowers it (score below 0)"],
};

const NODE_RINGS = {effect: "faithfulness rises without the node", score: "the node lowers the metric (score below 0)"};

/** What colours and lines mean in this view. */
function graphLegend(host, run, net, {size, relevance, colours, hidden}, toggle) {
  const key = (kind, text) => el("span", {}, el("i", {class: kind}), text);
  const [up, down] = NODE_COLOURS[size];
  const keys = [...(colours === "role" ? [key("ring", `orange ring: ${NODE_RINGS[size]}`)] : [key("pos", up), key("neg", down)]), key("look", "attention of the chosen head")];
  if (net.roles.length) {
    const many = (role) => net.nodes.filter((n) => n.inside && (n.roles[0] || "") === role).length;
    keys.unshift(el("ul", {class: "legend roles", "aria-label": "Roles; a node with several stands under its first"}, [...net.roles, ""].filter((role) => role || many("")).map((role) => el("li", {},
      el("button", {type: "button", class: `key ${colours === "role" ? roleClass(net, {roles: [role]}) : "s6"}`, "aria-pressed": String(!hidden.has(role)), title: "Hide or show the nodes with this role",
        onclick: () => toggle(role)}, `${show(role, 30) || "no role"} (${many(role)})`)))));
  }
  if (net.edges.length) {
    const by = net.edges.some((e) => isNumber(e.effect)) ? "effect: faithfulness falls (blue) or rises (orange) without it" : "score";
    keys.push(key("line", `edges of the circuit, tested by runs, into the reader's q, k or v; width and colour by ${by}`));
  }
  if (!net.edges.length && net.feeders.some((e) => e.held)) {
    keys.push(key("none line", "what a node's q, k or v, or the metric, comes from: width by share (decomposition); into nodes, drawn where the output follows when that share is patched out"));
  }
  if (relevance) {
    const [away, back, unit] = MEASURES[relevance] || ["above 0", "below 0", relevance];
    keys.push(...(away ? [key("pos line", away), key("neg line", back)] : [key("none line", "relevance")]), el("span", {}, `Lines were not tested. ${relevance}: ${unit}. Dotted lines: a node's score.`));
  }
  host.replaceChildren(...keys);
}

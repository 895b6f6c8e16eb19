// Where things stand in the circuit graph.

/** Columns, rows and sizes for one width. view: {size: "effect" or "score", columns: "head" or "role"} */
function place(run, net, width, view) {
  const left = 40, right = 26, top = 40;
  const arranged = view.columns === "role";
  const at = !arranged && run.positions.length > 0;
  const rows = Math.max(1, run.rows.length);
  const step = clamp(Math.round(620 / rows), width < 500 ? 15 : 18, 46);
  const shown = net.nodes.filter((n) => n.row !== null);
  const hasMlp = shown.some((n) => n.kind === "mlp" || n.kind === "neuron");
  const hasStream = shown.some((n) => n.kind === "stream");
  const slots = run.heads + (hasMlp ? 1 : 0) + (hasStream ? 1 : 0) || 1;
  const columns = arranged ? net.roles.length + 1 : at ? run.positions.length + (shown.some((n) => n.position === null) ? 1 : 0) : slots;
  const column = (n) => (arranged ? (n.roles.length ? net.roles.indexOf(n.roles[0]) : columns - 1) : n.position === null ? columns - 1 : n.position);
  const wide = (width - left - right) / columns;
  const slot = (n) => {
    if (n.kind === "mlp" || n.kind === "neuron") return run.heads + (n.kind === "neuron" ? ((n.unit * 0.618) % 1) - 0.5 : 0);
    return n.kind === "stream" ? slots - 1 : n.unit + (n.kind === "cross" ? 0.4 : 0);
  };
  const lift = {mlp: 0.42, neuron: 0.42, cross: 0.2};
  const base = top + 22 + (rows - 1) * step + step / 2;
  const inner = at || arranged;
  const most = inner ? clamp(wide / Math.max(3, slots) + 1.5, arranged ? 4 : 2.2, 7) : clamp(wide / 4, 3, 9);
  const largest = net.largest[view.size] || 1;
  const tokens = asList(run.patterns.tokens);
  const words = at ? run.positions.map((p) => tokenAt(run, p.index)) : tokens;
  const gap = (width - left - right) / Math.max(1, words.length);
  const below = base + 40;
  return {
    left, right, top, step, wide, columns, at_positions: at, arranged, roles: net.roles, base, words, gap,
    labels: at ? 40 : 60,
    height: Math.round(below + (words.length ? 78 : 8)),
    tokens: at ? [] : tokens.map((_, k) => [left + (k + 0.5) * gap, below + 2]),
    row: (r) => base - r * step,
    column: (c) => left + (c + 0.5) * wide,
    radius: (n) => clamp(most * Math.sqrt((Math.abs(n[view.size]) || 0) / largest), Math.min(2.2, most), most),
    logits: (from) => [clamp(from[0] * 0.35 + width * 0.325, left, width - right), top - 6],
    input: (to) => [clamp(to[0] * 0.35 + width * 0.325, left, width - right), base + 8],
    token: (k) => [left + (k + 0.5) * gap, below + 2],
    at(n) {
      if (n.row === null) return null;
      const y = base - (n.row + (lift[n.kind] || 0)) * step;
      if (!inner) return [left + (slot(n) + 0.5) * wide, y];
      return [left + column(n) * wide + ((slot(n) + 0.75) / (slots + 0.5)) * wide, y];
    },
  };
}

function tokenAt(run, index) {
  const tokens = run.patterns.tokens;
  return isNumber(index) && index < tokens.length ? tokens[index] : "";
}

/** Everything that does not move: rows, columns, the logits, tokens along the bottom. */
function scenery(run, layout, width) {
  const g = svg("g", {class: "scenery", "aria-hidden": "true"});
  const every = layout.step < 20 ? 5 : layout.step < 30 ? 2 : 1;
  run.rows.forEach((name, r) => {
    const y = layout.row(r);
    g.append(svg("line", {class: r % 2 ? "row odd" : "row", x1: layout.left, x2: width - layout.right, y1: y, y2: y}));
    if (r % every === 0 || r === run.rows.length - 1) {
      g.append(svg("text", {x: layout.left - 8, y: y + 3.5, "text-anchor": "end"}, name));
    }
  });
  g.append(svg("text", {class: "label", transform: `translate(10,${(layout.top + layout.base) / 2}) rotate(-90)`, "text-anchor": "middle"}, "layer"));
  g.append(svg("rect", {class: "logits", x: layout.left, y: layout.top - 28, width: width - layout.left - layout.right, height: 22, rx: 6}),
    svg("text", {class: "logits", x: width / 2, y: layout.top - 13, "text-anchor": "middle"}, "logits → metric"));
  const names = columnNames(run, layout);
  names.forEach((name, c) => {
    if ((layout.at_positions || layout.arranged) && c) {
      const x = layout.left + c * layout.wide;
      g.append(svg("line", {class: "border", x1: x, x2: x, y1: layout.top, y2: layout.base + 10}));
    }
    if (names.length > 24 && c % Math.ceil(names.length / 16)) return;
    g.append(svg("text", {x: layout.column(c), y: layout.base + 24, "text-anchor": "middle"}, name));
  });
  layout.words.forEach((word, k) => g.append(tokenMark(word, k, layout)));
  return g;
}

function columnNames(run, layout) {
  if (layout.arranged) return [...layout.roles, "no role"].map((name) => show(name, Math.max(5, Math.floor(layout.wide / 6))));
  if (layout.at_positions) {
    const names = run.positions.map((p) => show(p.name, layout.wide < 50 ? 5 : 12));
    return names.length < layout.columns ? [...names, "all"] : names;
  }
  const names = Array.from({length: run.heads}, (_, h) => (layout.wide > 44 && !h ? "head 0" : String(h)));
  if (names.length < layout.columns) names.push(run.nodes.kind.includes("mlp") || run.nodes.kind.includes("neuron") ? "MLP" : "stream");
  return names.length < layout.columns ? [...names, "stream"] : names;
}

function tokenMark(word, k, layout) {
  const wide = layout.at_positions ? layout.wide : layout.gap;
  const x = layout.left + (k + 0.5) * wide, y = layout.base + 44;
  const tilt = wide < 52;
  return svg("g", {class: "token", transform: `translate(${x},${y})`},
    svg("rect", {x: -wide / 2 + 1, y: -4, width: Math.max(2, wide - 2), height: 6, rx: 3}),
    svg("text", tilt ? {transform: "translate(3,12) rotate(-55)", "text-anchor": "end"} : {y: 16, "text-anchor": "middle"},
      show(word.trim() || word, tilt ? 9 : Math.max(4, Math.floor(wide / 7)))),
    svg("title", {}, show(word)));
}

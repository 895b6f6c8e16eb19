// Layer × head, for every round of discovery, at one position or summed over them.

function heatmapPanel(host, run, net, select) {
  if (!run.nodes.site.length || !run.rounds.length) return empty(host, "No scores were kept in this run.");
  const round = el("select", {}, run.rounds.map((step, i) => el("option", {value: i}, roundName(step, i))));
  const where = el("select", {}, el("option", {value: ""}, run.positions.length ? "all, summed" : "all"),
    run.positions.map((p, i) => el("option", {value: i}, show(p.name, 30))));
  const box = el("div"), table = el("div"), past = el("div");
  host.replaceChildren(el("div", {class: "controls"}, el("label", {}, "round ", round), el("label", {}, "position ", where)),
    el("div", {class: "two"}, el("div", {}, box, table), past));
  let step, cells;
  const told = el("p", {class: "muted"});
  box.before(told);
  const read = () => {
    step = run.rounds[Number(round.value)];
    cells = gather(net, run, step.values, where.value === "" ? null : Number(where.value));
    const rows = run.rows.map((name, r) => [name, ...cells.columns.map((_, c) => (step.signed ? signed : num)(cells.grid[r][c]?.value, 2))]).reverse();
    told.textContent = step.signed
      ? `Colour: the score, in units of the metric (${asMap(run.metric).name || "metric"}). Blue nodes raise it, orange nodes lower it.`
      : `Colour: magnitude of relevance, summed over the ${asList(step.targets).length} targets of this round. It has no sign.`;
    table.replaceChildren(dataTable("These values as a table", ["layer", ...cells.columns], rows));
  };
  read();
  const title = `Heatmap of relevance, ${run.rows.length} layers upward, ${cells.columns.length} columns; the values are in the table below`;
  const {draw} = figure(box, title, (...at) => heatmap(run, cells, step, ...at),
    ({pointIndex: [r, c], curveNumber}) => { if (curveNumber === 0 && cells.grid[r][c]) select(cells.grid[r][c].nodes[0].i); });
  for (const pick of [round, where]) pick.addEventListener("change", () => { read(); draw(); });
  searchHistory(past, run);
}

/** What each round did, and how the circuit shrank. */
function searchHistory(host, run) {
  const steps = run.rounds.filter((s) => isNumber(s.faithfulness));
  if (steps.length) {
    host.append(el("table", {class: "settings"}, el("caption", {}, `Rounds of the search; faithfulness on the prompts that the search ended with: more than the ${prompts(run.discovery, "discovery")} where its check asked for them`),
      el("thead", {}, el("tr", {}, ["round", "joined", "dropped", "nodes", "faithfulness (search)"].map((t) => el("th", {scope: "col"}, t)))),
      el("tbody", {}, run.rounds.map((s, i) => el("tr", {}, el("th", {scope: "row"}, String(i + 1)),
        [s.selected.length, s.dropped.length, num(s.size), num(s.faithfulness)].map((v) => el("td", {}, String(v))))))));
  }
  const path = asList(run.elimination).filter((s) => isNumber(s.size) && isNumber(s.loss));
  if (path.length > 1) {
    const box = el("div");
    host.append(el("h4", {}, "Elimination: what smaller circuits cost, on the discovery prompts"), box);
    const finite = path.map((s) => s.loss);
    chart(box, {
      title: "Loss over circuit size during elimination", aspect: 0.6,
      x: {label: "nodes left", range: [0, Math.max(...path.map((s) => s.size))]},
      y: {label: "loss", range: [0, Math.min(2, Math.max(...finite)) * 1.05 || 1]},
      lines: [{name: "loss", x: path.map((s) => s.size), y: finite}], marks: [{on: "x", at: run.size, label: "circuit"}],
    });
  }
}

function roundName(step, i) {
  const targets = asList(step.targets);
  const shown = targets.slice(0, 3).map((t) => show(t, 14)).join(", ") + (targets.length > 3 ? ` and ${targets.length - 3} more` : "");
  return `${i + 1}: relevance to ${shown || "logits"}`;
}

/** Values by row and column, with the nodes behind each cell. */
function gather(net, run, values, at) {
  const mlp = run.nodes.kind.includes("mlp");
  const heads = Array.from({length: run.heads}, (_, h) => String(h));
  // Heads of cross-attention stand beside those of the same layer.
  const cross = run.nodes.kind.includes("cross") ? heads.map((h) => "×" + h) : [];
  const columns = [...heads, ...cross, ...(mlp ? ["MLP"] : [])];
  const grid = run.rows.map(() => columns.map(() => null));
  let largest = 0;
  for (const node of net.nodes) {
    const value = values[node.i];
    const column = columns.indexOf({mlp: "MLP", head: String(node.unit), cross: "×" + node.unit}[node.kind]);
    if (node.row === null || column < 0 || !isNumber(value) || (at !== null && node.position !== at)) continue;
    const cell = grid[node.row][column] || (grid[node.row][column] = {value: 0, nodes: []});
    cell.value += value;
    cell.nodes.push(node);
    largest = Math.max(largest, Math.abs(cell.value));
  }
  return {columns, grid, largest};
}

function heatmap(run, {columns, grid, largest}, step, width, axis) {
  const rows = run.rows.length, high = clamp(480 / Math.max(1, rows), 11, 30);
  const ticks = (names, every) => {
    const kept = names.map((_, i) => i).filter((i) => i % every === 0 || (every > 1 && i === names.length - 1));
    return {tickvals: kept, ticktext: kept.map((i) => literal(names[i]))};
  };
  const told = (name, r, c) => `layer ${run.rows[r]}, ${name === "MLP" ? name : "head " + name}: ${(step.signed ? signed : num)(grid[r][c]?.value)}`;
  const most = largest || 1, least = step.signed ? -most : 0;
  const colorscale = step.signed ? [[0, colour("neg")], [0.5, colour("soft")], [1, colour("pos")]] : [[0, colour("soft")], [1, colour("look")]];
  const levels = Array.from({length: 64}, (_, i) => least + ((most - least) * i) / 63);
  const chosen = new Set(step.selected), dropped = new Set(step.dropped);
  const kept = (n) => chosen.has(n.i) && !dropped.has(n.i);
  return {
    height: rows * high + 62,
    data: [{
      type: "heatmap", z: grid.map((row) => row.map((cell) => cell && cell.value)), zmin: least, zmax: most,
      colorscale, xgap: 1, ygap: 1, hoverongaps: false, hoverinfo: "text",
      hovertext: grid.map((row, r) => columns.map((name, c) => literal(told(name, r, c)))),
      showscale: false, // its colour bar writes style attributes, which the page's policy refuses: it is a heatmap too
    },
    frames("joined", colour("ink"), "solid", (cell) => cell.nodes.some(kept)),
    frames("dropped again", colour("muted"), "2px,2px", (cell) => cell.nodes.some((n) => chosen.has(n.i)) && !cell.nodes.some(kept)),
    {type: "heatmap", name: "colour bar", z: levels.map((v) => [v]), x: [0], y: levels, zmin: least, zmax: most, colorscale, xgap: 1, showscale: false, hoverinfo: "skip", xaxis: "x2", yaxis: "y2"}],
    layout: {
      margin: {l: 54, r: 64, t: 22, b: 40},
      xaxis2: {domain: [0.965, 1], anchor: "y2", visible: false, fixedrange: true},
      yaxis2: axis(step.signed ? "score" : "magnitude", {range: [least, most], anchor: "x2", side: "right", showgrid: false, fixedrange: true, nticks: 7}),
      xaxis: axis("head", {domain: [0, 0.95], range: [-0.5, columns.length - 0.5], showgrid: false, ...ticks(columns, Math.ceil((columns.length * 20) / width))}),
      yaxis: axis("layer", {range: [-0.5, rows - 0.5], showgrid: false, ...ticks(run.rows, high < 14 ? 5 : 1)}),
    },
  };

  /** A rectangle around every cell that is meant, as one line with gaps. */
  function frames(name, color, dash, wanted) {
    const meant = grid.flatMap((row, r) => row.flatMap((cell, c) => (cell && wanted(cell) ? [[r, c]] : [])));
    const around = (a, b, c, d) => (i) => [i + a, i + b, i + c, i + d, i + a, null];
    return {
      type: "scatter", mode: "lines", name, hoverinfo: "skip", line: {color, width: 1.4, dash},
      x: meant.flatMap(([, c]) => around(-0.47, 0.47, 0.47, -0.47)(c)), y: meant.flatMap(([r]) => around(-0.47, -0.47, 0.47, 0.47)(r)),
    };
  }
}

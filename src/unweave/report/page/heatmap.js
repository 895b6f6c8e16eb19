// Layer × head, for every round of discovery, at one position or summed over them.

function heatmapPanel(host, run, net, select) {
  if (!run.nodes.site.length || !run.iterations.length) return empty(host, "No scores were kept in this run.");
  const round = el("select", {}, run.iterations.map((step, i) => el("option", {value: i}, roundName(step, i))));
  const where = el("select", {}, el("option", {value: ""}, run.positions.length ? "all, summed" : "all"),
    run.positions.map((p, i) => el("option", {value: i}, show(p.name, 30))));
  const told = el("p", {class: "muted readout", "aria-live": "polite"}, "\u00a0");
  const box = el("div", {class: "plot"}), table = el("div");
  host.replaceChildren(el("div", {class: "controls"}, el("label", {}, "round ", round),
    el("label", {}, "position ", where)), el("div", {class: "two"}, el("div", {}, told, box, table), history(run)));
  let width = 0;
  const redraw = () => draw();
  round.addEventListener("change", redraw);
  where.addEventListener("change", redraw);
  onWidth(box, (w) => { width = w; draw(); });

  function draw() {
    const step = run.iterations[Number(round.value)];
    const at = where.value === "" ? null : Number(where.value);
    const cells = gather(net, run, step.values, at);
    box.replaceChildren(heatmap(run, cells, width, step, told, select));
    const rows = run.rows.map((name, r) => [name, ...cells.columns.map((_, c) => signed(cells.grid[r][c]?.value, 2))]).reverse();
    table.replaceChildren(dataTable("These values as a table", ["layer", ...cells.columns], rows));
  }
}

/** What each round did, and how the circuit shrank. */
function history(run) {
  const host = el("div"), steps = run.iterations.filter((s) => isNumber(s.faithfulness));
  if (steps.length) {
    host.append(el("table", {class: "settings"}, el("caption", {}, "Rounds of discovery"),
      el("thead", {}, el("tr", {}, ["round", "joined", "dropped", "nodes", "faithfulness"].map((t) => el("th", {scope: "col"}, t)))),
      el("tbody", {}, run.iterations.map((s, i) => el("tr", {}, el("th", {scope: "row"}, String(i + 1)),
        [s.selected.length, s.dropped.length, num(s.size), num(s.faithfulness)].map((v) => el("td", {}, String(v))))))));
  }
  const path = asList(run.elimination).filter((s) => isNumber(s.size) && isNumber(s.loss));
  if (path.length > 1) {
    const box = el("div");
    host.append(el("h4", {}, "Elimination: what smaller circuits cost"), box);
    const finite = path.map((s) => s.loss);
    chart(box, {
      title: "Loss over circuit size during elimination", aspect: 0.6,
      x: {label: "nodes left", domain: [0, Math.max(...path.map((s) => s.size))]},
      y: {label: "loss", domain: [0, Math.min(2, Math.max(...finite)) * 1.05 || 1]},
      lines: [{name: "loss", x: path.map((s) => s.size), y: finite}], marks: [{axis: "x", at: run.size, label: "circuit"}],
    });
  }
  return host;
}

function roundName(step, i) {
  const targets = asList(step.targets);
  const shown = targets.slice(0, 3).map((t) => show(t, 14)).join(", ") + (targets.length > 3 ? ` and ${targets.length - 3} more` : "");
  return `${i + 1}: relevance to ${shown || "logits"}`;
}

/** Values by row and column, with the nodes behind each cell. */
function gather(net, run, values, at) {
  const mlp = run.nodes.kind.includes("mlp");
  const columns = [...Array.from({length: run.heads}, (_, h) => String(h)), ...(mlp ? ["MLP"] : [])];
  const grid = run.rows.map(() => columns.map(() => null));
  let largest = 0;
  for (const node of net.nodes) {
    const value = values[node.i];
    const column = node.kind === "mlp" ? run.heads : node.kind === "head" ? node.unit : -1;
    if (node.row === null || column < 0 || !isNumber(value) || (at !== null && node.position !== at)) continue;
    const cell = grid[node.row][column] || (grid[node.row][column] = {value: 0, nodes: []});
    cell.value += value;
    cell.nodes.push(node);
    largest = Math.max(largest, Math.abs(cell.value));
  }
  return {columns, grid, largest};
}

function heatmap(run, {columns, grid, largest}, width, step, told, select) {
  const left = 44, top = 6, rows = run.rows.length;
  const cell = Math.max(3, Math.min(46, (width - left - 8) / Math.max(1, columns.length)));
  const high = clamp(480 / Math.max(1, rows), 11, Math.min(30, Math.max(11, cell)));
  const height = top + rows * high + 36;
  const root = svg("svg", {width, height, role: "img", "aria-label": `Heatmap of relevance, ${rows} layers upward, ${columns.length} columns; the values are in the table below`});
  const chosen = new Set(step.selected), dropped = new Set(step.dropped);
  const every = high < 14 ? 5 : 1;
  for (let r = 0; r < rows; r++) {
    const y = top + (rows - 1 - r) * high;
    if (r % every === 0 || r === rows - 1) root.append(svg("text", {x: left - 6, y: y + high / 2 + 4, "text-anchor": "end"}, run.rows[r]));
    columns.forEach((name, c) => {
      const found = grid[r][c];
      const rect = svg("rect", {class: "heat " + (found ? sign(found.value) : "none"), x: left + c * cell, y, width: cell - 1, height: high - 1, rx: 1.5});
      if (found) {
        rect.style.setProperty("--m", largest ? (100 * Math.abs(found.value)) / largest : 0);
        const label = `layer ${run.rows[r]}, ${name === "MLP" ? "MLP" : "head " + name}: ${signed(found.value)}`;
        rect.append(svg("title", {}, label));
        rect.addEventListener("pointerenter", () => { told.textContent = label; });
        rect.addEventListener("click", () => select(found.nodes[0].i));
      }
      root.append(rect);
      const picked = found && found.nodes.some((n) => chosen.has(n.i));
      if (picked) {
        const left_out = found.nodes.every((n) => dropped.has(n.i) || !chosen.has(n.i));
        root.append(svg("rect", {class: left_out ? "outline dropped" : "outline", x: left + c * cell, y, width: cell - 1, height: high - 1, rx: 1.5}));
      }
    });
  }
  columns.forEach((name, c) => {
    if (columns.length * 18 > width && c % Math.ceil((columns.length * 18) / width)) return;
    root.append(svg("text", {x: left + (c + 0.5) * cell, y: top + rows * high + 14, "text-anchor": "middle"}, name));
  });
  root.append(svg("text", {class: "label", x: left + (columns.length * cell) / 2, y: height - 4, "text-anchor": "middle"}, "head"),
    svg("text", {class: "label", transform: `translate(10,${top + (rows * high) / 2}) rotate(-90)`, "text-anchor": "middle"}, "layer"));
  return root;
}

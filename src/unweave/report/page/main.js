// Reads the data and starts the panels of the page.

function runPage(run) {
  const net = network(run), total = net.nodes.length;
  const measures = ["share", "ratio", "signed"].filter((m) => net.pairs[m]).concat(Object.keys(net.pairs).filter((m) => !MEASURES[m]));
  const roles = net.roles.length > 0;
  const choices = {size: sizes(net), columns: roles ? ["head", "role"] : ["head"], colours: roles ? ["role", "sign"] : ["sign"], measure: measures};
  const among = (key, wanted) => (choices[key].includes(wanted) ? wanted : choices[key][0]);
  const view = {
    size: among("size", chosenView("size")), columns: among("columns", chosenView("columns")), colours: among("colours", chosenView("colours")), measure: among("measure", chosenView("measure")),
    relevance: chosenView("relevance") === "1" && measures.length > 0, count: clamp(Number(chosenView("lines", "60")) || 0, 0, 300), prompt: 0,
    hidden: new Set(chosenView("hide", "").split("|").filter((role) => net.roles.includes(role) || role === "no role").map((role) => (role === "no role" ? "" : role))),
  };
  const found = Math.min(total, run.size || Math.min(10, total));
  const curve = faithfulnessPanel(byId("faithfulness-plot"), run);
  const panel = byId("node"), slider = byId("count");
  let chosen = null;
  const on = {
    attend: (weights) => graph.attend(weights),
    pinned() { graph.set({}); pinList(byId("pins"), net, on); },
    // A node that the slider hides is brought in first.
    select(i, scroll) {
      if (i >= Number(slider.value) && !pins.has(net.nodes[i].site)) { slider.value = i + 1; resize(); }
      graph.select(i);
      if (scroll) byId("circuit").scrollIntoView({block: "start"});
    },
    prompt(index) { view.prompt = index; tell(); },
    chosen: () => chosen,
  };
  const drawing = () => ({size: view.size, columns: view.columns, colours: view.colours, hidden: view.hidden, relevance: view.relevance ? view.measure : null, count: view.count});
  const graph = circuitGraph(byId("graph"), run, net, {select(node) { chosen = node; keep("node", node && node.site); tell(); followHead(node); }}, drawing());
  const tell = () => detail(panel, run, net, chosen, view, on);
  const toggle = (role) => {
    if (!view.hidden.delete(role)) view.hidden.add(role);
    keep("hide", [...view.hidden].map((name) => name || "no role").join("|"));
    redraw();
  };
  const redraw = () => { graph.set(drawing()); graphLegend(byId("graph-legend"), run, net, drawing(), toggle); };

  slider.max = total;
  slider.value = clamp(Number(chosenView("n", found)), 0, total);
  const resize = () => {
    const n = Number(slider.value), {value, told} = faithfulnessAt(run, n);
    graph.set({n});
    keep("n", n === found ? null : n);
    byId("count-out").textContent = `${n} of ${run.total}`;
    byId("faith-out").textContent = num(value);
    byId("faith-prompts").textContent = told;
    slider.setAttribute("aria-valuetext", `${n} nodes, faithfulness ${num(value)} ${told}`);
    curve.move(run.level === "edge" ? run.counted.size : n, value);
  };
  slider.addEventListener("input", resize);
  byId("count-reset").addEventListener("click", () => { slider.value = found; resize(); });
  wireChoices(run, net, view, choices, () => { redraw(); tell(); }, on);

  tell();
  resize();
  redraw();
  pinList(byId("pins"), net, on);
  if (byId("paths-table")) pathsPanel(byId("paths-table"), run, net, (path) => graph.set({path}));
  pictureButtons(byId("picture-buttons"), byId("graph"));
  if (!total) byId("graph").append(el("p", {class: "empty"}, "The circuit is empty, and no scores were kept."));
  verdictPanel(byId("verdict-plot"), run);
  nodesPanel(byId("nodes-table"), run, net, on);
  promptsPanel(byId("prompts-list"), run, net, on);
  testsPanel(byId("tests-plot"), run, net);
  heatmapPanel(byId("heatmap-plot"), run, net, (i) => on.select(i, true));
  rocPanel(byId("roc-plot"), run);
  runtimePanel(byId("runtime-plot"), run);
  randomPanel(byId("random-circuits-plot"), run);
  wordsPanel(byId("words-list"), run);
  const start = net.nodes.findIndex((n) => n.site === chosenView("node"));
  if (start >= 0) on.select(start);
}

/** The controls above the graph. */
function wireChoices(run, net, view, choices, change, on) {
  const names = {effect: "effect", score: "score", head: run.positions.length ? "layer and position" : "layer and head", role: "role", sign: "sign"};
  const wire = (id, key) => {
    const pick = byId(id);
    pick.replaceChildren(...choices[key].map((m) => el("option", {value: m, selected: m === view[key]}, names[m] || show(m, 20))));
    pick.disabled = choices[key].length < (key === "measure" ? 1 : 2);
    pick.addEventListener("change", () => { view[key] = pick.value; keep(key, pick.value); change(); });
    return pick;
  };
  wire("size-by", "size").title = choices.size.includes("effect") ? "" : `No effects were measured: ${run.commands.evaluate}`;
  wire("colour-by", "colours").title = choices.colours.includes("role") ? "" : `No roles are known: ${run.commands.explain}`;
  wire("arrange", "columns").title = choices.columns.includes("role") ? "" : `No roles are known: ${run.commands.explain}`;
  const pick = wire("measure", "measure"), box = byId("relevance"), lines = byId("edges");
  const gate = () => { pick.disabled = lines.disabled = !view.relevance; };
  box.checked = view.relevance;
  box.disabled = !choices.measure.length;
  box.addEventListener("change", () => { view.relevance = box.checked; keep("relevance", box.checked ? 1 : null); gate(); change(); });
  lines.value = view.count;
  byId("edges-out").textContent = lines.value;
  lines.addEventListener("input", () => { view.count = Number(lines.value); byId("edges-out").textContent = lines.value; keep("lines", lines.value); change(); });
  gate();
  const find = byId("find"), list = el("datalist", {id: "find-list"}, net.nodes.slice(0, 2000).map((n) => el("option", {value: n.site}, n.roles.join(", "))));
  find.after(list);
  find.addEventListener("change", () => {
    const text = find.value.trim().toLowerCase();
    const i = net.nodes.findIndex((n) => [n.site.toLowerCase(), brief(n.site)].includes(text));
    find.setAttribute("aria-invalid", String(i < 0 && text !== ""));
    if (i >= 0) on.select(i);
  });
}

wireTheme();
wireSections();
wireCopy();
const data = JSON.parse(byId("data").textContent);
if (data.runs.length > 1) comparePage(data.runs);
else runPage(data.runs[0]);
loaded.then(() => Promise.all(drawn)).then(() => { document.documentElement.dataset.ready = "yes"; });

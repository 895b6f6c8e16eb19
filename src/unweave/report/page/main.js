// Reads the data and starts the panels of the page at hand.

/** The button, and what makes plotly's colours old: it takes them as they are, not from the style sheet. */
function wireTheme() {
  const root = document.documentElement, button = byId("theme");
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const tell = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Use the ${dark() ? "light" : "dark"} theme`); };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; tell(); repaint(); });
  tell();
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", () => { tell(); repaint(); });
  }
  // Firefox tells of printing by this event alone, while the colours are still those of the screen.
  addEventListener("beforeprint", () => {
    const before = root.dataset.theme || "";
    root.dataset.theme = "light";
    runLibrary();
    repaint(PAPER);
    addEventListener("afterprint", () => { root.dataset.theme = before; repaint(); }, {once: true});
  });
}

function runPage(run) {
  const net = network(run);
  const total = net.nodes.length;
  const curve = faithfulnessPanel(byId("faithfulness-plot"), run);
  const panel = byId("node");
  const measures = Object.keys(net.edges);
  let measure = measures.includes("signed") ? "signed" : measures[0], chosen = null;
  const on = {
    attend: (weights) => graph.attend(weights),
    // A node that the slider hides is brought in first.
    select(i) {
      if (i >= Number(slider.value)) { slider.value = i + 1; resize(); }
      graph.select(i);
    },
  };
  const graph = circuitGraph(byId("graph"), run, net, {select(node) { chosen = node; detail(panel, run, net, node, measure, on); }});
  graph.measure(measure);

  const slider = byId("count"), out = byId("count-out"), faith = byId("faith-out");
  slider.max = total;
  slider.value = Math.min(total, run.size || Math.min(10, total));
  const resize = () => {
    const n = Number(slider.value), f = faithfulnessAt(run, n);
    graph.show(n);
    out.textContent = `${n} of ${run.total}`;
    faith.textContent = num(f);
    slider.setAttribute("aria-valuetext", `${n} nodes, faithfulness ${num(f)}`);
    curve.move(n, f);
  };
  slider.addEventListener("input", resize);
  byId("count-reset").addEventListener("click", () => { slider.value = run.size; resize(); });

  const pick = byId("measure");
  pick.replaceChildren(...measures.map((m) => el("option", {value: m, selected: m === measure}, show(m, 20))));
  pick.disabled = !measures.length;
  pick.addEventListener("change", () => { measure = pick.value; graph.measure(measure); detail(panel, run, net, chosen, measure, on); });
  const edges = byId("edges");
  edges.addEventListener("input", () => { graph.edges(Number(edges.value)); byId("edges-out").textContent = edges.value; });
  byId("edges-out").textContent = edges.value;
  graph.edges(Number(edges.value));

  detail(panel, run, net, null, measure, on);
  resize();
  if (!total) byId("graph").append(el("p", {class: "empty"}, "The circuit is empty, and no scores were kept."));
  heatmapPanel(byId("heatmap-plot"), run, net, (i) => {
    on.select(i);
    byId("circuit").scrollIntoView({block: "start"});
  });
  rocPanel(byId("roc-plot"), run);
  runtimePanel(byId("runtime-plot"), run);
  chancePanel(byId("chance-plot"), run);
  wordsPanel(byId("words-list"), run);
  promptsPanel(byId("prompts-list"), run);
}

wireTheme();
wireCopy();
const data = JSON.parse(byId("data").textContent);
if (data.runs.length > 1) comparePage(data.runs);
else runPage(data.runs[0]);
loaded.then(() => Promise.all(drawn)).then(() => { document.documentElement.dataset.ready = "yes"; });

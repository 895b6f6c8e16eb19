// All nodes in a table, in any order; every column is defined below it.
const FIRST_ROWS = 60, MORE_ROWS = 100;

/** Columns that this run has something to say in: {key, label, told, of(node), text(node)}. */
function nodeColumns(run, net) {
  const prompts = run.nodes.prompts_of_effects, has = (key) => net.nodes.some((n) => asList(n[key]).length || isNumber(n[key]) || typeof n[key] === "string");
  return [
    {key: "order", label: "order", of: (n) => -n.i, text: (n) => String(n.i + 1),
      told: "where the method ranks the node: the circuit of n nodes is the first n"},
    {key: "site", label: "node", of: (n) => n.site, text: (n) => n.site, told: null},
    {key: "effect", label: "effect", of: (n) => n.effect, text: (n) => signed(n.effect) + interval(n.interval), lacks: !has("effect"),
      told: `how much faithfulness falls when the node alone leaves the circuit${prompts ? `, on ${prompts} held-out prompts` : ""}${has("interval") ? ", with its 95% interval" : ""}; negative: faithfulness rises`},
    {key: "score", label: "score", of: (n) => n.score, text: (n) => signed(n.score) + (isNumber(n.spread) ? ` ± ${num(n.spread, 2)}` : ""),
      told: `what ${run.method} scored, in units of the metric${run.metric ? ` (${asMap(run.metric).name})` : ""}: the mean over discovery prompts${has("spread") ? " ± standard deviation over them" : ""}; negative: by this score the node lowers the metric`},
    {key: "group", label: "group", of: (n) => n.group, text: (n) => n.group || "–", lacks: !has("group"),
      told: "core: without it faithfulness changes by more than .1, also in the whole model; supporting: by less; interchangeable: another node can take its place"},
    {key: "frequency", label: "frequency", of: (n) => n.frequency, text: (n) => percent(n.frequency), lacks: !has("frequency"),
      told: "how often the node is in the circuit when prompts are resampled"},
    {key: "roles", label: "role", of: (n) => n.roles.join(", "), text: (n) => n.roles.join(", ") || "–", lacks: !has("roles"),
      told: "what the node does, where its measurements say so"},
  ];
}

const interval = (ends) => (asList(ends).length === 2 ? ` [${num(ends[0])}, ${num(ends[1])}]` : "");

/** Rows by a column: numbers from the largest down, texts from A; what is missing comes last. */
function sortedBy(rows, of, down = true) {
  const missing = (x) => x === null || x === undefined || x === "";
  return [...rows].sort((a, b) => {
    const x = of(a), y = of(b);
    if (missing(x) || missing(y)) return missing(x) - missing(y);
    const order = typeof x === "string" ? x.localeCompare(y, "en", {numeric: true}) : y - x;
    return down ? order : -order;
  });
}

/** Header cells that sort: {by, down} is the state, change() draws anew. */
function sortHeader(columns, state, change) {
  return el("tr", {}, columns.map((c) => el("th", {scope: "col", "aria-sort": state.by === c.key ? (state.down ? "descending" : "ascending") : "none"},
    el("button", {type: "button", class: "sort", title: c.told, onclick() {
      state.down = state.by === c.key ? !state.down : true;
      state.by = c.key;
      change();
    }}, c.label, state.by === c.key ? (state.down ? " ▾" : " ▴") : ""))));
}

function nodesPanel(host, run, net, on) {
  if (!net.nodes.length) return empty(host, "The circuit is empty, and no scores were kept.");
  const columns = nodeColumns(run, net), shown = columns.filter((c) => !c.lacks);
  const state = {by: chosenView("sort", shown.some((c) => c.key === "effect") ? "effect" : "order"), down: chosenView("ascending", "") === ""};
  const all = el("input", {type: "checkbox"}), head = el("thead"), body = el("tbody"), more = el("button", {type: "button"});
  let most = FIRST_ROWS;
  const draw = () => {
    const column = shown.find((c) => c.key === state.by) || shown[0];
    const rows = sortedBy(net.nodes.filter((n) => all.checked || n.inside), column.of, state.down);
    head.replaceChildren(sortHeader(shown, state, () => { keep("sort", state.by); keep("ascending", state.down ? null : 1); draw(); }));
    body.replaceChildren(...rows.slice(0, most).map((n) => el("tr", {class: n.inside ? "inside" : "", "data-site": n.site}, shown.map((c) => (c.key === "site"
      ? el("th", {scope: "row"}, el("button", {type: "button", class: "link", onclick: () => on.select(n.i, true)}, el("bdi", {}, show(n.site, 40))))
      : el("td", {"data-key": c.key}, show(c.text(n), 80)))))));
    const left = rows.length - most;
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(MORE_ROWS, left)} more`;
  };
  all.addEventListener("change", draw);
  more.addEventListener("click", () => { most += MORE_ROWS; draw(); });
  host.replaceChildren(
    el("dl", {class: "facts terms"}, columns.filter((c) => c.told).flatMap((c) => [el("dt", {}, c.label),
      el("dd", {}, c.told, c.lacks ? [". Not measured in this run: ", el("code", {}, run.commands[c.key === "roles" ? "explain" : "evaluate"])] : null)])),
    el("div", {class: "controls"}, el("label", {}, all, ` all ${net.nodes.length} nodes, not only the ${run.size} of the circuit`)),
    el("div", {class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Nodes"}, el("table", {class: "compare nodes"}, head, body)), more);
  draw();
}

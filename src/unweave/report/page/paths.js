// The strongest paths from tokens to the logits, each with its share and with a run in which it is cut.

/** A path as the graph draws it: nodes that it does not show are passed over. */
function pathEnds(run, net, path) {
  const index = new Map(net.nodes.map((n) => [n.site, n.i])), example = asList(run.prompts.evaluate.shown)[0];
  return path.map((text, k) => {
    const [, site, branch] = /^(.*?)(?:<([qkv])>)?$/.exec(text);
    if (site === "logits") return {at: LOGITS};
    if (index.has(site)) return {at: index.get(site), branch};
    const position = asMap(example && example.positions)[site.split("@")[1]];
    const token = isNumber(position) ? (position < 0 ? example.tokens.length + position : position) : undefined;
    return k === 0 && site.startsWith("input") ? {at: INPUT, ...(token === undefined ? {} : {token})} : null;
  }).filter(Boolean);
}

function pathsPanel(host, run, net, mark) {
  const found = asMap(run.paths), paths = asList(found.paths);
  if (!paths.length) return empty(host, "No path that was followed carries a thousandth of the metric.");
  let chosen = Number(chosenView("path", "-1"));
  const largest = Math.max(...paths.map((p) => Math.abs(p.share) || 0)) || 1;
  const within = (ends) => (asList(ends).length === 2 ? ` ± ${percent1((ends[1] - ends[0]) / 2)}` : "");
  const look = (k) => mark(k >= 0 && paths[k] ? pathEnds(run, net, asList(paths[k].path)) : []);
  const rows = paths.map((p, k) => {
    const button = el("button", {type: "button", class: "link route", "aria-pressed": String(k === chosen), onclick() {
      chosen = chosen === k ? -1 : k;
      keep("path", chosen < 0 ? null : chosen);
      rows.forEach((row, j) => row.querySelector("button").setAttribute("aria-pressed", String(j === chosen)));
      look(chosen);
    }}, el("bdi", {}, asList(p.path).map((t) => show(t, 24)).join(" → ")));
    return el("tr", {"data-path": k, onmouseenter: () => look(k), onmouseleave: () => look(chosen), onfocusin: () => look(k), onfocusout: () => look(chosen)},
      el("th", {scope: "row"}, button), el("td", {class: "bar-cell"}, meter(p.share, largest)),
      el("td", {"data-key": "share"}, signedPercent(p.share) + within(p.interval)), el("td", {"data-key": "measured"}, signedPercent(p.measured) + within(p.measured_interval)));
  });
  host.replaceChildren(
    el("p", {class: "muted"}, `What each path carries of the ${show(found.metric || "metric", 40)}, from a token through the q, k or v of nodes to the logits (${prompts(found.prompts, "held-out")}, ${show(found.ablation || "", 30)} ablation). Shares of all paths add up to 100% of ${signed(found.total)}, the distance to the model with every node and token ablated. Beside each: what the metric loses in a run in which that path alone is cut. Where a path works only together with others (a query with its key), the cut loses more than its share. Point at a path to see it in the graph above, choose it to keep it there.`),
    el("div", {class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Paths"}, el("table", {class: "compare paths"},
      el("thead", {}, el("tr", {}, ["path", "", "share", "lost when it is cut"].map((h) => el("th", {scope: "col"}, h)))), el("tbody", {}, rows))),
    el("p", {class: "left"}, `Left over: ${signedPercent(found.left)} in paths that are not listed, of which ${signedPercent(found.left_after_all)} in those that were not followed (${num(found.expanded)} partial paths were).`));
  look(chosen);
}

const percent1 = (x) => (isNumber(x) ? `${(100 * x).toFixed(1).replace("-", "−")}%` : "–");
const signedPercent = (x) => (isNumber(x) && x > 0 ? "+" : "") + percent1(x);

// Runs side by side: shared and different nodes, curves in one plot.

function comparePage(runs) {
  const names = runLabels(runs);
  sharedTable(byId("shared"), runs, names);
  overlaps(byId("overlap"), runs, names);
  const lines = [];
  runs.forEach((run, r) => {
    const main = asMap(asMap(run.evaluation.curves)[run.evaluation.ablation]);
    const curve = asList(main.sizes).length ? main : asMap(run.curve);
    if (asList(curve.sizes).length) lines.push({name: names[r], x: curve.sizes, y: curve.faithfulness});
    if (isNumber(run.faithfulness)) lines.push({name: names[r], x: [run.size], y: [run.faithfulness], dots: true});
  });
  if (lines.length) curveChart(byId("curves"), lines, Math.max(...runs.map((r) => r.total)));
  else empty(byId("curves"), "None of these runs has a curve.");
  const everywhere = runs.map((r) => new Set(r.nodes.site.slice(0, r.size)));
  runs.forEach((run, r) => {
    const host = el("div", {class: "graph"});
    byId("circuits").append(el("figure", {class: "card"}, el("figcaption", {}, el("bdi", {}, names[r])), host));
    const net = network(run);
    circuitGraph(host, run, net, {select() {}});
    new MutationObserver(() => mark(host, net, everywhere)).observe(host, {childList: true});
    mark(host, net, everywhere);
  });
  optionTable(byId("differences"), runs, names);
}

/** Names that tell the runs apart. */
function runLabels(runs) {
  const of = (r) => `${r.task}, ${r.model}, ${r.method}`;
  const all = runs.map(of);
  return runs.map((run, i) => show(all.filter((n) => n === all[i]).length > 1 ? `${run.name}: ${all[i]}` : all[i], 80));
}

function mark(host, net, everywhere) {
  for (const g of host.querySelectorAll(".node")) {
    const {site} = net.nodes[Number(g.dataset.i)];
    g.classList.toggle("shared", everywhere.every((set) => set.has(site)));
  }
}

function sharedTable(host, runs, names) {
  const inside = runs.map((run) => new Map(run.nodes.site.slice(0, run.size).map((s, i) => [s, i])));
  const all = [...new Set(inside.flatMap((m) => [...m.keys()]))];
  const count = (site) => inside.filter((m) => m.has(site)).length;
  const best = (site) => Math.min(...inside.map((m) => m.get(site) ?? Infinity));
  all.sort((a, b) => count(b) - count(a) || best(a) - best(b));
  const pick = el("select", {}, ["all nodes", "shared by all", "not shared by all"].map((t, i) => el("option", {value: i}, t)));
  const body = el("tbody");
  const draw = () => body.replaceChildren(...all.filter((s) => pick.value === "0" || (count(s) === runs.length) === (pick.value === "1")).slice(0, 1000)
    .map((site) => el("tr", {class: count(site) === runs.length ? "shared" : ""}, el("th", {scope: "row"}, el("bdi", {}, show(site, 40))),
      runs.map((run, r) => {
        const i = inside[r].get(site);
        return i === undefined ? el("td", {class: "no"}, "–") : el("td", {}, el("b", {}, `${i + 1}.`), " ", signed(run.nodes.score[i]));
      }))));
  pick.addEventListener("change", draw);
  draw();
  const shared = all.filter((s) => count(s) === runs.length).length;
  host.replaceChildren(el("p", {}, `${shared} of ${all.length} nodes are in every circuit. Each cell: order in the circuit, and score.`),
    el("div", {class: "controls"}, el("label", {}, "show ", pick)),
    el("div", {class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Nodes by run"}, el("table", {class: "compare"},
      el("thead", {}, el("tr", {}, el("th", {scope: "col"}, "node"), names.map((n) => el("th", {scope: "col"}, el("bdi", {}, n))))), body)));
}

function overlaps(host, runs, names) {
  const sets = runs.map((run) => new Set(run.nodes.site.slice(0, run.size)));
  const jaccard = (a, b) => {
    const both = [...a].filter((x) => b.has(x)).length, any = a.size + b.size - both;
    return any ? both / any : 1;
  };
  host.replaceChildren(el("div", {class: "scroll"}, el("table", {class: "compare"},
    el("caption", {}, "Overlap of two circuits: shared nodes among all nodes of both (Jaccard)"),
    el("thead", {}, el("tr", {}, el("td"), names.map((n) => el("th", {scope: "col"}, el("bdi", {}, n))))),
    el("tbody", {}, runs.map((_, a) => el("tr", {}, el("th", {scope: "row"}, el("bdi", {}, names[a])),
      runs.map((_, b) => {
        const cell = el("td", {class: "overlap"}, num(jaccard(sets[a], sets[b]), 2));
        cell.style.setProperty("--m", 60 * jaccard(sets[a], sets[b]));
        return cell;
      })))))));
}

function optionTable(host, runs, names) {
  const maps = runs.map((run) => new Map([["model", run.model], ["task", run.task], ["method", run.method], ["seed", flat(run.seed)],
    ...settings(run.options), ...settings(run.versions, "version of ")]));
  const keys = [...new Set(maps.flatMap((m) => [...m.keys()]))];
  const differs = keys.filter((k) => new Set(maps.map((m) => m.get(k))).size > 1);
  if (!differs.length) return empty(host, "The runs were made with the same options.");
  host.replaceChildren(el("div", {class: "scroll"}, el("table", {class: "compare"},
    el("thead", {}, el("tr", {}, el("th", {scope: "col"}, "option"), names.map((n) => el("th", {scope: "col"}, el("bdi", {}, n))))),
    el("tbody", {}, differs.map((k) => el("tr", {}, el("th", {scope: "row"}, show(k, 60)), maps.map((m) => el("td", {}, show(m.get(k) ?? "–", 80)))))))));
}

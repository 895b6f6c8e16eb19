// Completeness, minimality and stability, and the areas under each ablation's curve.

function testsPanel(host, run, net) {
  const ev = run.evaluation, verdict = asMap(run.verdict);
  const table = curveTable(run);
  const parts = [completenessPart(ev.completeness ?? verdict.completeness, ev.completeness ? run.evaluation.prompts : verdict.prompts),
    effectsPart(run, net), stabilityPart(ev.stability), repeatsPart(ev.repeats)].filter(Boolean);
  host.replaceChildren(...(table ? [table] : []));
  if (parts.length) host.append(el("div", {class: "two"}, parts));
  const lacking = [["completeness", ev.completeness ?? verdict.completeness], ["minimality", run.nodes.effect], ["stability", ev.stability], ["curves under other ablations", ev.curves]]
    .filter(([, found]) => !found).map(([name]) => name);
  if (lacking.length) host.append(el("p", {class: "empty"}, `Not measured yet: ${lacking.join(", ")}. `, el("code", {}, run.commands.evaluate)));
}

function curveTable(run) {
  const curves = Object.entries(asMap(run.evaluation.curves)), own = asMap(run.summary);
  if (!curves.length && !isNumber(own.curve_gap)) return null;
  const row = (name, c) => el("tr", {}, el("th", {scope: "row"}, name), [num(c.curve_gap), num(c.curve_area), num(c.k80), num(c.k95)].map((v) => el("td", {}, v)));
  return el("div", {}, el("h4", {}, "The whole ranking"), el("div", {class: "scroll"}, el("table", {class: "compare", id: "areas"},
    el("thead", {}, el("tr", {}, ["curve", "curve gap", "curve area", "k80", "k95"].map((t) => el("th", {scope: "col"}, t)))),
    el("tbody", {}, isNumber(own.curve_gap) ? row(`discover, ${prompts(asMap(run.curve).prompts, "held-out")}`, own) : null,
      curves.map(([name, c]) => row(`${show(name, 30)} ablation, evaluate, ${prompts(run.evaluation.prompts, "held-out")}`, c))))),
    el("p", {class: "muted"}, "Curve gap: area of |1 − faithfulness| over the fraction of nodes, 0 is perfect. Curve area: area of faithfulness. k80, k95: the first size with at least that faithfulness."));
}

function completenessPart(found, count) {
  const knockouts = asList(asMap(found).knockouts).filter((k) => isNumber(k.circuit) && isNumber(k.model));
  if (!isNumber(asMap(found).mean_gap)) return null;
  const host = el("div", {}, el("h4", {}, "Completeness"), el("p", {}, `Mean gap ${num(found.mean_gap)}, worst ${num(found.worst_gap)}, on ${prompts(count, "held-out")}.`));
  if (knockouts.length) {
    const box = el("div"), all = knockouts.flatMap((k) => [k.circuit, k.model]);
    const range = [Math.max(-1.5, Math.min(0, ...all)), Math.min(2.2, Math.max(1, ...all))];
    host.append(box, el("p", {class: "muted"}, "Each dot: the same nodes ablated in the circuit and in the whole model. On the line the circuit misses nothing; below it the model has something to fall back on that the circuit lacks; above it the circuit keeps more than the model does."));
    chart(box, {
      title: "Faithfulness after a knockout", aspect: 0.75, x: {label: "model without these nodes", range}, y: {label: "circuit without them", range},
      lines: [{name: "knockouts", x: knockouts.map((k) => k.model), y: knockouts.map((k) => k.circuit), dots: true}, {name: "equal", x: range, y: range, dash: true}],
      table: dataTable("Knockouts", ["nodes", "circuit", "model", "gap"], knockouts.map((k) => [asList(k.removed).map((s) => show(s, 20)).join(" "), num(k.circuit), num(k.model), num(Math.abs(k.circuit - k.model))])),
    });
  }
  return host;
}

/** Bars from the largest down. rows: [[name, value, interval]] */
function bars(host, title, label, rows, range) {
  const names = rows.map(([name]) => name), values = rows.map(([, value]) => value);
  const all = [0, ...rows.flatMap(([, value, ends]) => [value, ...asList(ends)])], pad = 0.04 * (Math.max(...all) - Math.min(...all) || 1);
  const whole = range || [Math.min(...all) - (Math.min(...all) < 0 ? pad : 0), Math.max(...all) + pad];
  figure(host, title, (_, axis) => ({
    height: 62 + 17 * rows.length,
    data: [{
      type: "bar", orientation: "h", x: values, y: rows.map((_, i) => i), marker: {color: values.map((v) => colour(sign(v)))}, hoverinfo: "text", hovertext: rows.map((r) => literal(`${r[0]}: ${signed(r[1])}${interval(r[2])}`)),
    }, whiskers(rows.map((r) => r[2]))],
    layout: {
      margin: {l: 90, r: 12, t: 10, b: 40}, xaxis: axis(label, {range: whole}),
      yaxis: axis("", {autorange: "reversed", showgrid: false, tickvals: names.map((_, i) => i), ticktext: names.map((name) => literal(name, 16)), tickfont: {size: 10}}),
    },
  }));
  host.append(dataTable(`${title}: the values`, ["node", label], rows.map(([name, v, ends]) => [show(name, 40), num(v) + interval(ends)])));
}

const MOST_BARS = 40;

function effectsPart(run, net) {
  const known = net.nodes.filter((n) => isNumber(n.effect));
  if (!known.length) return null;
  const rows = sortedBy(known, (n) => n.effect).map((n) => [n.site, n.effect, n.interval]);
  const box = el("div"), cut = rows.length > MOST_BARS ? ` The first ${MOST_BARS} of ${rows.length}.` : "";
  bars(box, "Effect of each node", "effect on faithfulness", rows.slice(0, MOST_BARS));
  return el("div", {}, el("h4", {}, "Minimality"), el("p", {class: "muted"}, `How much faithfulness falls when one node leaves the circuit, on ${prompts(run.nodes.prompts_of_effects, "held-out")}. A node near 0 could go.${cut}`), box);
}

function stabilityPart(found) {
  const rows = sortedBy(Object.entries(asMap(asMap(found).kept)), ([, share]) => share);
  if (!rows.length) return null;
  const box = el("div"), cut = rows.length > MOST_BARS ? ` The first ${MOST_BARS} of ${rows.length}.` : "";
  bars(box, "Share of resamples that choose a node", "share", rows.slice(0, MOST_BARS), [0, 1.02]);
  return el("div", {}, el("h4", {}, "Stability"), el("p", {class: "muted"}, `The ${found.size} nodes with the largest scores, chosen again from ${found.draws} resamples of the discovery prompts: overlap ${num(found.overlap, 2)} (Jaccard), ${num(found.between, 2)} between resamples.${cut}`), box);
}

/** The whole search again on other prompts: which nodes it found each time. */
function repeatsPart(found) {
  const rows = sortedBy(Object.entries(asMap(asMap(found).kept)), ([, share]) => share), times = asList(asMap(found).searches).length;
  if (!rows.length) return null;
  const box = el("div"), cut = rows.length > MOST_BARS ? ` The first ${MOST_BARS} of ${rows.length}.` : "";
  bars(box, "Share of repeated searches that find a node", "share", rows.slice(0, MOST_BARS), [0, 1.02]);
  return el("div", {id: "repeats"}, el("h4", {}, "The search repeated"), el("p", {class: "muted"}, `The whole search on other prompts, ${times} times: overlap ${num(found.overlap, 2)} (Jaccard) with this circuit, ${num(found.between, 2)} of any two.${cut}`), box);
}

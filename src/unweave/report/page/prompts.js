// Every prompt: model, circuit and ablated model beside each other; one of them in detail.
const SPLITS = {evaluate: "held out", discover: "for discovery"};
const FIRST_PROMPTS = 12, MORE_PROMPTS = 20;

const METRIC_COLUMNS = [
  {key: "index", label: "prompt", of: (p) => -p.index, told: "number of the prompt"},
  {key: "text", label: "text", of: (p) => p.text, told: null},
  {key: "model", label: "model", of: (p) => p.model, told: "metric of the whole model"},
  {key: "circuit", label: "circuit", of: (p) => p.circuit, told: "metric of the circuit, everything else ablated"},
  {key: "ablated", label: "ablated", of: (p) => p.ablated, told: "metric with every node ablated"},
  {key: "gap", label: "gap", of: (p) => p.gap, told: "distance of circuit and model: the largest first is the worst first"},
];

/** All prompts of a split with their metrics. */
function promptRows({total, metrics, shown}) {
  const kept = new Map(shown.map((p) => [p.index, p]));
  const of = (name, i) => asList(asMap(metrics)[name])[i] ?? null;
  return Array.from({length: total}, (_, index) => {
    const [model, circuit, ablated] = ["model", "circuit", "ablated"].map((name) => of(name, index));
    const prompt = kept.get(index) || null;
    return {index, prompt, text: prompt ? prompt.clean : "", model, circuit, ablated, gap: isNumber(model) && isNumber(circuit) ? Math.abs(model - circuit) : null};
  });
}

function promptsPanel(host, run, net, on) {
  const splits = Object.keys(SPLITS).filter((name) => run.prompts[name] && run.prompts[name].total);
  if (!splits.length) return empty(host, "No prompts were kept in this run.");
  const first = chosenView("split", splits[0]), list = el("div"), one = el("div", {class: "prompt", "aria-live": "polite"}), scatter = el("div");
  const pick = el("select", {}, splits.map((name) => el("option", {value: name, selected: name === first}, `${SPLITS[name]} (${run.prompts[name].total})`)));
  host.replaceChildren(el("div", {class: "controls"}, el("label", {}, "prompts ", pick)), el("div", {class: "two wide"}, list, scatter), one);
  const choose = (row) => {
    keep("split", pick.value);
    keep("prompt", row.index);
    list.querySelectorAll("tr[data-index]").forEach((tr) => tr.classList.toggle("chosen", Number(tr.dataset.index) === row.index));
    promptDetail(one, run, net, row, pick.value, on.chosen());
    on.prompt(pick.value === "evaluate" ? row.index : 0);
  };
  const restart = (wanted) => {
    const rows = promptRows(run.prompts[pick.value]);
    promptTable(list, run, rows, pick.value, choose);
    scatterPart(scatter, run, rows, choose);
    if (rows[wanted]) choose(rows[wanted]);
    else promptDetail(one, run, net, rows[0], pick.value, on.chosen());
  };
  pick.addEventListener("change", () => { keep("prompt", null); keep("split", pick.value); restart(-1); });
  restart(Number(chosenView("prompt", "-1")));
}

function promptTable(host, run, rows, split, choose) {
  const measured = rows.some((r) => isNumber(r.model));
  const columns = measured ? METRIC_COLUMNS : METRIC_COLUMNS.slice(0, 2);
  const state = {by: measured ? "gap" : "index", down: true}, head = el("thead"), body = el("tbody"), more = el("button", {type: "button"});
  let most = FIRST_PROMPTS;
  const cell = (r, key) => el("td", {"data-key": key, class: isNumber(r[key]) && r[key] <= 0 && key !== "ablated" && key !== "gap" ? "wrong" : ""},
    (key === "gap" ? num : signed)(r[key]), isNumber(r[key]) && r[key] <= 0 && (key === "model" || key === "circuit") ? el("small", {}, " wrong") : null);
  const draw = () => {
    head.replaceChildren(sortHeader(columns, state, draw));
    const sorted = sortedBy(rows, columns.find((c) => c.key === state.by).of, state.down);
    body.replaceChildren(...sorted.slice(0, most).map((r) => el("tr", {"data-index": r.index}, el("th", {scope: "row"}, el("button", {type: "button", class: "link", onclick: () => choose(r)}, String(r.index + 1))),
      el("td", {class: "text"}, r.prompt ? el("bdi", {}, show(r.text, 120)) : el("span", {class: "muted"}, "text left out")),
      columns.slice(2).map((c) => cell(r, c.key)))));
    const left = sorted.length - most;
    more.hidden = left <= 0;
    more.textContent = `Show ${Math.min(MORE_PROMPTS, left)} more`;
  };
  more.addEventListener("click", () => { most += MORE_PROMPTS; draw(); });
  const name = asMap(run.metric).name || "metric";
  const told = measured
    ? `${name[0].toUpperCase() + name.slice(1)} on each prompt, of the whole model, of the circuit and with every node ablated; the gap is the distance of model and circuit. At 0 or below the answer is wrong.`
    : split === "discover" ? "Metrics are compared on held-out prompts; of these, the scores of nodes are known." : "The metric of each prompt was not kept in this run; a new one keeps it: ";
  host.replaceChildren(el("p", {class: "muted"}, told, measured || split === "discover" ? null : el("code", {}, run.commands.discover)),
    el("div", {class: "scroll tall", tabindex: 0, role: "region", "aria-label": "Prompts"}, el("table", {class: "compare prompts"}, head, body)), more);
  draw();
}

/** Model against circuit, a dot a prompt. */
function scatterPart(host, run, rows, choose) {
  const known = rows.filter((r) => isNumber(r.model) && isNumber(r.circuit));
  host.replaceChildren();
  if (!known.length) return;
  const all = known.flatMap((r) => [r.model, r.circuit, 0]), pad = 0.05 * (Math.max(...all) - Math.min(...all) || 1);
  const range = [Math.min(...all) - pad, Math.max(...all) + pad], name = asMap(run.metric).name || "metric";
  const wrong = known.filter((r) => r.model <= 0 || r.circuit <= 0).length;
  const line = (x0, y0, x1, y1, dash) => ({type: "line", x0, y0, x1, y1, layer: "below", line: {color: colour("muted"), width: 1, dash}});
  figure(host, `${name} of model and circuit, a dot a prompt`, (width, axis) => ({
    height: clamp(width * 0.8, 240, 420),
    data: [{
      type: "scatter", mode: "markers", x: known.map((r) => r.model), y: known.map((r) => r.circuit), customdata: known.map((r) => r.index),
      marker: {size: 7, opacity: 0.75, color: known.map((r) => colour(r.model <= 0 || r.circuit <= 0 ? "neg" : "pos"))},
      hoverinfo: "text", hovertext: known.map((r) => literal(`prompt ${r.index + 1}: model ${signed(r.model)}, circuit ${signed(r.circuit)}`)),
    }],
    layout: {
      xaxis: axis(`${literal(name, 30)} of the model`, {range}), yaxis: axis("of the circuit", {range}),
      shapes: [line(range[0], range[0], range[1], range[1], "5px,4px"), line(range[0], 0, range[1], 0, "1px,3px"), line(0, range[0], 0, range[1], "1px,3px")],
    },
  }), ({customdata}) => choose(rows[customdata]));
  host.append(el("p", {class: "muted"}, `On the broken line circuit and model agree. Orange: the model or the circuit is wrong (${wrong} of ${known.length}).`));
}

/** A text as one argument of a shell. */
const shellQuoted = (text) => `'${String(text).replaceAll("'", "'\\''")}'`;

/** One prompt: its tokens, words, nodes, and the attention of a head: of the chosen one at first. */
function promptDetail(host, run, net, row, split, chosen) {
  if (!row || !row.prompt) {
    host.replaceChildren(el("p", {class: "muted"}, "The text of this prompt was left out of the page; run.json holds it."));
    return;
  }
  const {prompt, index} = row, words = prompt.words || (split === "evaluate" && index === 0 ? run.words : null);
  const part = el("div"), nodes = el("div");
  if (asList(asMap(words).words).length) wordsPanel(part, run, words);
  else empty(part, "Its words were not scored:", `${run.commands.attribute} ${shellQuoted(prompt.clean)}`);
  const values = prompt.effects ? Object.entries(asMap(prompt.effects)) : asList(prompt.scores).map((v, i) => [net.nodes[i].site, v]);
  const sorted = sortedBy(values.filter(([, v]) => isNumber(v)), ([, v]) => Math.abs(v)).slice(0, 20);
  if (sorted.length) bars(nodes, `${prompt.effects ? "Effects" : "Scores"} of nodes on this prompt`, prompt.effects ? "effect" : "score", sorted);
  else empty(nodes, split === "evaluate" ? detailedTold(run) : "Nodes were not scored on this prompt.");
  host.replaceChildren(el("h4", {}, `${split === "evaluate" ? "Held-out" : "Discovery"} prompt ${index + 1}`),
    el("ol", {class: "prompts one"}, promptItem(prompt)), el("div", {class: "two"}, el("div", {}, el("h4", {}, "Words"), part),
      el("div", {}, el("h4", {}, "Nodes", el("small", {}, prompt.effects ? " what the circuit's metric loses on this prompt without the node" : "")), nodes)),
    split === "evaluate" ? promptAttention(run, net, index, chosen) : "");
}

/** Which held-out prompts words and effects are known for. */
function detailedTold(run) {
  const many = run.prompts.evaluate.shown.filter((p) => p.effects).length;
  return many ? `Effects of nodes were measured on ${many} of ${run.prompts.evaluate.total} held-out prompts: the first, and those where the circuit is farthest from the model (the largest gaps above).`
    : "Nodes were scored on discovery prompts only: choose one of those to see its scores.";
}

/** Attention on one held-out prompt, of any head of which it was kept. */
function promptAttention(run, net, index, chosen) {
  const heads = net.nodes.filter((n) => asList(asMap(run.patterns.data)[n.site.split("@")[0]])[index]);
  if (!heads.length) return el("section", {}, el("h4", {}, "Attention"), el("p", {class: "muted"}, "The attention of this prompt was left out of the page, or was not kept."));
  const first = heads.find((n) => chosen && n.site === chosen.site) || heads[0];
  const pick = el("select", {}, heads.map((n) => el("option", {value: n.i, selected: n === first}, `${show(n.site, 30)}${n.roles.length ? `, ${show(n.roles[0], 30)}` : ""}`)));
  const box = el("div");
  const draw = () => box.replaceChildren(attentionOn(run, net.nodes[Number(pick.value)], index, () => {}));
  pick.addEventListener("change", draw);
  draw();
  return el("section", {class: "attention-of-prompt"}, el("label", {class: "pick"}, "head ", pick), box);
}

/** The prompt's attention follows the head that is chosen in the graph, where it was kept. */
function followHead(node) {
  const pick = document.querySelector(".attention-of-prompt select");
  if (!pick || !node || ![...pick.options].some((o) => o.value === String(node.i))) return;
  pick.value = String(node.i);
  pick.dispatchEvent(new Event("change"));
}

function promptItem(prompt) {
  const labels = new Map();
  for (const [name, at] of Object.entries(asMap(prompt.positions))) {
    for (const k of [at].flat()) {
      const index = k < 0 ? asList(prompt.tokens).length + k : k;
      labels.set(index, [...(labels.get(index) || []), name]);
    }
  }
  const tokens = asList(prompt.tokens);
  const line = tokens.length
    ? el("div", {class: "tokens", dir: "auto"}, tokens.map((t, k) => el("span", {class: labels.has(k) ? "chip named" : "chip"},
      el("bdi", {class: "tok"}, show(t)), labels.has(k) ? el("small", {}, show(labels.get(k).join(", "), 30)) : null)))
    : el("p", {class: "tok", dir: "auto"}, show(prompt.clean, 2000));
  const words = (list) => asList(list).flatMap((t, i) => [i ? " " : "", el("bdi", {class: "tok"}, show(t, 40))]);
  return el("li", {}, line, el("dl", {class: "facts"},
    asList(prompt.answers).length ? [el("dt", {}, "answer"), el("dd", {}, words(prompt.answers.slice(0, 12)), prompt.answers.length > 12 ? " …" : null)] : null,
    asList(prompt.distractors).length ? [el("dt", {}, "distractor"), el("dd", {}, words(prompt.distractors.slice(0, 12)), prompt.distractors.length > 12 ? " …" : null)] : null,
    prompt.corrupted ? [el("dt", {}, "corrupted"), el("dd", {class: "tok", dir: "auto"}, show(prompt.corrupted, 2000))] : null));
}

/** Nested settings as dotted names. */
function settings(value, prefix = "") {
  return Object.entries(asMap(value)).flatMap(([key, v]) =>
    v && typeof v === "object" && !Array.isArray(v) && Object.keys(v).length ? settings(v, prefix + key + ".") : [[prefix + key, flat(v)]]);
}

function wireCopy() {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const source = byId(button.dataset.copy);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        // Without permission (a page opened from disk), the text is selected for Ctrl-C.
        getSelection().selectAllChildren(source);
        button.textContent = "Press Ctrl-C";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
}

// Details of one node: effect and scores, pin and note, attention, inputs and outputs.

/** Attention of a head on a held-out prompt that was kept, or null. */
function patternOf(run, node, prompt) {
  const kept = asList(asMap(run.patterns.data)[node.site.split("@")[0]]);
  const index = kept[prompt] ? prompt : 0, text = kept[index];
  if (!text) return null;
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const n = Math.round(Math.sqrt(bytes.length));
  const found = asList(run.prompts.evaluate.shown).find((p) => p.index === index);
  const tokens = asList(found && found.tokens).length === n ? found.tokens : run.patterns.tokens;
  return {n, index, tokens, positions: asMap(found && found.positions), at: (q, k) => bytes[q * n + k] / 255};
}

/** Fills the panel. view: {measure, prompt}; on: {select(i), attend({query, weights}), pinned()} */
function detail(host, run, net, node, view, on) {
  if (!node) {
    on.attend(null);
    host.replaceChildren(el("h3", {}, "No node chosen"),
      el("p", {class: "muted"}, "Choose a node in the graph, by its name above or here, to see its effect, its attention and what it is connected to."),
      el("h4", {}, "The circuit's nodes", el("small", {}, ` by ${view.size}`)),
      el("ol", {class: "nodes"}, sortedBy(net.nodes.slice(0, run.size), (n) => n[view.size]).slice(0, 40)
        .map((n) => el("li", {}, nodeButton(n.site, n.i, n[view.size], net.largest[view.size], on)))));
    return;
  }
  const spread = isNumber(node.spread) ? ` ± ${num(node.spread, 2)} over discovery prompts` : "";
  const facts = [
    ["order", `${node.i + 1} of ${net.nodes.length}`],
    ["in the circuit", node.inside ? "yes" : "no"],
    isNumber(node.effect) ? ["effect", `${signed(node.effect)}${interval(node.interval)} of faithfulness, on ${prompts(run.nodes.prompts_of_effects, "held-out")}`] : null,
    isNumber(node.whole) ? ["effect in the whole model", `${signed(node.whole)} of faithfulness`] : null,
    ["score", signed(node.score) + spread],
    node.group ? ["group", show(node.group, 40)] : null,
    isNumber(node.frequency) ? ["in resampled circuits", percent(node.frequency)] : null,
    node.swaps.length ? ["can be replaced by", node.swaps.map((s) => show(s, 20)).join(", ")] : null,
    node.sentence ? ["role", node.roles.map((r) => show(r, 40)).join(", ") || "unclear"] : node.roles.length ? ["role", node.roles.map((r) => show(r, 40)).join(", ")] : null,
    ...run.rounds.map((step, i) => [`round ${i + 1}`, (step.signed ? signed : num)(step.values[node.i]) + (step.signed ? " relevance" : " relevance, no sign")])
      .filter((row) => row[1][0] !== "–" && run.rounds.length > 1),
  ].filter(Boolean);
  host.replaceChildren(...[
    el("div", {class: "bar"}, el("h3", {}, el("bdi", {}, show(node.site))),
      el("button", {type: "button", onclick: () => on.select(-1)}, "Close")),
    node.sentence ? el("p", {dir: "auto", class: "told"}, show(node.sentence, 1200))
      : node.inside && node.kind === "head" ? el("p", {class: "muted"}, run.explained.reason ? `Not explained: ${show(run.explained.reason, 300)}.` : ["Not explained yet: ", el("code", {}, show(run.commands.explain, 300))]) : null,
    el("dl", {class: "facts"}, facts.flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)])),
    pinPart(node, on),
    attentionPart(run, node, view, on),
    ...testedEdges(net, node, on),
    relevanceList("Strongest inputs", net, view.measure, (e) => e.target === node.i, (e) => e.source, on),
    relevanceList("Strongest outputs", net, view.measure, (e) => e.source === node.i, (e) => e.target, on)].filter(Boolean));
}

/** A pin keeps a node in view with its name and a note; both travel in the page's address. */
function pinPart(node, on) {
  const box = el("input", {type: "checkbox", checked: pins.has(node.site)});
  const note = el("input", {type: "text", class: "note", maxlength: 200, placeholder: "note", "aria-label": `Note on ${show(node.site)}`, value: pins.get(node.site) || ""});
  const write = () => { pin(node.site, box.checked ? note.value.trim() : null); on.pinned(); };
  box.addEventListener("change", write);
  note.addEventListener("input", () => { box.checked = true; write(); });
  return el("p", {class: "pinline"}, el("label", {}, box, " pin "), note);
}

/** Pinned nodes with their notes, below the graph. */
function pinList(host, net, on) {
  const found = net.nodes.filter((n) => pins.has(n.site));
  host.replaceChildren(...(found.length ? [el("h4", {}, "Pinned nodes ", el("small", {}, "kept in this page's address")),
    el("ul", {class: "pins"}, found.map((n) => el("li", {}, el("button", {type: "button", class: "link", onclick: () => on.select(n.i)}, el("bdi", {}, show(n.site))), " ", el("span", {dir: "auto"}, show(pins.get(n.site))))))] : []));
}

function meter(value, largest, plain) {
  const bar = el("span", {class: "meter " + (plain ? "none" : sign(value))});
  bar.style.setProperty("--m", isNumber(value) ? (100 * Math.abs(value)) / (largest || 1) : 0);
  return bar;
}

/** A node as a button with a bar; plain: a value without a sign. */
function nodeButton(name, i, value, largest, on, plain) {
  return el("button", {type: "button", class: "line", disabled: i < 0, onclick: () => on.select(i)},
    el("bdi", {}, show(name, 30)), meter(value, largest, plain), el("span", {class: "value"}, (plain ? num : signed)(value)));
}

function testedEdges(net, node, on) {
  const part = (title, wanted, other) => {
    const found = net.edges.filter(wanted), value = (e) => e.effect ?? e.score;
    const largest = Math.max(0, ...found.map((e) => Math.abs(value(e)) || 0));
    const name = (e) => (other(e) === INPUT ? "input" : other(e) === LOGITS ? "logits" : net.nodes[other(e)].site) + (e.branch ? ` (${e.branch})` : "");
    const shown = [...found].sort((a, b) => (Math.abs(value(b)) || 0) - (Math.abs(value(a)) || 0));
    return found.length ? el("section", {}, el("h4", {}, title, el("small", {}, found.some((e) => isNumber(e.effect)) ? " by effect" : " by score")),
      el("ul", {class: "nodes"}, shown.map((e) => el("li", {}, nodeButton(name(e), other(e), value(e), largest, on))))) : null;
  };
  return [part("Edges in", (e) => e.target === node.i, (e) => e.source), part("Edges out", (e) => e.source === node.i, (e) => e.target)];
}

function relevanceList(title, net, measure, wanted, other, on) {
  const found = (net.pairs[measure] || []).filter(wanted).slice(0, 6);
  const largest = Math.abs(found[0]?.value) || 1;
  return el("section", {}, el("h4", {}, title, measure ? el("small", {title: asList(MEASURES[measure])[2]}, ` by untested relevance (${measure})`) : null), found.length
    ? el("ul", {class: "nodes"}, found.map((e) => el("li", {}, nodeButton(net.nodes[other(e)].site, other(e), e.value, largest, on, measure !== "signed"))))
    : el("p", {class: "muted"}, "none measured"));
}

function attentionPart(run, node, view, on) {
  const part = attentionOn(run, node, view.prompt, on.attend);
  if (part) return part;
  on.attend(null);
  return node.kind === "head" ? el("p", {class: "muted"}, "No attention pattern was kept for this head.") : null;
}

/** The attention of a head on a prompt, with a choice of the query; null where none was kept. */
function attentionOn(run, node, prompt, attend) {
  const pattern = patternOf(run, node, prompt);
  if (!pattern) return null;
  const tokens = pattern.tokens;
  // Where the node is, or where it matters; else where it looks most.
  const label = node.matters ? pattern.positions[node.matters] : null;
  const own = node.position === null ? (isNumber(label) && label < 0 ? pattern.n + label : label) : run.positions[node.position].index;
  const first = isNumber(own) && own < pattern.n ? own : telling(pattern);
  const pick = el("select", {}, tokens.map((t, q) => el("option", {value: q, selected: q === first}, `${q} ${show(t, 24)}`)));
  const told = el("p", {class: "muted", "aria-live": "polite"});
  const picture = el("div", {class: "pattern"});
  const mark = () => {
    const q = Number(pick.value);
    const weights = tokens.map((_, k) => pattern.at(q, k));
    const best = weights.map((w, k) => [w, k]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([w]) => w > 0.01);
    told.replaceChildren("looks at ", ...best.flatMap(([w, k], i) => [i ? ", " : "", el("bdi", {class: "tok"}, show(tokens[k], 20)), ` ${percent(w)}`]));
    picture.querySelectorAll("[data-q]").forEach((line) => line.classList.toggle("query", Number(line.dataset.q) === q));
    // The graph's tokens are those of the example prompt.
    attend(pattern.index === 0 ? {query: q, weights} : null);
  };
  pick.addEventListener("change", mark);
  onWidth(picture, (width) => { picture.replaceChildren(patternPicture(tokens, pattern, width, (q) => { pick.value = q; mark(); })); mark(); });
  mark();
  const other = prompt && pattern.index !== prompt ? ` (of prompt ${prompt + 1} none was kept)` : "";
  return el("section", {}, el("h4", {}, `Attention on held-out prompt ${pattern.index + 1}`, el("small", {}, other)),
    el("label", {class: "pick"}, "from token ", pick), told, picture);
}

/** The query that looks most at another token than itself and the first, where heads rest. */
function telling(pattern) {
  let best = pattern.n - 1, most = 0;
  for (let q = 0; q < pattern.n; q++) {
    for (let k = 1; k < pattern.n; k++) {
      if (k !== q && pattern.at(q, k) > most) [best, most] = [q, pattern.at(q, k)];
    }
  }
  return best;
}

function patternPicture(tokens, pattern, width, choose) {
  const named = pattern.n <= 48;
  const left = named ? 62 : 4, top = named ? 52 : 4;
  const size = Math.max(2, Math.min(22, (width - left - 4) / pattern.n));
  const root = svg("svg", {
    width, height: top + size * pattern.n + 4, role: "img",
    "aria-label": `Attention pattern, ${pattern.n} query tokens down, ${pattern.n} key tokens across`,
  });
  for (let q = 0; q < pattern.n; q++) {
    const line = svg("g", {"data-q": q, onclick: () => choose(q)},
      svg("rect", {class: "under", x: left, y: top + q * size, width: size * pattern.n, height: size}));
    if (named) {
      line.append(svg("text", {x: left - 4, y: top + (q + 0.5) * size + 3, "text-anchor": "end"}, show(tokens[q].trim() || tokens[q], 9)));
      root.append(svg("text", {transform: `translate(${left + (q + 0.5) * size + 3},${top - 4}) rotate(-60)`}, show(tokens[q].trim() || tokens[q], 9)));
    }
    for (let k = 0; k < pattern.n; k++) {
      const w = pattern.at(q, k);
      if (w < 0.012) continue;
      line.append(svg("rect", {class: "cell", x: left + k * size, y: top + q * size, width: size - 0.5, height: size - 0.5, "fill-opacity": w.toFixed(2)},
        svg("title", {}, `${show(tokens[q], 20)} → ${show(tokens[k], 20)}: ${percent(w)}`)));
    }
    root.append(line);
  }
  return root;
}

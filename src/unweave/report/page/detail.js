// Details of one node: scores, attention on an example, strongest inputs and outputs.

/** Attention of a head on the example prompt, or null. */
function patternOf(run, node) {
  const text = asMap(run.patterns.data)[node.site.split("@")[0]];
  if (!text) return null;
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const n = run.patterns.tokens.length;
  return {n, at: (q, k) => bytes[q * n + k] / 255};
}

/** Fills the panel. on: {select(i), attend({query, weights})} */
function detail(host, run, net, node, measure, on) {
  if (!node) {
    on.attend(null);
    host.replaceChildren(el("h3", {}, "No node chosen"),
      el("p", {class: "muted"}, "Choose a node in the graph, or from the list below, to see its scores, its attention and what it is connected to."),
      nodeList(run, net, on));
    return;
  }
  const spread = isNumber(node.spread) ? ` ± ${num(node.spread, 2)} over prompts` : "";
  const facts = [
    ["importance", `${node.i + 1} of ${net.nodes.length}`],
    ["in the circuit", node.inside ? "yes" : "no"],
    ["score", signed(node.score) + spread],
    ...run.iterations.map((step, i) => [`relevance, round ${i + 1}`, signed(step.values[node.i])])
      .filter((row) => row[1] !== "–" && run.iterations.length > 1),
  ];
  host.replaceChildren(
    el("div", {class: "bar"}, el("h3", {}, el("bdi", {}, show(node.site))),
      el("button", {type: "button", onclick: () => on.select(-1)}, "Close")),
    el("dl", {class: "facts"}, facts.flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)])),
    attentionPart(run, node, on),
    neighbours("Strongest inputs", net, measure, (e) => e.target === node.i, (e) => e.source, on),
    neighbours("Strongest outputs", net, measure, (e) => e.source === node.i, (e) => e.target, on));
}

function nodeList(run, net, on) {
  const many = net.nodes.slice(0, Math.max(run.size, Math.min(12, net.nodes.length)));
  return el("ol", {class: "nodes"}, many.slice(0, 60).map((node) => el("li", {},
    nodeButton(node, node.score, net.largest, on))));
}

function nodeButton(node, value, largest, on) {
  const bar = el("span", {class: "meter " + sign(value)});
  bar.style.setProperty("--m", isNumber(value) ? (100 * Math.abs(value)) / (largest || 1) : 0);
  return el("button", {type: "button", class: "line", onclick: () => on.select(node.i)},
    el("bdi", {}, show(node.site, 30)), bar, el("span", {class: "value"}, signed(value)));
}

function neighbours(title, net, measure, wanted, other, on) {
  const found = (net.edges[measure] || []).filter(wanted).slice(0, 6);
  const largest = Math.abs(found[0]?.value) || 1;
  return el("section", {}, el("h4", {}, title, measure ? el("small", {}, ` by ${measure}`) : null), found.length
    ? el("ul", {class: "nodes"}, found.map((e) => el("li", {}, nodeButton(net.nodes[other(e)], e.value, largest, on))))
    : el("p", {class: "muted"}, "none measured"));
}

function attentionPart(run, node, on) {
  const pattern = patternOf(run, node);
  if (!pattern) {
    on.attend(null);
    return node.kind === "head" ? el("p", {class: "muted"}, "No attention pattern was kept for this head.") : null;
  }
  const tokens = run.patterns.tokens;
  const own = node.position === null ? null : run.positions[node.position].index;
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
    on.attend({query: q, weights});
  };
  pick.addEventListener("change", mark);
  onWidth(picture, (width) => { picture.replaceChildren(patternPicture(tokens, pattern, width, (q) => { pick.value = q; mark(); })); mark(); });
  mark();
  return el("section", {}, el("h4", {}, "Attention on the example prompt"),
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

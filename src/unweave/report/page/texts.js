// Prompts with labelled tokens; options, versions and the command.

function promptsPanel(host, run) {
  const splits = Object.entries(run.prompts).filter(([, p]) => p.shown.length);
  if (!splits.length) return empty(host, "No prompts were kept in this run.");
  const pick = el("select", {}, splits.map(([name, p]) => el("option", {value: name}, `${name === "discover" ? "for discovery" : "held out"} (${p.total})`)));
  const list = el("ol", {class: "prompts"}), more = el("button", {type: "button"}, "Show 20 more");
  let shown = 0;
  const add = (count) => {
    const {shown: all} = run.prompts[pick.value];
    list.append(...all.slice(shown, shown + count).map(promptItem));
    shown += count;
    more.hidden = shown >= all.length;
  };
  const restart = () => { list.replaceChildren(); shown = 0; add(5); };
  pick.addEventListener("change", restart);
  more.addEventListener("click", () => add(20));
  host.replaceChildren(el("div", {class: "controls"}, el("label", {}, "prompts ", pick)), list, more);
  restart();
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

// Helpers that every panel uses. Text goes in by textContent only: tokens and names are data.
const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: el("td", {class: "n"}, "text", child, …). */
function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

const byId = (id) => document.getElementById(id);
const isNumber = (x) => typeof x === "number" && Number.isFinite(x);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const asList = (x) => (Array.isArray(x) ? x : []);
const asMap = (x) => (x && typeof x === "object" && !Array.isArray(x) ? x : {});

/** A number in few digits; a dash for what is not a number. */
function num(x, digits = 3) {
  if (!isNumber(x)) return "–";
  if (x !== 0 && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e5)) return x.toExponential(1).replaceAll("-", "−");
  return String(Number(x.toPrecision(digits))).replace("-", "−");
}
const signed = (x, digits = 3) => (isNumber(x) && x > 0 ? "+" : "") + num(x, digits);
/** Prompts by their number, where it is known: "100 held-out prompts". */
const prompts = (count, kind) => `${count ? `${count} ` : ""}${kind} prompts`;
const percent = (x) => (isNumber(x) ? Math.round(100 * x) + "%" : "–");
const sign = (x) => (x < 0 ? "neg" : "pos");

/** A token or name as one visible line: line ends shown, controls that turn text around taken out. */
function show(text, most = 400) {
  const line = String(text)
    .replace(/\r\n|\r|\n/g, "⏎").replace(/\t/g, "⇥")
    .replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "�");
  const letters = Array.from(line);
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : line;
}

/** A node's name as labels print it: 23.3 for a23.h3@end, since its column tells the position. */
const brief = (site) => show(site.split("@")[0].replace(/^a(\d+)\.h(\d+)/, "$1.$2"), 14);

/** A value of any kind on one line. */
function flat(value) {
  if (value === null || value === undefined) return "not set";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map(flat).join(", ") || "none";
  return show(value);
}

/** What a panel says when there is nothing to draw. */
function empty(host, text, command) {
  host.replaceChildren(el("p", {class: "empty"}, text, command ? [" ", el("code", {}, show(command, 600))] : null));
}

/** A table behind a summary: the same figures for screen readers, copying and print. */
function dataTable(title, head, rows) {
  return el("details", {class: "data"},
    el("summary", {}, title),
    el("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": title},
      el("table", {},
        el("thead", {}, el("tr", {}, head.map((h) => el("th", {scope: "col"}, h)))),
        el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) =>
          el(i ? "td" : "th", i ? {} : {scope: "row"}, cell))))))));
}

/** Calls draw now and whenever the host's width changes. */
function onWidth(host, draw) {
  let last = 0;
  const check = () => {
    const width = Math.floor(host.clientWidth);
    if (width > 0 && width !== last) draw((last = width));
  };
  check();
  new ResizeObserver(check).observe(host);
}

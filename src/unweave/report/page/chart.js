// Figures by plotly.js in the colours of the page: line charts here, others through figure().

/**
 * The one way for a text of a run into plotly, which reads tags, links and entities in texts: all
 * of them need one of these letters.
 */
const literal = (text, most = 90) => show(text, most).replace(/[&<>]/g, (c) => `&#${c.charCodeAt(0)};`);

// To run the library takes longer than all else: texts and the circuit graph do not wait for it.
const runLibrary = () => window.Plotly || document.head.append(el("script", {}, byId("library").textContent));
const loaded = new Promise((done) => addEventListener("load", () => setTimeout(() => done(runLibrary()))));
const PAPER = 640; // pixels that fit on a printed page
const paints = [], drawn = []; // of every figure: how to draw it anew; the promise of its drawing
const repaint = (most) => paints.forEach((paint) => paint(most));
/** A colour of the style sheet, as it is now. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

const PALETTE = 12;
/** The colour of a line: one of the style sheet, then hues that lie far from each other. */
const lineColour = (i) => (i < PALETTE ? colour("s" + i) : `hsl(${hue(i)}, 60%, ${colour("light")})`);
const hue = (i) => Math.round((i * 137.5) % 360);

/** Adds a figure to a host, drawn when its width or the theme changes, or by the returned draw(). */
function figure(host, title, make, click) {
  const box = el("div", {class: "plot", role: "figure", "aria-label": title});
  const draw = (most = Infinity) => {
    const width = Math.min(box.clientWidth, most), first = !box.layout;
    if (!width || !window.Plotly) return;
    const font = {family: getComputedStyle(box).fontFamily, size: 11.5, color: colour("muted")};
    // A finger scrolls the page; only a mouse draws a frame to zoom in.
    const still = !matchMedia("(pointer: fine)").matches;
    const axis = (name, more) => ({
      title: {text: name, standoff: 6}, fixedrange: still, zeroline: false, automargin: true,
      gridcolor: colour("soft"), tickcolor: colour("line"), linecolor: colour("line"), ...more,
    });
    const {data, height, layout} = make(width, axis);
    drawn.push(Plotly.react(box, data, {
      width, height: Math.round(height), margin: {l: 54, r: 12, t: 22, b: 40}, showlegend: false, font,
      hovermode: "closest", dragmode: still ? false : "zoom", paper_bgcolor: colour("card"), plot_bgcolor: "transparent",
      // Names are cut before they are escaped: plotly would cut an escape in two.
      hoverlabel: {namelength: -1, bgcolor: colour("card"), bordercolor: colour("line"), font: {...font, color: colour("ink")}},
      modebar: {bgcolor: "transparent", color: colour("muted"), activecolor: colour("accent")},
      ...layout,
    }, {displaylogo: false, modeBarButtons: [["png", "svg"].map(saver)]}));
    if (first && click) box.on("plotly_click", ({points}) => click(points[0]));
  };
  host.append(box);
  paints.push(draw);
  loaded.then(() => onWidth(box, () => draw()));
  return {box, draw};
}

/** Intervals as lines, one for each row that has one: plotly's error bars write style attributes, which the page's policy refuses. */
function whiskers(ends) {
  const rows = ends.map((pair, i) => [asList(pair), i]).filter(([pair]) => pair.length === 2 && pair.every(isNumber));
  return {
    type: "scatter", mode: "lines", name: "95% interval", hoverinfo: "skip", line: {color: colour("ink"), width: 1.6},
    x: rows.flatMap(([[low, high]]) => [low, high, null]), y: rows.flatMap(([, i]) => [i, i, null]),
  };
}

/** A button that saves a figure, with the legend that on the page stands below it. */
const saver = (format) => ({
  name: format, title: `Save as ${format.toUpperCase()}`, icon: Plotly.Icons[format === "png" ? "camera" : "disk"],
  click({data, layout}) {
    const height = layout.height + 60, margin = {...layout.margin, b: layout.margin.b + 60};
    const legend = {orientation: "h", yref: "container", y: 0, yanchor: "bottom"};
    Plotly.downloadImage({data, layout: {...layout, height, margin, legend, showlegend: true}},
      {format, height, width: layout.width, scale: 2, filename: "unweave"});
  },
});

/**
 * Draws lines into a host, with a table of their values, and a legend of buttons that hide them:
 * those of plotly do not hear a keyboard.
 * spec: {title, x: {label, range, format, stretch, …}, y: {…}, lines: [{name, x, y, low, high,
 * dash, dots}], marks: [{on, at, label}], aspect, table}; more keys of an axis go to plotly.
 * Returns {draw(), move(x, y)}, which puts the moving marker somewhere.
 */
function chart(host, spec) {
  const names = [...new Set(spec.lines.map((line) => line.name))], hidden = new Set();
  const X = (x) => (spec.x.stretch ? Math.sqrt(x) : x);
  const told = (x, y) => `${(spec.x.format || num)(x)}: ${(spec.y.format || num)(y)}`;
  let place = [];
  host.replaceChildren();
  const {box, draw} = figure(host, spec.title, (width, axis) => {
    const scale = ({label, range: [low, high], format, stretch, ...more}, to, pad = 0.02 * (to(high) - to(low))) =>
      axis(label, {range: [to(low) - pad, to(high) + pad], ...(stretch ? rootTicks(high, width) : {}), ...more});
    return {
      height: clamp(width * (spec.aspect || 0.5), 220, 420),
      data: spec.lines.flatMap(traces),
      layout: {xaxis: scale(spec.x, X), yaxis: scale(spec.y, (y) => y), shapes: shapes(), uirevision: !!spec.x.stretch},
    };
  });
  host.append(el("ul", {class: "legend", "aria-label": "Lines"}, names.map((name, i) => el("li", {}, el("button", {
    type: "button", "aria-pressed": "true", class: "key s" + i, "data-hue": i < PALETTE ? null : hue(i),
    onclick({currentTarget}) {
      hidden.delete(name) || hidden.add(name);
      currentTarget.setAttribute("aria-pressed", String(!hidden.has(name)));
      draw();
    },
  }, el("bdi", {}, show(name, 90)))))), spec.table || dataTable(`${spec.title}: the values`, ["line", `${spec.x.label}: ${spec.y.label}`],
    spec.lines.map((line) => [show(line.name, 90), line.x.map((x, i) => told(x, line.y[i])).join(", ")])));
  for (const key of host.querySelectorAll("[data-hue]")) key.style.setProperty("--c", `hsl(${key.dataset.hue}, 60%, var(--light))`);
  return {draw, move(...to) { place = to; if (box.layout) Plotly.relayout(box, {shapes: shapes()}); }};

  function traces(line) {
    const at = line.x.map((_, i) => i).filter((i) => isNumber(line.x[i]) && isNumber(line.y[i]));
    const of = (values) => at.map((i) => values[i]), x = of(line.x).map(X);
    const color = lineColour(names.indexOf(line.name));
    const shared = {type: "scatter", name: literal(line.name), visible: !hidden.has(line.name)};
    return [line.low && {
      ...shared, x: [...x, ...x.toReversed()], y: [...of(line.high), ...of(line.low).toReversed()], mode: "lines",
      // Without a colour of its own, the fill is a pale one of the line.
      line: {color, width: 0}, fill: "toself", opacity: 0.35, hoverinfo: "skip", showlegend: false,
    }, {
      ...shared, x, y: of(line.y), hovertext: at.map((i) => told(line.x[i], line.y[i])), hoverinfo: "text+name",
      mode: line.dots ? "markers" : at.length <= 15 ? "lines+markers" : "lines",
      line: {color, width: 2, dash: line.dash ? "5px,4px" : "solid"},
      marker: line.dots ? {color, symbol: "diamond", size: 10, line: {color: colour("card"), width: 1}} : {color, size: 5},
    }].filter(Boolean);
  }

  function shapes() {
    const across = (on, at) => ({
      type: "line", layer: "below",
      ...(on === "y" ? {xref: "paper", x0: 0, x1: 1, y0: at, y1: at} : {yref: "paper", y0: 0, y1: 1, x0: X(at), x1: X(at)}),
    });
    const corner = (on, at) => (on === "y" ? {xanchor: "right", yanchor: "bottom"} : {xanchor: at > spec.x.range[1] / 2 ? "right" : "left", yanchor: "top"});
    const still = (spec.marks || []).map(({on, at, label = ""}) => ({
      ...across(on, at), line: {color: colour("muted"), width: 1, dash: "5px,4px"},
      label: {text: label, textposition: "end", textangle: 0, font: {size: 10.5}, ...corner(on, at)},
    }));
    const [x, y] = place, color = colour("accent");
    return !isNumber(x) || !isNumber(y) ? still : [...still, {...across("x", x), line: {color, width: 1}}, {
      type: "circle", xsizemode: "pixel", ysizemode: "pixel", xanchor: X(x), yanchor: clamp(y, ...spec.y.range),
      x0: -5, x1: 5, y0: -5, y1: 5, fillcolor: color, line: {color: colour("card"), width: 1.5},
    }];
  }
}

/** Plotly has no root scale: places are roots, labels say the numbers that have room. */
function rootTicks(high, width) {
  const kept = [0];
  for (const n of [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]) {
    if (n <= high && (Math.sqrt(n) - Math.sqrt(kept.at(-1))) * width > 34 * Math.sqrt(high)) kept.push(n);
  }
  return {tickvals: kept.map(Math.sqrt), ticktext: kept.map(String)};
}

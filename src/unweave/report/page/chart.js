// Line charts: axes, lines with bands, single points, a legend that hides lines, values on hover.
const SCALES = {
  linear: {to: (x) => x, of: ticks},
  sqrt: {
    to: (x) => Math.sqrt(Math.max(0, x)),
    of: (low, high) => [0, 1, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000]
      .filter((t) => t >= low && t <= high),
  },
  log: {
    to: (x) => Math.log10(Math.max(1e-9, x)),
    of: (low, high) => Array.from({length: 14}, (_, i) => 10 ** (i - 5))
      .flatMap((t) => [t, 2 * t, 5 * t]).map((t) => Number(t.toPrecision(3)))
      .filter((t) => t >= low * 0.999 && t <= high * 1.001),
  },
};

/**
 * Draws a chart into a host.
 * spec: {title, x: {label, scale, domain, format}, y: {…}, lines: [{name, x, y, low, high, dash,
 * colour}], points: [{name, x, y}], marks: [{axis, at, label}], aspect}
 * Returns {move(x, y)}: puts the moving marker somewhere.
 */
function chart(host, spec) {
  const hidden = new Set();
  const names = [...spec.lines, ...(spec.points || [])].map((s) => s.name);
  const colour = new Map([...new Set(names)].map((name, i) => [name, i % 7]));
  const box = el("div", {class: "plot"});
  const legend = el("ul", {class: "legend", "aria-label": "Lines"});
  for (const name of colour.keys()) {
    const item = el("button", {
      type: "button", "aria-pressed": "true", class: "key s" + colour.get(name),
      onclick: () => {
        hidden.has(name) ? hidden.delete(name) : hidden.add(name);
        item.setAttribute("aria-pressed", String(!hidden.has(name)));
        draw(box.clientWidth);
      },
    }, el("bdi", {}, show(name, 60)));
    legend.append(el("li", {}, item));
  }
  host.replaceChildren(box, legend);
  let marker = null, place = null;
  onWidth(box, draw);
  return {move(x, y) { place = [x, y]; setMarker(); }};

  function draw(width) {
    const height = Math.round(clamp(width * (spec.aspect || 0.5), 200, 420));
    const frame = makeFrame(spec, width, height);
    const {root, X, Y, clip} = frame;
    for (const line of spec.lines) {
      if (hidden.has(line.name)) continue;
      const s = " s" + colour.get(line.name);
      const pairs = line.x.map((x, i) => [x, line.y[i]]).filter(([x, y]) => isNumber(x) && isNumber(y));
      if (line.low) {
        const up = line.x.map((x, i) => `${X(x)},${Y(line.high[i])}`);
        const down = line.x.map((x, i) => `${X(x)},${Y(line.low[i])}`).reverse();
        clip.append(svg("polygon", {class: "band" + s, points: [...up, ...down].join(" ")}));
      }
      const d = pairs.map(([x, y], i) => `${i ? "L" : "M"}${X(x).toFixed(1)},${Y(y).toFixed(1)}`);
      clip.append(svg("path", {class: "line" + s + (line.dash ? " dash" : ""), d: d.join("")}));
      if (pairs.length <= 15) {
        for (const [x, y] of pairs) clip.append(svg("circle", {class: "dot" + s, cx: X(x), cy: Y(y), r: 2.5}));
      }
    }
    for (const point of spec.points || []) {
      if (hidden.has(point.name) || !isNumber(point.x) || !isNumber(point.y)) continue;
      const at = `translate(${X(point.x)},${Y(point.y)})`;
      clip.append(svg("path", {class: "star s" + colour.get(point.name), d: "M0-6 6 0 0 6-6 0Z", transform: at},
        svg("title", {}, `${show(point.name)}: ${num(point.x)}, ${num(point.y)}`)));
    }
    marker = svg("g", {class: "marker", display: "none"},
      svg("line", {y1: frame.top, y2: height - frame.bottom}), svg("circle", {r: 5}));
    marker.at = (x, y) => {
      marker.setAttribute("display", "");
      marker.setAttribute("transform", `translate(${X(x)},0)`);
      marker.lastChild.setAttribute("cy", clamp(Y(y), frame.top, height - frame.bottom));
    };
    root.append(marker);
    setMarker();
    const tip = el("div", {class: "tip", hidden: true});
    box.replaceChildren(root, tip);
    hover(root, tip, frame, width);
  }

  function setMarker() {
    if (marker && place && isNumber(place[0]) && isNumber(place[1])) marker.at(place[0], place[1]);
  }

  function hover(root, tip, frame, width) {
    root.addEventListener("pointerleave", () => { tip.hidden = true; });
    root.addEventListener("pointermove", (event) => {
      const left = event.clientX - root.getBoundingClientRect().left;
      const rows = [];
      for (const line of spec.lines) {
        if (hidden.has(line.name)) continue;
        let best = -1;
        line.x.forEach((x, i) => {
          if (isNumber(line.y[i]) && (best < 0 || Math.abs(frame.X(x) - left) < Math.abs(frame.X(line.x[best]) - left))) best = i;
        });
        if (best >= 0) rows.push([line, line.x[best], line.y[best]]);
      }
      tip.hidden = !rows.length;
      tip.replaceChildren(...rows.map(([line, x, y]) => el("div", {class: "key s" + colour.get(line.name)},
        el("bdi", {}, show(line.name, 40)), ` ${num(x)}: `, el("b", {}, num(y)))));
      tip.style.left = clamp(left + 12, 0, Math.max(0, width - tip.offsetWidth - 4)) + "px";
    });
  }
}

/** Axes, grid and scales of a chart. */
function makeFrame(spec, width, height) {
  const left = 46, right = 18, top = 10, bottom = 40;
  const domain = (axis, key) => {
    if (axis.domain) return axis.domain;
    const all = [...spec.lines.flatMap((l) => l[key]), ...(spec.points || []).map((p) => p[key])].filter(isNumber);
    const low = Math.min(...all), high = Math.max(...all);
    return all.length ? (low === high ? [low - 0.5, high + 0.5] : [low, high]) : [0, 1];
  };
  const scale = (axis, key, from, to) => {
    const {to: f} = SCALES[axis.scale || "linear"];
    const [low, high] = domain(axis, key);
    const a = f(low), b = f(high) === a ? a + 1 : f(high);
    return (x) => from + ((f(x) - a) / (b - a)) * (to - from);
  };
  const X = scale(spec.x, "x", left, width - right), Y = scale(spec.y, "y", height - bottom, top);
  const id = "clip" + Math.random().toString(36).slice(2);
  const clip = svg("g", {"clip-path": `url(#${id})`});
  const axes = svg("g", {class: "axes"});
  const few = (list) => list.filter((t, i, all) => !i || Math.abs(X(t) - X(all[i - 1])) > 22);
  for (const t of few(SCALES[spec.x.scale || "linear"].of(...domain(spec.x, "x"), width < 420 ? 4 : 8))) {
    axes.append(svg("line", {x1: X(t), x2: X(t), y1: top, y2: height - bottom}),
      svg("text", {x: X(t), y: height - bottom + 16, "text-anchor": "middle"}, (spec.x.format || num)(t)));
  }
  for (const t of SCALES[spec.y.scale || "linear"].of(...domain(spec.y, "y"), 5)) {
    axes.append(svg("line", {x1: left, x2: width - right, y1: Y(t), y2: Y(t)}),
      svg("text", {x: left - 6, y: Y(t) + 4, "text-anchor": "end"}, (spec.y.format || num)(t)));
  }
  for (const mark of spec.marks || []) {
    const across = mark.axis === "y";
    axes.append(across
      ? svg("line", {class: "mark", x1: left, x2: width - right, y1: Y(mark.at), y2: Y(mark.at)})
      : svg("line", {class: "mark", x1: X(mark.at), x2: X(mark.at), y1: top, y2: height - bottom}));
    if (mark.label) {
      axes.append(across
        ? svg("text", {class: "mark", x: width - right - 4, y: Y(mark.at) - 4, "text-anchor": "end"}, mark.label)
        : svg("text", {class: "mark", x: X(mark.at) + 4, y: top + 10}, mark.label));
    }
  }
  axes.append(svg("text", {class: "label", x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle"}, spec.x.label),
    svg("text", {class: "label", transform: `translate(12,${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle"}, spec.y.label));
  const root = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.title},
    svg("clipPath", {id}, svg("rect", {x: left, y: top - 6, width: Math.max(0, width - left - right), height: height - top - bottom + 12})),
    axes, clip);
  return {root, X, Y, clip, top, bottom};
}

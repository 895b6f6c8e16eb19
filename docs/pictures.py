"""Pictures of README and the site, drawn from a run folder.

    unweave discover ioi --out runs/ioi
    python docs/pictures.py runs/ioi

writes docs/pictures/circuit.svg (the circuit over its prompt) and, where chromium is installed,
docs/pictures/report.png (the top of the run's report).
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from unweave.roles.shares import NAMED

OUT = Path(__file__).parent / "pictures"
WIDTH, ROW, TOP, BOTTOM = 760, 62, 92, 84
LEFT, RIGHT = 90, 40
PORTS = {"q": -9, "k": 0, "v": 9, "": 0}  # where lines enter a head, from its middle
MOST_BYTES = 300_000
_HEAD = re.compile(r"a(\d+)\.h(\d+)")
STYLE = """
  .back { fill: #ffffff } .ink { fill: #1f2430 } .soft { fill: #6b7280 } .rule { stroke: #e5e7eb }
  .up { stroke: #2563ab } .down { stroke: #c2570c } .node-up { fill: #2563ab }
  .node-down { fill: #c2570c } .rim { stroke: #ffffff }
  .port { fill: #1f2430 } text { stroke: #ffffff; stroke-width: 4px; paint-order: stroke }
  @media (prefers-color-scheme: dark) {
    .back { fill: #16181d } .ink { fill: #e6e8ec } .soft { fill: #9aa3af } .rule { stroke: #2b303b }
    .up { stroke: #6aa7ea } .down { stroke: #f0934e } .node-up { fill: #6aa7ea }
    .node-down { fill: #f0934e } .rim { stroke: #16181d }
    .port { fill: #e6e8ec } text { stroke: #16181d }
  }
  text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif }
"""


class Node(NamedTuple):
    """A head of the circuit and where it is drawn."""

    site: str
    effect: float
    role: str
    x: float
    y: float


class Line(NamedTuple):
    """What a node's query, key or value comes from; without a target, what the answer does."""

    source: Node
    target: Node | None
    input: str
    share: float


def circuit_svg(run: Mapping[str, Any], circuit: Mapping[str, Any]) -> str:
    """The circuit as SVG: layers upward, the prompt below, the answer above."""
    nodes, height = _placed(circuit["nodes"])
    prompt = run["prompts"]["evaluate"][0]
    end = (WIDTH / 2, TOP - 34.0)
    largest = max(abs(node.effect) for node in nodes) or 1.0
    parts = [f'<rect class="back" width="{WIDTH}" height="{height}" rx="10"/>']
    for layer, y in sorted({(_layer(node.site), node.y) for node in nodes}):
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(20, y + 4, f"layer {layer}", "soft", 12))
    lines = sorted(_lines(nodes, run), key=lambda line: abs(line.share))
    for source, target, branch, share in lines:
        # Lines enter a head from below: its query on the left, its key, its value on the right.
        to = end if target is None else (target.x + PORTS[branch], target.y + 16)
        parts.append(_curve((source.x, source.y), to, share, 0.8 + 4.2 * min(1.0, abs(share))))
    for node in nodes:
        kind = "node-up" if node.effect >= 0 else "node-down"
        radius = 6 + 9 * (abs(node.effect) / largest) ** 0.5
        circle = f'cx="{node.x:.0f}" cy="{node.y:.0f}" r="{radius:.1f}" stroke-width="2"'
        parts.append(f'<circle class="{kind} rim" {circle}/>')
        parts.append(
            _text(node.x + radius + 5, node.y + (4, -1)[bool(node.role)], node.site, "ink", 13)
        )
        if node.role:
            parts.append(_text(node.x + radius + 5, node.y + 12, node.role, "soft", 11))
    for node, branch in dict.fromkeys((line.target, line.input) for line in lines):
        if node is not None and branch:
            at = node.x + PORTS[branch] + {"q": -6, "k": 0, "v": 6}[branch]
            parts.append(_text(at, node.y + 23, branch, "port", 12, "middle"))
    answer, wrong = (_listed(prompt[key]) for key in ("answers", "distractors"))
    parts.append(_text(WIDTH / 2, 34, f"{answer}, not {wrong}", "ink", 19, "middle"))
    parts.append(_text(WIDTH / 2, height - 46, f"{prompt['clean']} …", "ink", 15, "middle"))
    size, total = circuit["size"], circuit["total"]
    note = (
        f"{size} of {total} heads of {circuit['model']}, faithfulness "
        f"{circuit['faithfulness']:.2f} on {len(run['prompts']['evaluate'])} held-out prompts"
    )
    parts.append(_text(WIDTH / 2, height - 20, note, "soft", 13, "middle"))
    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
    title = f"<title>{escape(note)}</title>"
    return "\n".join([f"<svg {head}>", title, f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def _listed(words: Sequence[str]) -> str:
    """One word, two, or the first and the last of more."""
    known = [word.strip() for word in words]
    return " or ".join(known) if len(known) < 3 else f"{known[0]}, …, {known[-1]}"


def _placed(found: Sequence[Mapping[str, Any]]) -> tuple[list[Node], float]:
    """Layers as rows, heads of a layer side by side, rows shifted so that lines do not hide."""
    layers = sorted({_layer(node["site"]) for node in found})
    height = TOP + ROW * len(layers) + BOTTOM
    nodes = []
    for row, layer in enumerate(layers):
        here = sorted((n for n in found if _layer(n["site"]) == layer), key=lambda n: n["site"])
        y = height - BOTTOM - ROW * (row + 0.5)
        room = (WIDTH - LEFT - RIGHT) / len(here)
        for column, node in enumerate(here):
            shift = ((row % 3) - 1) * min(0.28 * room, 170)
            x = LEFT + room * (column + 0.5) + shift
            role = next(iter(node.get("roles") or ()), "")
            effect = node.get("effect", node["score"])
            nodes.append(Node(node["site"], effect, role, round(x), y))
    return nodes, height


def _lines(nodes: Sequence[Node], run: Mapping[str, Any]) -> Iterator[Line]:
    """What each node's query, key or value comes from, where patching confirmed it; and what the
    answer comes from."""
    placed = {node.site: node for node in nodes}
    for one in (run.get("explanation") or {}).get("nodes") or []:
        target = placed[one["node"]]
        if abs(one["writes"] or 0.0) >= NAMED:
            yield Line(target, None, "", one["writes"])
        for feeder in one["feeders"]:
            if feeder["held"] and feeder["source"] in placed:
                yield Line(placed[feeder["source"]], target, feeder["input"], feeder["share"])


def _layer(site: str) -> int:
    match = _HEAD.match(site)
    if match is None:
        raise SystemExit(f"{site} is not a head: draw a run without --mlps")
    return int(match[1])


def _curve(a: tuple[float, float], b: tuple[float, float], value: float, width: float) -> str:
    middle = (a[1] + b[1]) / 2
    path = f"M{a[0]:.0f} {a[1]:.0f} C{a[0]:.0f} {middle:.0f} {b[0]:.0f} {middle:.0f} "
    kind = "up" if value >= 0 else "down"
    style = f'stroke-width="{width:.1f}" opacity="0.7"'
    return f'<path class="{kind}" d="{path}{b[0]:.0f} {b[1]:.0f}" fill="none" {style}/>'


def _text(x: float, y: float, text: str, kind: str, size: int, anchor: str = "start") -> str:
    where = f'x="{x:.0f}" y="{y:.0f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {where}>{escape(text)}</text>'


def report_png(page: Path, out: Path) -> None:
    """The top of a report, as a browser shows it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport={"width": 1100, "height": 900})
        tab.goto(page.resolve().as_uri())
        tab.wait_for_timeout(1500)  # figures are drawn after the page has loaded
        tab.screenshot(path=out)
        browser.close()


def main(folder: Path) -> None:
    """Draws every picture of a run."""
    run, circuit = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("run.json", "circuit.json")
    )
    OUT.mkdir(exist_ok=True)
    drawn = circuit_svg(run, circuit)
    (OUT / "circuit.svg").write_text(drawn, encoding="utf-8")
    if shutil.which("chromium") and (folder / "report.html").exists():
        report_png(folder / "report.html", OUT / "report.png")
    for path in sorted(OUT.iterdir()):
        size = path.stat().st_size
        print(f"{path.name}: {size / 1000:.0f} kB")
        if size > MOST_BYTES:
            raise SystemExit(f"{path} has {size} bytes: expected at most {MOST_BYTES}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python docs/pictures.py RUN")
    main(Path(sys.argv[1]))

"""Static figures for papers, drawn with matplotlib (the extra `plots`)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from unweave.errors import UnweaveError
from unweave.experiments.files import write_whole
from unweave.report.circuit_files import edge_ends
from unweave.report.data import effects, short
from unweave.report.folder import ShownRun
from unweave.report.layout import NodeLayout, Place, column_names, head_grid, node_layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg", ".pdf")
POSITIVE, NEGATIVE, GREY = "#1f66b8", "#c4500f", "#8a929c"
COLOURS = (
    *(POSITIVE, NEGATIVE, "#0b7a5c", "#9a3d8f", "#8a6500", "#3b7f9c"),
    *("#a6324a", "#4c8a1e", "#5a4fc4", "#b06a9c", "#2f3f55", "#d19a00"),
)
DASHES = ("-", "--", ":", "-.")  # past the last colour, lines differ by their dashes
STYLE: Mapping[str, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "unweave",
    "text.parse_math": False,  # a name with a $ is a name
}


@dataclass(frozen=True)
class PlotOptions:
    """How to draw.

    Args:
        width: In inches.
        position: Heatmap at one position; None sums over all.
        round: Heatmap of this round, from 1.
        nodes: How many nodes of the ranking the circuit shows; None for the found circuit.
        relevance: Whether the circuit shows relevance between nodes, which no run has tested.
    """

    width: float = 3.4
    position: str | None = None
    round: int = 1
    nodes: int | None = None
    relevance: bool = False


def save(run: ShownRun, figure: str, path: Path, options: PlotOptions | None = None) -> None:
    """Draws one of `FIGURES` into a file.

    Raises:
        UnweaveError: Without matplotlib, or when the run does not hold what the figure shows.
    """
    try:
        from cycler import cycler
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UnweaveError(
            "figures need matplotlib, which is not installed: pip install 'unweave[plots]'"
        ) from None
    options = options or PlotOptions()
    draw, aspect = FIGURES[figure]
    cycle = cycler(linestyle=DASHES) * cycler(color=COLOURS)
    style: Any = {**STYLE, "axes.prop_cycle": cycle}
    with rc_context(style):
        canvas = Figure(figsize=(options.width, options.width * aspect), layout="constrained")
        draw(run, canvas.add_subplot(), options)
        # Without a date, the same run gives the same file.
        dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        form = path.suffix.lower()
        how: Any = {"format": form[1:], "dpi": 300, "metadata": dates.get(form)}
        try:
            write_whole(path, lambda part: canvas.savefig(part, **how))
        except (ValueError, OverflowError) as error:  # numbers that are too far apart
            raise UnweaveError(
                f"{run.folder} cannot be drawn ({error}): its numbers are too far apart, run "
                "unweave discover again"
            ) from error


def _missing(run: ShownRun, what: str) -> UnweaveError:
    return UnweaveError(f"{run.folder} holds no {what}: run unweave evaluate {run.folder} first")


def _faithfulness(run: ShownRun, axes: "Axes", options: PlotOptions) -> None:
    evaluation, drawn = run.evaluation, False
    curve = (evaluation.get("curves") or {}).get(evaluation.get("ablation"))
    own = run.record.get("curve") or run.record.get("edge_curve") or {}
    count = evaluation.get("prompts") if curve else own.get("prompts")
    curve = curve or own
    if curve.get("sizes"):
        label = f"{_short(run.about('method'))}{_on(count)}"
        axes.plot(*_points(curve["sizes"], curve["faithfulness"]), label=label)
        drawn = True
    for line in (run.comparison.get("figures") or {}).get("faithfulness_against_size", []):
        many = len(line["sizes"]) > 1
        if line["line"] != run.about("method"):
            style: Any = {} if many else {"marker": "D", "linestyle": "none"}
            axes.plot(
                *_points(line["sizes"], line["faithfulness"]), label=_short(line["line"]), **style
            )
    if random := evaluation.get("random"):
        sizes = [draws["size"] for draws in random]
        values = [
            [f for f in draws["faithfulness"] if f is not None] or [math.nan] for draws in random
        ]
        axes.fill_between(
            sizes, list(map(min, values)), list(map(max, values)), color=GREY, alpha=0.2
        )
        axes.plot(sizes, list(map(fmean, values)), "--", color=GREY, label="random")
        drawn = True
    for name, value in (evaluation.get("known") or {}).items():
        size = evaluation.get("roc", {}).get(name, {}).get("known")
        if size is not None and value is not None:
            axes.plot(size, value, "D", label=_short(f"{name} circuit"))
    if not drawn:
        raise _missing(run, "curve")
    if math.isfinite(run.circuit.faithfulness):
        label = f"circuit{_on(run.held_out)}"
        size = len(run.circuit.edges) if run.circuit.level == "edge" else run.circuit.size
        axes.plot(size, run.circuit.faithfulness, "o", color="black", label=label)
    axes.axhline(1, color=GREY, linewidth=0.6, linestyle=":")
    axes.set(xlabel=f"{run.circuit.level}s in the circuit", ylabel="faithfulness")
    axes.set_ylim(*_range(axes.get_ylim()))
    axes.legend()


def _on(prompts: Any) -> str:
    """Which prompts a figure was measured on, where that is known."""
    return f", {prompts} prompts" if prompts else ""


def _short(name: Any) -> str:
    """A label that leaves room for the picture."""
    line = " ".join(str(name).split())
    return line if len(line) <= 32 else f"{line[:31]}…"


def _range(limits: tuple[float, float]) -> tuple[float, float]:
    return max(-1.0, limits[0]), min(2.2, max(1.1, limits[1]))


def _points(x: Sequence[Any], y: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    kept = [(a, b) for a, b in zip(x, y, strict=False) if a is not None and b is not None]
    return [a for a, _ in kept], [b for _, b in kept]


def _roc(run: ShownRun, axes: "Axes", options: PlotOptions) -> None:
    found = {n: r for n, r in (run.evaluation.get("roc") or {}).items() if r.get("points")}
    if not found:
        raise UnweaveError(
            f"{run.folder} holds no ROC: it needs a published circuit of this task and model, and "
            "unweave evaluate"
        )
    for name, roc in found.items():
        points = sorted([(0.0, 0.0), (1.0, 1.0), *((p[1], p[2]) for p in roc["points"])])
        auc = f"{_short(name)}: AUC {roc['auc']:.2f}"
        axes.plot([x for x, _ in points], [y for _, y in points], marker=".", label=auc)
    axes.plot([0, 1], [0, 1], "--", color=GREY, linewidth=0.8)
    axes.set(xlabel="false positive rate", ylabel="true positive rate", aspect="equal")
    axes.legend(loc="lower right")


def _random_circuits(run: ShownRun, axes: "Axes", options: PlotOptions) -> None:
    test = run.evaluation.get("random_circuits")
    if not test:
        raise _missing(run, "test against random circuits")
    sizes = [share["fraction"] for share in test["shares"]]
    for name, label in (("beaten", "less faithful"), ("farther", "farther from 1")):
        values = [share[name] for share in test["shares"]]
        axes.plot(sizes, values, marker="o", markersize=3, label=label)
    axes.axhline(test["mark"], color=GREY, linestyle=":", linewidth=0.8)
    axes.text(0.02, test["mark"] + 0.02, f"q* = {test['mark']:g}", color=GREY, fontsize=7)
    axes.set(xlabel="size of the random circuits", ylabel="share beaten")
    axes.set(xlim=(0, 1.02), ylim=(0, 1.05))
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.legend(loc="lower left")


def _heatmap(run: ShownRun, axes: "Axes", options: PlotOptions) -> None:
    found = node_layout(run.ranking, run.example)
    steps = run.rounds
    if steps and options.round > len(steps):
        raise UnweaveError(f"--round {options.round}: the run had {len(steps)} rounds")
    step = steps[options.round - 1] if steps else {"targets": ["logits"]}
    values, signed = run.relevance(step)
    wanted = next((p for p in found.positions if str(p) == options.position), None)
    if options.position is not None and wanted is None:
        known = ", ".join(map(str, found.positions)) or "none, nodes stand for all positions"
        raise UnweaveError(f"no position {options.position!r} in this run: {known}")
    grid = head_grid(values, found, wanted)
    names = column_names(found)
    if not names or not grid:
        raise UnweaveError(
            f"{run.folder} has no scores of heads to draw: choose another figure, or discover with "
            "--granularity head"
        )
    filled = [[math.nan if v is None else v for v in row] for row in grid]
    largest = max((abs(v) for row in filled for v in row if v == v), default=0.0) or 1.0
    colours, least = ("RdBu", -largest) if signed else ("Purples", 0.0)
    image = axes.imshow(filled, colours, aspect="auto", origin="lower", vmin=least, vmax=largest)
    every = max(1, len(found.rows) // 15)
    axes.set_yticks(range(0, len(found.rows), every), found.rows[::every])
    step = max(1, len(names) // 16)
    axes.set_xticks(range(0, len(names), step), names[::step])
    axes.set(xlabel="head", ylabel="layer")
    assert axes.figure is not None
    axes.figure.colorbar(image, ax=axes, label=_scale(run, signed), shrink=0.8)


def _scale(run: ShownRun, signed: bool) -> str:
    """What the colours of a heatmap measure."""
    metric = (run.record.get("metric") or {}).get("name") or "metric"
    return f"score ({_short(metric)})" if signed else "relevance (magnitude)"


def _circuit(run: ShownRun, axes: "Axes", options: PlotOptions) -> None:
    from matplotlib.patches import FancyArrowPatch

    chosen = list(run.ranking[: options.nodes or run.circuit.size])
    found = node_layout(run.ranking, run.example)
    spots = {s: _spot(found.by_site[s], found) for s in chosen if s in found.by_site}
    untested = _strongest(run, spots, 80) if options.relevance else []
    lines = [(s, t, part, GREY) for s, t, part in untested]
    lines += [(s, t, part, _colour(value)) for s, t, value, part in _edges(run, spots)]
    for source, target, part, colour in lines:
        line = FancyArrowPatch(
            spots[source],
            spots[target],
            arrowstyle="-",
            connectionstyle="arc3,rad=0.12",
            color=colour,
            alpha=0.15 + 0.7 * part,
            linewidth=0.3 + 2.2 * part,
        )
        line.set_in_layout(False)
        axes.add_patch(line)
    falls = effects(run)[0]
    values = {s: short(falls.get(s) if falls else run.score(s)) or 0.0 for s in spots}
    largest = max(map(abs, values.values()), default=0.0) or 1.0
    for site, (x, y) in spots.items():
        size = 6 + 60 * abs(values[site]) / largest
        marker = "s" if found.by_site[site].kind in ("mlp", "neuron") else "o"
        colour = _colour(values[site])
        axes.scatter(x, y, s=size, c=colour, marker=marker, zorder=3, edgecolors="white")
        if len(spots) <= 60:
            name = site.partition("@")[0].replace(".h", ".").removeprefix("a")
            label = axes.annotate(name, (x, y), (4, 2), textcoords="offset points", fontsize=6)
            label.set(zorder=4, in_layout=False)
    names = [str(p) for p in found.positions] or list(column_names(found))
    step = max(1, len(names) // 16)
    axes.set_xticks(range(0, len(names), step), names[::step])
    every = max(1, len(found.rows) // 15)
    axes.set_yticks(range(0, len(found.rows), every), found.rows[::every])
    axes.set(xlim=(-0.6, max(1, len(names)) - 0.3), ylim=(-0.8, max(1, len(found.rows)) - 0.2))
    axes.set(xlabel="position" if found.positions else "head", ylabel="layer")
    measure = "effect on faithfulness" if falls else "score"
    axes.set_title(f"size: {measure}; orange: below 0", fontsize=6, color=GREY, loc="left")


def _colour(value: float) -> str:
    return NEGATIVE if value < 0 else POSITIVE


def _edges(run: ShownRun, spots: Mapping[str, Any]) -> list[tuple[str, str, float, float]]:
    """Edges of an edge circuit between drawn nodes: source, target, effect or score, strength."""
    found = []
    for edge in run.found.get("edges") or []:
        source, target = edge_ends(str(edge.get("edge", "")))
        effect = short(edge.get("effect"))
        value = (short(edge.get("score")) if effect is None else effect) or 0.0
        if source in spots and target in spots:
            found.append((source, target, value))
    top = max((abs(value) for _, _, value in found), default=0.0) or 1.0
    return [(s, t, v, abs(v) / top) for s, t, v in found]


def _spot(place: Place, found: NodeLayout) -> tuple[float, float]:
    y = place.row + (0.4 if place.kind in ("mlp", "neuron") else 0.0)
    column = float(found.heads) if place.kind in ("mlp", "neuron") else float(place.unit or 0)
    if place.position is None:
        return column, y
    inner = (column + 0.5) / (found.heads + 1) - 0.5
    return found.positions.index(place.position) + 0.8 * inner, y


def _strongest(run: ShownRun, spots: Mapping[str, Any], most: int) -> list[tuple[str, str, float]]:
    """The strongest pairs by share, which has no sign: source, target, strength."""
    if run.scores is None or not run.scores.pairs:
        return []
    matrix = run.scores.pairs.get("share", next(iter(run.scores.pairs.values()))).abs()
    rows = {s: i for i, s in enumerate(run.scores.sources) if s in spots}
    columns = {t: j for j, t in enumerate(run.scores.targets) if t in spots}
    pairs = [
        (source, target, value)
        for source, i in rows.items()
        for target, j in columns.items()
        if math.isfinite(value := float(matrix[i, j])) and value and source != target
    ]
    pairs.sort(key=lambda pair: -pair[2])
    top = pairs[0][2] if pairs else 1.0
    return [(s, t, value / top) for s, t, value in reversed(pairs[:most])]


FIGURES: Mapping[str, tuple[Callable[[ShownRun, "Axes", PlotOptions], None], float]] = {
    "roc": (_roc, 1.0),
    "faithfulness": (_faithfulness, 0.7),
    "random_circuits": (_random_circuits, 0.7),
    "heatmap": (_heatmap, 1.1),
    "circuit": (_circuit, 1.3),
}

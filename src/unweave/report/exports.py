"""A run in the formats of other tools: EAP-IG, Neuronpedia, CSV."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from unweave import __version__
from unweave.errors import UnweaveError
from unweave.experiments.files import plain
from unweave.report.circuit_files import Shape, edge_parts, to_eap_ig
from unweave.report.data import effects
from unweave.report.folder import ShownRun
from unweave.report.layout import context_index
from unweave.report.prompts import informative_query
from unweave.sites import HEAD_KINDS, Site, parse


def shape_of(run: ShownRun) -> Shape:
    """Layers, heads and width of the run's model.

    Raises:
        UnweaveError: When run.json does not say.
    """
    found: Any = run.record.get("shape")
    try:
        return Shape(
            int(found["layers"]),
            int(found["heads"]),
            int(found["d_model"]),
            bool(found["parallel"]),
        )
    except (KeyError, TypeError, ValueError):
        raise UnweaveError(
            f"{run.folder / 'run.json'} does not tell the model's shape (layers, heads, d_model, "
            "parallel): run unweave discover again with this version"
        ) from None


def eap_ig(run: ShownRun) -> str:
    """The graph that EAP-IG and MIB read."""
    scores = {site: run.score(site) for site in run.ranking}
    rated = run.edge_scores
    values = {} if rated is None else dict(zip(rated.edges, rated.values.tolist(), strict=True))
    return _dump(to_eap_ig(run.circuit, shape_of(run), scores, _pairs(run), values))


def _pairs(run: ShownRun) -> dict[tuple[str, str], float]:
    if run.scores is None or not run.scores.pairs:
        return {}
    matrix = run.scores.pairs.get("signed", next(iter(run.scores.pairs.values())))
    return {
        (source, target): value
        for source, row in zip(run.scores.sources, matrix.tolist(), strict=True)
        for target, value in zip(run.scores.targets, row, strict=True)
        if value
    }


def neuronpedia(run: ShownRun) -> str:
    """An attribution graph: circuit nodes and the metric, linked by relevance.

    A node stands at its position of the example prompt. The format has no node for all positions:
    such a node stands where it matters, if the circuit was explained. Else a head stands where it
    attends most to another token than itself and the first, and anything else at the last token.
    Its label says that it acts everywhere. The metric is the logit node above the last layer.
    """
    prompt = run.example
    tokens = [str(token) for token in prompt.get("tokens") or []]
    last = max(len(tokens) - 1, 0)
    top = 1 + max((parse(node).point.layer for node in run.circuit.nodes), default=0)
    ids = {node: _node_id(parse(node), _where(run, node, last)) for node in run.circuit.nodes}
    answer = ", ".join(map(str, prompt.get("answers") or [])) or run.about("task")
    logit = f"{top}_0_{last}"
    nodes = [
        {
            "node_id": ids[name],
            "feature": _unit(parse(name)),
            "layer": _layer(parse(name)),
            "ctx_idx": int(ids[name].rpartition("_")[2]),
            "feature_type": _feature_type(parse(name)),
            "jsNodeId": f"{ids[name].rpartition('_')[0]}-0",
            "clerp": name if parse(name).position is not None else f"{name} (all positions)",
            "influence": run.score(name),
            "activation": None,
        }
        for name in run.circuit.nodes
    ]
    metric = {"node_id": logit, "feature": 0, "layer": str(top), "ctx_idx": last}
    metric |= {"feature_type": "logit", "jsNodeId": f"{top}_0-0", "clerp": answer}
    metric |= {"influence": None, "activation": None, "is_target_logit": True}
    links = _edge_links(run, ids, logit) if run.circuit.level == "edge" else _links(run, ids, logit)
    return _dump(
        {
            "metadata": _metadata(run, str(prompt.get("clean", "")), tokens),
            "qParams": {
                "pinnedIds": [*ids.values(), logit],
                "supernodes": [],
                "linkType": "both",
                "clickedId": next(iter(ids.values()), logit),
                "sg_pos": "",
            },
            "nodes": [*nodes, metric],
            "links": links,
        }
    )


def _links(run: ShownRun, ids: Mapping[str, str], logit: str) -> list[dict[str, Any]]:
    """Untested relevance between the nodes of a circuit, and each node's score."""
    links = [
        {"source": ids[source], "target": ids[target], "weight": value}
        for (source, target), value in _pairs(run).items()
        if source in ids and target in ids and math.isfinite(value)
    ]
    for name in run.circuit.nodes:
        score = run.score(name)
        if score is not None and math.isfinite(score):
            links.append({"source": ids[name], "target": logit, "weight": score})
    return links


def _edge_links(run: ShownRun, ids: Mapping[str, str], logit: str) -> list[dict[str, Any]]:
    """The edges of a circuit by their effect, q, k and v of a reader added up.

    The format has no q, k and v, and the embedding is not a node of a circuit: edges from the input
    are left out.
    """
    weights: dict[tuple[str, str], float] = {}
    for edge in run.circuit.edges:
        source, target, _ = edge_parts(edge.name)
        weight = edge.effect if math.isfinite(edge.effect) else edge.score
        if source in ids and math.isfinite(weight):
            key = ids[source], logit if target == "logits" else ids[target]
            weights[key] = weights.get(key, 0.0) + weight
    return [{"source": a, "target": b, "weight": weight} for (a, b), weight in weights.items()]


def edges_csv(run: ShownRun) -> str:
    """One line an edge of the circuit, in the method's order.

    Raises:
        UnweaveError: For a circuit of nodes.
    """
    if not run.circuit.edges:
        raise UnweaveError(
            f"{run.folder} holds a circuit of nodes: export csv, or discover with --level edge"
        )
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ["order", "edge", "source", "target", "branch", "effect", "low", "high", "score"]
    )
    for order, edge in enumerate(run.circuit.edges, 1):
        numbers = map(_number, (edge.effect, *edge.interval, edge.score))
        writer.writerow([order, edge.name, *edge_parts(edge.name), *numbers])
    return file.getvalue()


def _where(run: ShownRun, node: str, last: int) -> int:
    """The token of the example prompt that a node is drawn at."""
    site = parse(node)
    index = context_index(site.position, run.example)
    if index is None and site.position is None:
        index = context_index(run.facts.get(node, {}).get("at") or None, run.example)
    if index is not None:
        return index
    found = run.patterns.get(str(site.at(None)))
    if site.position is not None or found is None or found.shape[1] < last + 1:
        return last
    return informative_query(found[0, : last + 1, : last + 1])


def _node_id(site: Site, where: int) -> str:
    if site.point.kind == "embed":
        return f"E_{where}_{where}"
    # Heads and the MLP of one layer must not share a name, nor a head and its query.
    part = "" if site.point.kind == "z" else f"{site.point.kind}-"
    stack = "enc-" if site.point.stack else ""
    return f"{stack}{site.point.layer}_{part}{_unit(site)}_{where}"


def _unit(site: Site) -> int:
    return 0 if site.unit is None else site.unit


def _layer(site: Site) -> str:
    return "E" if site.point.kind == "embed" else str(site.point.layer)


def _feature_type(site: Site) -> str:
    if site.point.kind in HEAD_KINDS:
        return "attention head"
    names = {"mlp": "mlp", "neuron": "mlp neuron", "embed": "embedding"}
    return names.get(site.point.kind, "residual stream")


def _metadata(run: ShownRun, prompt: str, tokens: list[str]) -> dict[str, Any]:
    text = f"{run.about('task')}-{run.about('model')}-{run.about('method')}"
    info: dict[str, Any] = {"generator": {"name": "unweave", "version": __version__}}
    try:
        created = datetime.fromisoformat(str(run.record.get("created")))
        info["create_time_ms"] = int(created.timestamp() * 1000)
    except ValueError:
        pass
    return {
        "slug": re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "circuit",
        "scan": run.about("model"),
        "prompt_tokens": tokens,
        "prompt": prompt,
        "info": info,
        "generation_settings": plain(run.record.get("options") or {}),
    }


def nodes_csv(run: ShownRun) -> str:
    """One line a node, in the method's order."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["order", "site", "layer", "unit", "position", "effect", "score", "in_circuit"])
    inside, falls = set(run.circuit.nodes), effects(run)[0]
    for order, name in enumerate(run.ranking, 1):
        site, score = parse(name), run.score(name)
        numbers = [_number(falls.get(name)), _number(score)]
        where = "" if site.position is None else _cell(str(site.position))
        unit = "" if site.unit is None else site.unit
        place = [order, _cell(name), site.point.layer, unit, where]
        writer.writerow([*place, *numbers, name in inside])
    return file.getvalue()


def _number(value: Any) -> str:
    return repr(float(value)) if isinstance(value, int | float) and math.isfinite(value) else ""


def _cell(text: str) -> str:
    """A spreadsheet would run a cell that begins like a formula."""
    return f"'{text}" if text[:1] in "=+-@" else text


def _dump(record: Mapping[str, Any]) -> str:
    return json.dumps(plain(record), allow_nan=False) + "\n"


FORMATS: dict[str, tuple[str, Callable[[ShownRun], str]]] = {
    "eap-ig": ("eap-ig.json", eap_ig),
    "neuronpedia": ("neuronpedia.json", neuronpedia),
    "csv": ("nodes.csv", nodes_csv),
    "edges": ("edges.csv", edges_csv),
}

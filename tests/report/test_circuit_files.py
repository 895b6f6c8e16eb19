"""Exports for other tools, and circuits read back."""

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from run_folders import write_run
from safetensors.torch import load_file

from unweave import cli
from unweave.circuits import Circuit, Scores
from unweave.errors import UnweaveError
from unweave.experiments.files import write_json
from unweave.report.circuit_files import Shape, from_eap_ig, read_circuit, to_eap_ig
from unweave.report.exports import FORMATS
from unweave.report.folder import read_shown

GPT2 = Shape(12, 12, 768)
NUMBER, BOOL, TEXT = {"type": "number"}, {"type": "boolean"}, {"type": "string"}


def record(required: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": required | more}


def named(pattern: str, value: dict[str, Any]) -> dict[str, Any]:
    keys = {"type": "object", "additionalProperties": False}
    return keys | {"patternProperties": {f"^({pattern})$": value}}


NODE = r"a\d+\.h\d+|m\d+"
EAP_IG = record(
    {
        "cfg": record(
            {
                "n_layers": {"type": "integer"},
                "n_heads": {"type": "integer"},
                "d_model": {"type": "integer"},
                "parallel_attn_mlp": BOOL,
            }
        ),
        "nodes": named(f"input|logits|{NODE}", record({"in_graph": BOOL}, score=NUMBER)),
        "edges": named(
            rf"(input|{NODE})->(a\d+\.h\d+<[qkv]>|m\d+|logits)",
            record({"score": NUMBER, "in_graph": BOOL}),
        ),
    }
)
# After the schema that Neuronpedia publishes for attribution graphs.
NEURONPEDIA = record(
    {
        "metadata": record(
            {
                "slug": {"type": "string", "pattern": "^[a-z0-9-]+$"},
                "scan": TEXT,
                "prompt": TEXT,
                "prompt_tokens": {"type": "array", "items": TEXT},
            }
        ),
        "qParams": record({}, pinnedIds={"type": "array", "items": TEXT}, linkType=TEXT),
        "nodes": {
            "type": "array",
            "items": record(
                {
                    "node_id": TEXT,
                    "feature": {"type": ["integer", "null"]},
                    "layer": {"type": ["string", "integer"]},
                    "ctx_idx": {"type": "integer", "minimum": 0},
                    "feature_type": TEXT,
                    "jsNodeId": TEXT,
                    "clerp": TEXT,
                },
                influence={"type": ["number", "null"]},
            ),
        },
        "links": {
            "type": "array",
            "items": record({"source": TEXT, "target": TEXT, "weight": NUMBER}),
        },
    }
)


def circuit(*nodes: str) -> Circuit:
    scores = tuple(float(i + 1) for i in range(len(nodes)))
    return Circuit(nodes, scores, 0.9, 1.0, 144, "ioi", "gpt2", "cdt")


def strict(text: str) -> Any:
    """Reads JSON that has no NaN in it."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_eap_ig_has_the_names_of_the_field() -> None:
    graph = to_eap_ig(circuit("a9.h6", "m5", "a0.h1"), GPT2)
    assert len(graph["nodes"]) == 158
    assert len(graph["edges"]) == 32_491
    assert {"input->a0.h0<q>", "a0.h0->m0", "m3->a4.h11<v>", "m11->logits"} <= set(graph["edges"])
    jsonschema.validate(graph, EAP_IG)


def test_eap_ig_keeps_what_was_not_scored() -> None:
    scores = {"a0.h0": 0.5, "a0.h1": -2.0, "a1.h0": math.nan}
    graph = to_eap_ig(circuit("a0.h1"), Shape(2, 2, 8), scores, {("a0.h1", "a1.h1"): 0.25})
    nodes, edges = graph["nodes"], graph["edges"]
    assert nodes["a0.h1"] == {"in_graph": True, "score": -2.0}
    assert nodes["a0.h0"] == {"in_graph": False, "score": 0.5}
    assert nodes["m0"] == nodes["a1.h0"] == nodes["logits"] == {"in_graph": True}
    assert edges["a0.h1->logits"] == {"in_graph": True, "score": -2.0}
    assert edges["a0.h1->a1.h1<k>"]["score"] == 0.25
    assert not edges["a0.h0->m0"]["in_graph"]


def test_round_trips_keep_circuits_equal(tmp_path: Path) -> None:
    found = circuit("a9.h6", "m5", "a0.h1")
    write_json(tmp_path / "ours.json", found.to_json())
    write_json(tmp_path / "eap.json", to_eap_ig(found, GPT2, {"a3.h3": 0.5}))
    assert read_circuit(tmp_path / "ours.json") == found
    assert read_circuit(tmp_path / "eap.json") == found


def test_circuits_of_others_are_read_without_our_key(tmp_path: Path) -> None:
    graph = to_eap_ig(circuit("a9.h6", "m5"), GPT2, {"a3.h3": 0.5})
    del graph["unweave"]
    again = from_eap_ig(graph)
    assert set(again.nodes) == {"a9.h6", "m5"}
    assert from_eap_ig(to_eap_ig(again, GPT2)) == again
    # Where only edges were scored, the nodes in the graph are the circuit.
    for node in graph["nodes"].values():
        node.pop("score", None)
        node["in_graph"] = False
    graph["nodes"]["a4.h4"]["in_graph"] = True
    assert from_eap_ig(graph).nodes == ("a4.h4",)


def test_our_key_does_not_overrule_a_changed_graph() -> None:
    graph = to_eap_ig(circuit("a9.h6", "m5"), GPT2)
    graph["nodes"]["m5"]["in_graph"] = False
    assert from_eap_ig(graph).nodes == ("a9.h6",)


def test_positions_are_joined_for_eap_ig_and_come_back() -> None:
    found = circuit("a1.h0@end", "a1.h0@S2")
    graph = to_eap_ig(found, Shape(2, 2, 8))
    assert graph["nodes"]["a1.h0"] == {"in_graph": True, "score": 3.0}
    assert from_eap_ig(graph) == found


@pytest.mark.parametrize("name", ["a9.h6", "9.6", "A9.6", "(9, 6)", [9, 6], "L9H6"])
def test_foreign_head_names(tmp_path: Path, name: Any) -> None:
    about = {"task": "t", "model": "m", "method": "x", "total": 9, "schema_version": 1}
    write_json(tmp_path / "c.json", {**about, "nodes": [name, "MLP 5", {"site": "m5@end"}]})
    if name == "L9H6":
        with pytest.raises(UnweaveError, match="not a site"):
            read_circuit(tmp_path / "c.json")
    else:
        assert read_circuit(tmp_path / "c.json").nodes == ("a9.h6", "m5", "m5@end")


def test_what_eap_ig_has_no_name_for_is_refused() -> None:
    for name in ("m3.n17", "a9.h6.q", "a13.h0"):
        with pytest.raises(UnweaveError, match="export csv"):
            to_eap_ig(circuit(name), GPT2)


@pytest.mark.parametrize("positions", [(), ("IO", "end")])
def test_exports_of_a_run(tmp_path: Path, positions: tuple[str, ...]) -> None:
    run = write_run(tmp_path / "run", 3, 2, 5, positions)
    for form in ("eap-ig", "neuronpedia", "csv"):
        assert cli.main(["export", str(run), "--format", form]) == 0
    jsonschema.validate(strict((run / "eap-ig.json").read_text()), EAP_IG)
    graph = strict((run / "neuronpedia.json").read_text())
    jsonschema.validate(graph, NEURONPEDIA)
    ids = {node["node_id"] for node in graph["nodes"]}
    assert len(ids) == len(graph["nodes"]) == 6
    assert {end for link in graph["links"] for end in (link["source"], link["target"])} <= ids
    rows = list(csv.DictReader(io.StringIO((run / "nodes.csv").read_text())))
    assert len(rows) == (3 * 2 + 3) * max(1, len(positions))
    assert sum(row["in_circuit"] == "True" for row in rows) == 5
    assert read_circuit(run / "eap-ig.json") == read_shown(run).circuit


def test_neuronpedia_puts_heads_where_they_look(tmp_path: Path) -> None:
    """A head for all positions stands at the query that attends most to another token."""
    run = write_run(tmp_path / "run", 3, 4, 8)
    assert cli.main(["export", str(run), "--format", "neuronpedia"]) == 0
    nodes = strict((run / "neuronpedia.json").read_text())["nodes"]
    patterns = load_file(run / "patterns.safetensors")
    seen = set()
    for node in nodes:
        name = node["clerp"].removesuffix(" (all positions)")
        if name not in patterns:
            continue
        rows = patterns[name][0].tolist()
        weights = {
            (q, k): w for q, row in enumerate(rows) for k, w in enumerate(row) if k not in (0, q)
        }
        assert node["ctx_idx"] == max(weights, key=lambda at: weights[at])[0], name
        assert "all positions" in node["clerp"]
        seen.add(node["ctx_idx"])
    assert len(seen) > 1


def test_neuronpedia_puts_explained_nodes_where_they_matter(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 3, 4, 8)
    record = json.loads((run / "circuit.json").read_text())
    labels = ["end", "IO", "", "nowhere"]
    for node, label in zip(record["nodes"], labels * 2, strict=True):
        node["at"] = label
    before = strict(FORMATS["neuronpedia"][1](read_shown(run)))["nodes"]
    write_json(run / "circuit.json", record)
    after = strict(FORMATS["neuronpedia"][1](read_shown(run)))["nodes"]
    positions = read_shown(run).example["positions"]
    assert len(before) >= len(labels * 2)  # nodes come first, then what they read and write
    for old, new, label in zip(before, after, labels * 2, strict=False):
        assert new["ctx_idx"] == positions.get(label, old["ctx_idx"])
    assert before != after


def test_hostile_run_exports_strict_json(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 3, 2, 4, ("=IO", "end"), hostile=True)
    for form, schema in (("eap-ig", EAP_IG), ("neuronpedia", NEURONPEDIA)):
        assert cli.main(["export", str(run), "--format", form, "-o", str(tmp_path / form)]) == 0
        jsonschema.validate(strict((tmp_path / form).read_text()), schema)
    assert cli.main(["export", str(run), "--format", "csv", "-o", str(tmp_path / "csv")]) == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "csv").read_text())))
    assert {row["position"] for row in rows} == {"'=IO", "end"}


def test_errors_name_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", 2, 2, 2)
    assert cli.main(["export", str(run), "--format", "eapig"]) == 2
    assert "did you mean eap-ig" in capsys.readouterr().err
    record = json.loads((run / "run.json").read_text())
    del record["shape"]
    write_json(run / "run.json", record)
    assert cli.main(["export", str(run), "--format", "eap-ig"]) == 2
    assert "shape" in capsys.readouterr().err
    (tmp_path / "no.json").write_text('{"a": 1}')
    with pytest.raises(UnweaveError, match="is not a circuit"):
        read_circuit(tmp_path / "no.json")


def test_notebooks_show_circuits_and_scores(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 3, 2, 4, ("<b>", "end"), hostile=True)
    shown = read_circuit(run)._repr_html_() + Scores.load(run / "scores.safetensors")._repr_html_()
    assert "a0.h0@&lt;b&gt;" in shown
    assert "<b>" not in shown.replace("<b>Scores", "").replace("<b>4 of", "")

"""From the results of a comparison to a row each, means over seeds, and the paper's figures."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from unweave.evaluation.api import random_test_json
from unweave.evaluation.random_circuits import Draws, compare_with_random

Record = Mapping[str, Any]
# Figures of a row that are averaged over seeds.
FIGURES = (
    "curve_gap",
    "curve_area",
    "k80",
    "k95",
    "auc",
    "sweep_auc",
    "faithfulness",
    "off",
    "beaten",
    "farther",
    "up_to",
    "seconds",
    "forwards",
    "score_forwards",
)


def row(result: Record, reference: Record) -> dict[str, Any]:
    """One line of the table: a method's ranking, and the circuit that it chose itself."""
    key = {name: result[name] for name in ("task", "method", "seed")}
    if "error" in result:
        return {**key, "error": result["error"]}
    curve, roc = result["curve"], result["roc"].get("published")
    found = {
        **key,
        "score": result["score"],
        "search": result["search"],
        "curve_gap": curve["curve_gap"],
        "curve_area": curve["curve_area"],
        "k80": curve["k80"],
        "k95": curve["k95"],
        "auc": roc and roc["auc"],
        "sweep_auc": roc and roc["sweep_auc"],
        "roc": result["roc"],
        "size": len(result["circuit"]),
        "faithfulness": result["faithfulness"],
        "interval": result["interval"],
        "off": abs(1 - result["faithfulness"]),
        "seconds": result["seconds"],
        "forwards": sum(result["forwards"].values()),
        "score_forwards": result["forwards"]["score"],
        "circuit": result["circuit"],
        "curve": curve,
        "curves": result["curves"],
    }
    if "error" in reference:
        return found
    drawn = [Draws(d["size"], d["fraction"], tuple(d["faithfulness"])) for d in reference["random"]]
    test = random_test_json(
        compare_with_random(result["faithfulness"], len(result["circuit"]), drawn)
    )
    own = test["own"] or {}
    return found | {
        "nodes": reference["nodes"],
        "random_circuits": test,
        "beaten": own.get("beaten"),
        "farther": own.get("farther"),
        "up_to": test["up_to"],
    }


def summary(rows: Sequence[Record]) -> list[dict[str, Any]]:
    """Means over seeds for each task and method, with the spread where there are several."""
    keys = list(dict.fromkeys((row["task"], row["method"]) for row in rows))
    return [_mean(key, [r for r in rows if (r["task"], r["method"]) == key]) for key in keys]


def _mean(key: tuple[str, str], rows: Sequence[Record]) -> dict[str, Any]:
    good = [row for row in rows if "error" not in row]
    found: dict[str, Any] = {"task": key[0], "method": key[1], "seeds": len(good)}
    if errors := [row["error"] for row in rows if "error" in row]:
        found["error"] = errors[0]
    if not good:
        return found
    found["size"] = statistics.mean(row["size"] for row in good)
    spread = {}
    for name in FIGURES:
        values = [row.get(name) for row in good]
        # A crossing that one seed never reaches has no mean.
        there = [value for value in values if value is not None]
        whole = len(there) == len(values)
        found[name] = statistics.mean(there) if there and whole else None
        if whole and len(there) > 1:
            spread[name] = statistics.stdev(there)
    return found | ({"spread": spread} if spread else {})


def figures(rows: Sequence[Record], references: Sequence[Record]) -> dict[str, Any]:
    """The paper's three figures as data, one entry for each dot or line."""
    good = [row for row in rows if "error" not in row]
    shared = [r for r in references if "error" not in r]
    return {
        "runtime_against_auc": [
            _pick(row, "seconds", "forwards", "auc", "sweep_auc") for row in good if row["auc"]
        ],
        "faithfulness_against_size": [
            *(line for row in good for line in _lines(row)),
            *(_random_line(reference) for reference in shared),
            *(
                {**_pick(reference), "line": name, "sizes": [known["size"]]}
                | {"faithfulness": [known["faithfulness"]]}
                for reference in shared
                for name, known in reference["known"].items()
            ),
        ],
        "random_circuits_beaten": [
            {
                **_pick(row, "size", "nodes", "faithfulness"),
                "fractions": [share["fraction"] for share in row["random_circuits"]["shares"]],
                "beaten": [share["beaten"] for share in row["random_circuits"]["shares"]],
                "farther": [share["farther"] for share in row["random_circuits"]["shares"]],
                "mark": row["random_circuits"]["mark"],
            }
            for row in good
            if "random_circuits" in row
        ],
    }


def _lines(row: Record) -> list[dict[str, Any]]:
    """A method's curve under the main ablation and under the others."""
    main = {**_pick(row), "line": row["method"], **_xy(row["curve"])}
    others = [
        {**_pick(row), "line": f"{row['method']}, {ablation} ablation", **_xy(curve)}
        for ablation, curve in row["curves"].items()
    ]
    return [main, *others]


def _random_line(reference: Record) -> dict[str, Any]:
    return {
        **_pick(reference),
        "line": "random",
        "sizes": [draws["size"] for draws in reference["random"]],
        "faithfulness": [statistics.mean(draws["faithfulness"]) for draws in reference["random"]],
    }


def _xy(curve: Record) -> dict[str, Any]:
    return {"sizes": curve["sizes"], "faithfulness": curve["faithfulness"]}


def _pick(record: Record, *names: str) -> dict[str, Any]:
    return {name: record[name] for name in ("task", "method", "seed", *names) if name in record}

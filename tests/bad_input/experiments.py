"""Options of the commands that run experiments, or show them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from bad_input.case import Case
from bad_input.tampered_runs import finished, state

from unweave.behaviours.file import find_task
from unweave.model.loading import load

W = "wired-induction"
D, C, E = f"discover {W} -q", f"compare {W} -q", "evaluate {bad} -q"
NOTES = "{bad}/notes.txt"
LARGE = "9" * 23  # a seed beyond 64 bits

COMMANDS: list[tuple[str, str]] = [
    ("discover", "Missing argument 'task'"),
    ("discover ''", "unknown task ''"),
    ("discover ioii", "did you mean ioi"),
    ("discover '[/red]'", "[/red]"),
    ("discover nothing.jsonl", "nothing.jsonl cannot be read"),
    ("discover {bad}", "a task is a name or a file that ends in .jsonl or .csv"),
    ("discover {bad}/empty.jsonl", "the file is empty"),
    (f"{D} extra", "unexpected extra argument"),
    (f"{D} --method eapp", "did you mean eap"),
    (f"{D} --method ''", "unknown method ''"),
    (f"{D} --method eap+", "unknown search ''"),
    (f"{D} --method +top", "unknown score ''"),
    (f"{D} --method '[red]+top'", "unknown score '[red]'"),
    (f"{D} --score eapp", "unknown score 'eapp': did you mean eap"),
    (f"{D} --search elim", "unknown search 'elim': did you mean eliminate"),
    (f"{D} --ablation average", "unknown ablation 'average'"),
    (f"{D} --granularity layer", "unknown node kind 'layer'"),
    (f"{D} --granularity head@", "granularity 'head@': expected head"),
    (f"{D} --granularity head@S2", "expected head, head@position"),
    (f"{D} --granularity neuron", "has no nodes of kind neuron"),
    (f"{D} --level path", "level 'path': expected node or edge"),
    (f"{D} --level edge --granularity qkv", "use granularity head"),
    (f"{D} --level edge --method patching", "score patching rates nodes, not edges"),
    (f"{D} --level edge --search algorithm1", "search algorithm1 finds nodes, not edges"),
    (f"{D} --level edge -o edge_price=-1", "edge_price is -1.0"),
    (f"{C} --level edges", "level 'edges': expected node or edge"),
    (f"{D} -o max_size", "expected name=value"),
    (f"{D} -o =3", "option ''"),
    (f"{D} -o max_size=", "max_size is '', expected a whole number from 0"),
    (f"{D} -o max_size=many", "max_size is 'many', expected a whole number"),
    (f"{D} -o max_size=-5", "max_size is -5, expected a whole number from 0"),
    (f"{D} -o max_size=1e3", "max_size is '1e3'"),
    (f"{D} -o max_size={'9' * 5000}", "max_size is"),
    (f"{D} -o price=nan", "price is nan, expected a number from 0 to 1"),
    (f"{D} -o price=inf", "price is inf"),
    (f"{D} -o price=-0.1", "price is -0.1"),
    (f"{D} -o price=2", "price is 2.0"),
    (f"{D} -o pool=-1", "pool is -1.0"),
    (f"{D} -o rounds=0", "rounds is 0, expected a whole number from 1"),
    (f"{D} -o tolerance=x", "tolerance is 'x'"),
    (f"{D} -o order=foo", "order is 'foo', expected measured or left"),
    (f"{D} --method cdt -o rules=papr", "did you mean paper"),
    (f"{D} --method cdt -o prompts=0", "prompts is 0, expected a whole number from 1"),
    (f"{D} --method cdt -o pairs=maybe", "pairs is 'maybe', expected true or false"),
    (f"{D} -o steps=3", "has an option 'steps'"),
    (f"{D} -o '[/red]=3'", "has an option '[/red]'"),
    (f"{D} --search algorithm1 -o select=many", "select 'many': expected top:N"),
    (f"{D} --search algorithm1 -o select=top:0", "select 'top:0'"),
    (f"{D} --search algorithm1 -o select=top:1.5", "select 'top:1.5'"),
    (f"{D} --search algorithm1 -o select=top:nan", "select 'top:nan'"),
    (f"{D} --search algorithm1 -o select=percentile:101", "select 'percentile:101'"),
    (f"{D} --search algorithm1 -o measure=foo", "measure is 'foo'"),
    (f"{D} --score eap-ig -o steps=0", "steps is 0"),
    (f"{D} -n 0", "--prompts"),
    (f"{D} -n -1", "--prompts"),
    (f"{D} -n 1.5", "--prompts"),
    (f"{D} -n 99999999", "99999999 prompts"),
    (f"{D} --held-out 0", "--held-out"),
    (f"{D} --held-out 99999999", "99999999 prompts"),
    (f"{D} --held-out 1", "--held-out"),
    (f"discover {{bad}}/five.jsonl -m {W} -q --ablation zero", "1 held-out prompt gives no error"),
    (f"{D} --seed x", "--seed"),
    (f"{D} --seed {LARGE}", "a seed of 77 bits: expected a number from -2**63 to 2**63 - 1"),
    (f"{D} --seed -{LARGE}", "a seed of 77 bits"),
    (f"{D} --seed {LARGE} --dry-run", "a seed of 77 bits"),
    (f"{C} --seeds 0,{LARGE}", "a seed of 77 bits"),
    (f"{C} --protocol mib --seeds {LARGE}", "a seed of 77 bits"),
    (f"mib run {W} --seeds {LARGE}", "a seed of 77 bits"),
    (f"reproduce {W} --seed {LARGE}", "a seed of 77 bits"),
    (f"{D} --model nowhere/x.gguf", "no such file or folder"),
    (f"{D} --model ''", "has no config.json"),
    (f"{D} --device nonsense", "nonsense"),
    (f"{D} --device hpu", "device hpu cannot be used"),
    (f"{D} --device privateuseone", "device privateuseone cannot be used"),
    (f"{D} --device nonsense --memory 4GB", "device nonsense cannot be used"),
    (f"{D} --device cuda:99 --memory 4GB", "device cuda:99 cannot be used"),
    (f"{D} --memory {'9' * 400}GB", "is not a size"),
    (f"{D} --resume", "--resume needs the run's folder"),
    (f"{D} --out {NOTES}", "is a file: choose another folder"),
    (f"{D} --out {NOTES}/x", "is a file: choose another folder"),
    (f"{D} --out {{bad}}", "is not empty: add --resume"),
    (f"{D} --out {{bad}} --resume", "holds no run"),
    (f"{D} --out /proc/nowhere", "cannot write into /proc/nowhere"),
    (f"{D} --out {'x' * 300}", "File name too long"),
    (f"discover {W} --quiet=3", "--quiet"),
    ("discover ioi --model wired-induction -q", "single tokens"),
    ("compare", "Missing argument 'tasks'"),
    ("compare ioii", "did you mean ioi"),
    (f"compare ioi {W}", "run on different models"),
    (f"{C} --methods pathing", "unknown method 'pathing': did you mean patching"),
    (f"{C} --methods eap,,x+y", "unknown score 'x'"),
    (f"{C} --score x", "unknown score 'x'"),
    (f"{C} --search x", "unknown search 'x'"),
    (f"{C} --seeds a", "expected numbers such as 0,1,2"),
    (f"{C} --seeds 1.5", "expected numbers such as 0,1,2"),
    (f"{C} --seeds ,", "nothing to compare"),
    (f"{C} --seeds {'9' * 5000}", "expected numbers such as 0,1,2"),
    (f"{C} --ablation men", "unknown ablation 'men': did you mean mean"),
    (f"{C} --granularity layer", "unknown node kind 'layer'"),
    (f"{C} --methods eap -o nothing=3", "has an option 'nothing'"),
    (f"{C} --methods eap -o max_size=-1", "max_size is -1"),
    (f"{C} --methods eap -o max_size", "max_size"),
    (f"{C} --held-out 0", "--held-out"),
    (f"{C} --draws 0", "--draws"),
    (f"{C} --draws 10001", "--draws"),
    (f"reproduce {W} --draws 10001", "--draws"),
    (f"{C} --out {NOTES}", "is a file: choose another folder"),
    (f"{C} --out {NOTES}/x", "is a file: choose another folder"),
    (f"{C} --out /proc/nowhere", "cannot write into /proc/nowhere"),
    ("evaluate", "Missing argument 'run'"),
    ("evaluate nowhere", "no run folder nowhere"),
    ("evaluate '[/red]'", "no run folder [/red]"),
    (f"evaluate {'x' * 300}", "no run folder xxx"),
    (f"explain {'x' * 300}", "no run folder xxx"),
    (f"report {'x' * 300}", "no run folder xxx"),
    (f"report {'x/' * 3000}", "no run folder x/x"),
    (f"evaluate {NOTES}", "no run folder"),
    ("evaluate {bad}", "run.json is not there"),
    ("explain", "no run folder: expected unweave explain RUN"),
    ("explain nowhere", "no run folder nowhere"),
    ("explain {bad}", "run.json is not there"),
    ("report", "Missing argument 'runs'"),
    ("report nowhere", "no run folder nowhere"),
    ("report {bad}", "run.json is not there"),
    ("plot nowhere -f roc -o x.png", "no run folder nowhere"),
    ("plot {bad} -f rock -o x.png", "unknown figure 'rock': did you mean roc"),
    ("plot {bad} -f roc -o x.gif", "x.gif: expected a file that ends in"),
    ("plot {bad} -f roc", "Missing option '--out'"),
    ("plot {bad} -f roc -o x.png --width 0", "--width"),
    *(
        (f"plot {{bad}} -f roc -o x.png --width {width}", "--width")
        for width in ("inf", "1e9", "101", "nan", "-inf")
    ),
    ("plot {bad} -f roc -o x.png --round 0", "--round"),
    ("plot {bad} -f roc -o x.png --compare nowhere", "compare.json is not there"),
    ("export nowhere -f csv", "no run folder nowhere"),
    ("export {bad} -f cvs", "unknown format 'cvs': did you mean csv"),
    ("export {bad}", "Missing option '--format'"),
    ("tasks show", "Missing argument 'task'"),
    ("tasks show '[/red]'", "[/red]: a task is a name or a file"),
    (f"tasks show {W} -n 0 --model {W}", "0 prompts: expected 1"),
    ("tasks validate {bad}/empty.jsonl --file-only --model x", "--file-only loads no model"),
    ("tasks validate nowhere.jsonl --file-only", "cannot be read"),
    (f"tasks validate {NOTES} --file-only", "notes.txt"),
    ("tasks nonsense", "No such command 'nonsense'"),
    ("methods extra", "unexpected extra argument"),
    (f"{C} --protocol mibs", "--protocol mibs: expected curve or mib"),
    (f"{C} --protocol mib --ablation zero", "--ablation has no meaning in MIB's protocol"),
    (f"{C} --protocol mib -o steps=3", "--option has no meaning in MIB's protocol"),
    ("mib run", "Missing argument 'tasks'"),
    (f"mib run {W} --level heads", "unknown level 'heads': known"),
    (f"mib run {W} --methods gimm", "unknown method 'gimm'"),
    (f"mib run {W} --methods eap-ig:steps=0", "steps is 0"),
    (f"mib run {W} --methods eap:steps", "expected name=value"),
    (f"mib run {W} --seeds a", "--seeds a: expected numbers"),
    ("mib pack", "Missing argument 'folder'"),
    ("mib pack {bad}", "mib.json is not there"),
]

ON_A_RUN: list[tuple[str, str]] = [
    (f"{E} --parts curves", "unknown part 'curves' of an evaluation: did you mean curve"),
    (f"{E} --parts '[/red]'", "unknown part '[/red]'"),
    (f"{E} -n 0", "-n"),
    (f"{E} -n 1", "-n"),
    (f"{E} -n 99999999", "99999999 prompts"),
    (f"{E} --draws 0", "--draws"),
    (f"{E} --draws 10001", "--draws"),
    (f"{E} --repeat 10001", "--repeat"),
    (f"{E} --repeat -1", "--repeat"),
    (f"{E} --device nonsense", "nonsense"),
    ("explain {bad} a9.h9", "a9.h9 is not in the circuit"),
    ("explain {bad} -n 1", "--prompts"),
    ("explain {bad} --budget 1", "--budget"),
    ("explain {bad} --budget nan", "--budget"),
    ("explain {bad} --roles nowhere.toml", "nowhere.toml"),
    ("paths {bad} -n 1", "--prompts"),
    ("paths {bad} --expansions 0", "--expansions"),
    ("paths {bad} --expansions 10001", "--expansions"),
    ("paths {bad} --count 10001", "--count"),
    ("paths {bad} --device nonsense", "nonsense"),
    ("report {bad} -o /proc/nowhere/x.html", "cannot write"),
    (f"report {{bad}} -o {'x' * 300}", "File name too long"),
    (f"export {{bad}} -f csv -o {'x' * 300}", "File name too long"),
    (f"plot {{bad}} -f heatmap -o {'x' * 300}.png", "File name too long"),
    ("plot {bad} -f heatmap -o x.png --round 9", "round"),
    ("plot {bad} -f heatmap -o x.png --position nowhere", "nowhere"),
    ("plot {bad} -f roc -o x.png", "evaluat"),
    ("plot {bad} -f heatmap -o /proc/nowhere/x.png", "cannot write"),
    ("export {bad} -f csv -o /proc/nowhere/x.csv", "cannot write"),
    ("export {bad} -f edges", "holds a circuit of nodes"),
    (f"{D} --method eap --out {{bad}}", "is not empty: add --resume"),
    (f"{D} --method eap --resume --out {{bad}}", "prompts was 4, is None"),
    (f"{D} --resume --out {{bad}}", "search was 'top', is 'eliminate'"),
    (f"{D} --method eap --resume --no-bos -n 4 --held-out 4 --out {{bad}}", "bos was None"),
]


def scratch(folder: Path) -> None:
    for name in ("notes.txt", "empty.jsonl"):
        (folder / name).write_bytes(b"")
    (folder / "five.jsonl").write_text("\n".join(map(json.dumps, _five())))


@cache
def _five() -> list[dict[str, Any]]:
    """So few lines that one is left to evaluate on."""
    drawn = find_task(W).prompts(load(W), 5, 0, "discover")
    return [
        {
            "clean": one.clean,
            "corrupted": one.corrupted,
            "answer": one.answers[0],
            "distractor": one.distractors[0],
        }
        for one in drawn
    ]


CASES = [Case(command[:90], command, says, scratch) for command, says in COMMANDS]
CASES += [Case(f"run: {command}"[:90], command, says, finished) for command, says in ON_A_RUN]
CASES += [
    Case("an unfinished run is evaluated", E, "is not finished: continue with --resume", state({})),
    Case("an unfinished run is shown", "report {bad}", "is not finished", state({})),
    Case("a folder of odd bytes", f"{D} --out {{bad}}/\udcff", "its name is not UTF-8"),
    Case("a comparison of odd bytes", f"{C} --out {{bad}}/\udcff", "its name is not UTF-8"),
]

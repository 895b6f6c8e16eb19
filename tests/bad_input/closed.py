"""Files and folders that the user may not read, or not write into: found before any work."""

from bad_input.case import Case, Make, file, folder, mode, steps
from bad_input.tampered_runs import finished

W = "wired-induction"
DENIED = "Permission denied"
READ_ONLY = steps(finished, mode(".", 0o555))


def open_model(target):
    folder("gpt2")(target)
    for path in (target, *target.iterdir()):
        path.chmod(0o755)


def closed_folder(target):
    (target / "closed").mkdir(mode=0)


def read_only(target):
    (target / "read-only").mkdir(mode=0o555)


CLOSED: list[tuple[str, str, Make]] = [
    ("check {bad}/closed", "config.json cannot be read: Permission denied", closed_folder),
    (f"discover {W} -q --model {{bad}}/closed", "config.json cannot be read", closed_folder),
    ("report {bad}/closed", "is not readable", closed_folder),
    ("check {bad}", DENIED, steps(open_model, mode("config.json", 0))),
    ("check {bad}", "model.safetensors", steps(open_model, mode("model.safetensors", 0))),
    (
        "discover {bad}/own.jsonl",
        "own.jsonl cannot be read: Permission denied",
        steps(file("own.jsonl", "{}"), mode("own.jsonl", 0)),
    ),
    (
        "tasks validate {bad}/own.csv --file-only",
        "own.csv cannot be read: Permission denied",
        steps(file("own.csv", "{}"), mode("own.csv", 0)),
    ),
    ("report {bad}", "run.json cannot be read", steps(finished, mode("run.json", 0))),
    ("evaluate {bad} -q", "circuit.json cannot be read", steps(finished, mode("circuit.json", 0))),
    (
        "report {bad}",
        "scores.safetensors cannot be read",
        steps(finished, mode("scores.safetensors", 0)),
    ),
    ("evaluate {bad} -q", "cannot write into", READ_ONLY),
    ("explain {bad} -q", "cannot write into", READ_ONLY),
    ("paths {bad} -q", "cannot write into", READ_ONLY),
    ("report {bad}", "cannot write", READ_ONLY),
    ("export {bad} -f csv -o {bad}/x.csv", "cannot write", READ_ONLY),
    (f"discover {W} -q --out {{bad}}/read-only/a/b", "cannot write into", read_only),
    # Before the model is loaded: there is none.
    (f"discover {W} -q -m no/such.gguf --out {{bad}}/read-only/a", "cannot write into", read_only),
    (f"compare {W} -q -m no/such.gguf --out {{bad}}/read-only/a", "cannot write into", read_only),
    (f"mib run {W} -m no/such.gguf --out {{bad}}/read-only/a", "cannot write into", read_only),
    (f"reproduce {W} -q -m no/such.gguf --out {{bad}}/read-only/a", "cannot write", read_only),
    (f"compare {W} -q --methods eap --out {{bad}}/read-only/a", "cannot write into", read_only),
    (f"mib run {W} --methods eap --out {{bad}}/read-only/a", "cannot write into", read_only),
    (f"reproduce {W} -q --out {{bad}}/read-only/a", "cannot write into", read_only),
]
CASES = [
    Case(f"{number}: {command}"[:90], command, says, make, nobody=True)
    for number, (command, says, make) in enumerate(CLOSED)
]

"""Names and options of `check` and `models`, and paths of every kind."""

from bad_input.case import Case, file

COMMANDS: list[tuple[str, str]] = [
    ("check", "check needs a model or a family"),
    ("check ''", "check needs a model or a family"),
    ("check gpt2 --architecture gpt2", "check needs a model or a family"),
    ("check --architecture", "--architecture"),
    ("check --architecture ''", "architecture"),
    ("check --architecture gtp2", "did you mean gpt2"),
    ("check --architecture transformer_lens", "has no tiny configs"),
    ("check --architecture '[/red]'", "architecture '[/red]' is not supported"),
    ("check --architecture ../gpt2", "is not supported"),
    ("check a b", "unexpected extra argument"),
    ("check --foo", "No such option: --foo"),
    (
        "discover wired-induction --precision half",
        "precision half: expected float32, tf32, float64",
    ),
    ("discover wired-induction --precision", "--precision"),
    ("attribute x --memory much", "memory 'much' is not a size: expected e.g. '4GB'"),
    ("discover wired-induction --memory 0", "memory '0' is not a size"),
    ("check --device cpu gpt2", "No such option: --device"),
    ("check wired-induction", "is built by code"),
    ("check tracr:reverse", "is built by code"),
    ("check tracr:foo", "unknown model 'tracr:foo'"),
    ("check gtp2", "did you mean gpt2"),
    ("check smollm2-135", "did you mean smollm2-135m"),
    ("check SMOLLM2-135M", "unknown model 'SMOLLM2-135M'"),
    ("check 'a b'", "unknown model 'a b'"),
    ("check '[/red]'", "[/red]"),
    ("check '[bold]x[/bold]'", "[bold]x[/bold]"),
    ("check x/[/red]", "[/red]"),
    ("check ~nosuchuser", "no such file or folder: ~nosuchuser"),
    ("check ~nosuchuser/model", "no such file or folder: ~nosuchuser/model"),
    ("check ./nowhere", "no such file or folder: ./nowhere"),
    ("check /no/such/folder", "no such file or folder: /no/such/folder"),
    ("check model.gguf", "no such file or folder: model.gguf"),
    ("check model.onnx", "no such file or folder: model.onnx"),
    ("check a/b/c/d", "no such file or folder: a/b/c/d"),
    ("check 'C:\\models\\x'", "no such file or folder"),
    ("check é/ü", "unknown model"),
    ("check /dev/null", "is a plain file"),
    ("check /proc/self/mem", "is a plain file"),
    (f"check {'x' * 300}", "cannot be looked up"),
    (f"check /{'x' * 300}", "cannot be looked up"),
    (f"check {'x/' * 3000}", "cannot be looked up"),
    ("check {bad}/notes.txt", "is a .txt file: expected a .gguf file"),
    ("check {bad}/notes.txt/x", "no such file or folder"),
    ("check {bad}/empty.safetensors", "is a .safetensors file: expected a .gguf file"),
    ("check {bad}/pytorch_model.bin", "is a .bin file: expected a .gguf file"),
    ("check {bad}/MODEL.GGUF", "is a .GGUF file"),
    ("check {bad}/.", "has no config.json"),
    ("models extra", "unexpected extra argument"),
    ("models --foo", "No such option: --foo"),
    ("models --json=3", "--json"),
    ("modles", "No such command 'modles'"),
    ("''", "No such command"),
    ("--foo", "No such option: --foo"),
    ("--debug", "Missing command"),
    ("attribute a --model ./nowhere", "no such file or folder: ./nowhere"),
    ("attribute a --model '[/red]'", "[/red]"),
    ("attribute a --model x/[/red]", "[/red]"),
]


def files(folder):
    for name in ("notes.txt", "empty.safetensors", "pytorch_model.bin", "MODEL.GGUF"):
        file(name)(folder)


CASES = [Case(command[:60], command, says, files) for command, says in COMMANDS]

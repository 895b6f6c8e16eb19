"""Bad task files: each is one line on stderr, with exit code 2 and no traceback.

A case is one line of the table: a name, the file's content, and what the error says. `LINE` with
changes makes a fifth line after four good ones; a JSON line of its own is given as text.
"""

import json
import os

import pytest

from unweave import cli
from unweave.behaviours.prompt import MOST_CHARACTERS
from unweave.behaviours.rows import MOST_BYTES
from unweave.model import loading

PAIR = {"clean": "keys of Paris", "corrupted": "key of Paris"}
GOOD = PAIR | {"answer": " are", "distractor": " is"}
FOUR = [json.dumps(GOOD | {"clean": f"{i} keys of Paris"}) for i in range(4)]
HEAD = "clean,corrupted,answer,distractor\n"
LONG = "word " * MOST_CHARACTERS


def after(line: str | bytes) -> bytes:
    """A line after four good ones."""
    return "\n".join(FOUR).encode() + b"\n" + (line.encode() if isinstance(line, str) else line)


def line(drop: str = "", **changes) -> bytes:
    """A good line with some fields changed, after four good ones."""
    fields = {name: value for name, value in (GOOD | changes).items() if name != drop}
    return after(json.dumps(fields))


def labelled(**changes) -> bytes:
    rows = [{"text": f"{i} why", "label": ("generic", "directed")[i % 2]} for i in range(8)]
    rows[4] |= changes
    return "\n".join(map(json.dumps, rows)).encode()


CASES = {
    "empty.jsonl": (b"", "the file is empty"),
    "blank.jsonl": (b" \n\n\t\n", "the file is empty"),
    "three.jsonl": ("\n".join(FOUR[:3]).encode(), "3 prompts in the file"),
    "twice.jsonl": (after(FOUR[0]), "line 5: the clean text of line 1 again"),
    "latin.jsonl": (after(b'{"clean": "caf\xe9"}'), "cannot be read: not UTF-8"),
    "binary.jsonl": (bytes(range(256)), "cannot be read: not UTF-8"),
    "brace.jsonl": (after("{"), "line 5: not JSON"),
    "deep.jsonl": (after("[" * 100_000), "line 5: not JSON"),
    "list.jsonl": (after("[1]"), "line 5: expected an object"),
    "number.jsonl": (after("3"), "line 5: expected an object"),
    "null.jsonl": (after("null"), "line 5: expected an object"),
    "digits.jsonl": (after(f'{{"clean": {"9" * 5000}}}'), "line 5: not JSON"),
    "name_twice.jsonl": (after('{"clean": "a", "clean": "b"}'), "'clean' is there twice"),
    "no_clean.jsonl": (line(drop="clean"), "'clean' is missing"),
    "no_answer.jsonl": (line(drop="answer"), "expected 'answer' or 'answers': neither"),
    "both.jsonl": (line(answers=[" a"]), "expected 'answer' or 'answers': both"),
    "unknown.jsonl": (line(clen="x"), "unknown column 'clen': did you mean clean"),
    "unknown_long.jsonl": (line(**{LONG: "x"}), "unknown column 'word word"),
    "clean_number.jsonl": (line(clean=7), "clean is 7: expected a text"),
    "clean_nan.jsonl": (line(clean=float("nan")), "clean is nan: expected a text"),
    "clean_list.jsonl": (line(clean=["a"] * 10**5), "clean is ['a', 'a',"),
    "clean_empty.jsonl": (line(clean=""), "the clean text is empty"),
    "corrupted_null.jsonl": (line(corrupted=None), "'corrupted' is missing"),
    "same.jsonl": (line(corrupted=GOOD["clean"]), "are the same text"),
    "clean_huge.jsonl": (line(clean=LONG), "the clean text has 500,000 characters, at most"),
    "corrupted_huge.jsonl": (line(corrupted="x" * 10**7), "corrupted text has 10,000,000 char"),
    "answer_huge.jsonl": (line(answer=f" {LONG}"), "the answer has 500,001 characters"),
    "surrogate.jsonl": (line(clean="half \ud800"), "lone surrogate"),
    "answer_empty.jsonl": (line(answer=""), "an empty answer"),
    "answer_none.jsonl": (line(answer=[]), "there is no answer"),
    "answer_true.jsonl": (line(answer=True), "answer True: expected a text or a token id"),
    "answer_nan.jsonl": (line(answer=float("nan")), "answer nan: expected a text or a token id"),
    "answer_inf.jsonl": (line(answer=float("inf")), "answer inf: expected a text or a token id"),
    "answer_object.jsonl": (line(answer={"a": 1}), "expected a text or a token id"),
    "answer_joined.jsonl": (line(answer="are"), "begin it with a space, ' are'"),
    "answer_both.jsonl": (line(distractor=" are"), "is an answer and a distractor"),
    "answer_id.jsonl": (line(answer=10**9), "answer 1000000000: smollm2-135m has outputs 0–"),
    "answer_minus.jsonl": (line(answer=-5), "answer -5: smollm2-135m has outputs 0–"),
    "answer_big.jsonl": (line(answer=10**4000), "has outputs 0–"),
    "answer_pieces.jsonl": (line(answer=" qzxvqzxv"), "tokens for smollm2-135m"),
    "answer_many.jsonl": (line(answer=" ab" * 3000), "000 tokens for smollm2-135m"),
    "space.jsonl": (line(clean="keys of Paris "), "ends with a space"),
    "space_alone.jsonl": (line(clean="keys of Paris ", answer="are"), "ends with a space"),
    "spaces.jsonl": (line(distractor=" " * 90), "tokens for smollm2-135m"),
    "positions_list.jsonl": (line(positions=[1]), "expected names with [start, end]"),
    "positions_absent.jsonl": (line(positions={"city": "Oslo"}), "is 0 times in the clean text"),
    "positions_often.jsonl": (line(positions={"s": "s"}), "is 2 times in the clean text"),
    "positions_outside.jsonl": (line(positions={"city": [3, 99]}), "text of 13 characters"),
    "positions_minus.jsonl": (line(positions={"city": [-3, 2]}), "text of 13 characters"),
    "positions_back.jsonl": (line(positions={"city": [5, 2]}), "text of 13 characters"),
    "positions_float.jsonl": (line(positions={"city": [0.5, 2]}), "expected [start, end]"),
    "positions_nan.jsonl": (line(positions={"city": [float("nan"), 2]}), "expected [start, end]"),
    "positions_bool.jsonl": (line(positions={"city": [False, True]}), "expected [start, end]"),
    "positions_end.jsonl": (line(positions={"end": [0, 2]}), "choose another name"),
    "positions_name.jsonl": (line(positions={"a b": [0, 2]}), "cannot name a position"),
    "positions_number.jsonl": (line(positions={"14": [0, 2]}), "cannot name a position"),
    "positions_json.jsonl": (line(positions="{"), "positions is not JSON"),
    "template.jsonl": (line(template=3), "template is 3: expected a text"),
    "header.csv": (HEAD.encode(), "the file is empty"),
    "column.csv": (b"clean,corrupted,answr,distractor\n", "did you mean answer"),
    "columns.csv": (b"clean,clean,answer,distractor\n", "column 'clean' twice"),
    "fields.csv": (f"{HEAD}a,b, c\n".encode(), "3 fields under 4 columns"),
    "quote.csv": (f'{HEAD}"a,b, c\n'.encode(), "not CSV"),
    "cell.csv": (f"{HEAD}{'x' * 200_000},b, c, d\n".encode(), "not CSV: field larger than"),
    "kinds.jsonl": (after('{"text": "why", "label": "a"}'), "keep to one kind"),
    "label_none.jsonl": (labelled(label=None), "label is None: expected the name of a class"),
    "label_float.jsonl": (labelled(label=1.5), "label is 1.5: expected the name of a class"),
    "label_square.jsonl": (labelled(label="²"), "are for a classifier"),
    "label_column.jsonl": (labelled(answer=" x"), "'answer' beside text and label"),
    "text_number.jsonl": (labelled(text=3), "text is 3: expected a text"),
    "text_huge.jsonl": (labelled(text=LONG), "text has 500,000 characters, at most"),
    "one_label.jsonl": (
        "\n".join(json.dumps({"text": f"{i} why", "label": "a"}) for i in range(5)).encode(),
        "every line has the label 'a'",
    ),
}


@pytest.fixture
def loaded(smollm2, monkeypatch):
    monkeypatch.setattr(loading, "load", lambda name, device: smollm2)


def failed(arguments: list[str], capsys) -> str:
    assert cli.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert len(said.err) < 1000
    return said.err


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("name", CASES)
def test_bad_file(tmp_path, capsys, name):
    content, message = CASES[name]
    path = tmp_path / name
    path.write_bytes(content)
    assert message in failed(["tasks", "show", str(path), "-n", "1"], capsys)


PATHS = {
    "none.jsonl": "cannot be read: No such file",
    f"{'x' * 300}.jsonl": "cannot be read: File name too long",
    "folder.jsonl": "cannot be read: it is not a file",
    "pipe.jsonl": "cannot be read: it is not a file",
    "link.jsonl": "cannot be read",
    "null\0.jsonl": "cannot be read: ",
    "~nosuchuser/x.jsonl": "cannot be read: No such file",
    "[/red].jsonl": "cannot be read: No such file",
    "some.txt": "ends in .jsonl or .csv",
    "big.jsonl": "a task file at most 200,000,000: split it",
}


@pytest.mark.parametrize("name", PATHS)
def test_bad_path(tmp_path, capsys, name):
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "link.jsonl").symlink_to("link.jsonl")
    with (tmp_path / "big.jsonl").open("wb") as file:
        file.truncate(MOST_BYTES + 1)  # takes no space
    for command in (["show"], ["validate", "--file-only"]):
        if (command[0], name) == ("validate", "some.txt"):
            assert "expected a file that ends in" in failed(
                ["tasks", "validate", str(tmp_path / name), "--file-only"], capsys
            )
            continue
        assert PATHS[name] in failed(
            ["tasks", command[0], str(tmp_path / name), *command[1:]], capsys
        )

"""Task files: what is read is what was written, and every bad line is found."""

import csv
import io
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unweave.behaviours.file import bad_lines, find_task, read_task
from unweave.behaviours.prompt import Prompt
from unweave.behaviours.sampling import PARTS
from unweave.behaviours.task import task, tasks
from unweave.behaviours.words import Words
from unweave.errors import UnweaveError
from unweave.metrics import LOGIT_DIFFERENCE

GOOD = {
    "clean": "The city of Paris lies in",
    "corrupted": "The city of Rome lies in",
    "answer": " France",
    "distractor": " Italy",
    "positions": {"city": "Paris"},
}


def line(**changes) -> dict:
    """A good line with some fields changed; None drops one."""
    fields = {name: value for name, value in (GOOD | changes).items() if value is not None}
    return fields


def lines(n: int) -> list[dict]:
    verbs = {"answer": " is", "distractor": " are"}  # words that every tokenizer here knows
    return [line(clean=f"In {i} the city of Paris lies in", **verbs) for i in range(n)]


def write(path, rows) -> None:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "cities.jsonl"


BAD = {
    "{": "not JSON",
    "[1]": "expected an object",
    json.dumps(line(clean=None)): "'clean' is missing",
    json.dumps(line(clean=7)): "clean is 7: expected a text",
    json.dumps(line(clean="", positions=None)): "the clean text is empty",
    json.dumps(line(corrupted=GOOD["clean"])): "clean and corrupted are the same",
    json.dumps(line(answr=" x")): "unknown column 'answr': did you mean answer",
    json.dumps(line(answer=None)): "expected 'answer' or 'answers': neither",
    json.dumps(line(answers=[" x"])): "expected 'answer' or 'answers': both",
    json.dumps(line(answer=[])): "there is no answer",
    json.dumps(line(answer="")): "an empty answer",
    json.dumps(line(answer=1.5)): "expected a text or a token id",
    json.dumps(line(answer="France")): "begin it with a space, ' France'",
    json.dumps(line(distractor=" France")): "is an answer and a distractor",
    json.dumps(line(positions=[1, 2])): "expected names with",
    json.dumps(line(positions={"city": "i"})): "is 4 times in the clean text",
    json.dumps(line(positions={"city": "Oslo"})): "is 0 times in the clean text",
    json.dumps(line(positions={"city": [3, 99]})): "in a text of 25 characters",
    json.dumps(line(positions={"city": [3]})): r"expected \[start, end\]",
    json.dumps(line(positions={"end": [3, 4]})): "choose another name",
    json.dumps(line(positions={"my city": [3, 4]})): "cannot name a position",
    json.dumps(line(positions={"14": [3, 4]})): "cannot name a position",
    json.dumps(line(clean="half \ud800", positions=None)): "lone surrogate",
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_line_is_reported_with_its_number_and_reason(file, bad):
    write(file, [*lines(4), "", bad])
    (problem,) = bad_lines(file)
    assert problem.line == 6
    with pytest.raises(UnweaveError, match=rf"cities.jsonl line 6: .*{BAD[bad]}"):
        read_task(file)


def test_every_bad_line_is_reported(file):
    write(file, [*BAD, *lines(3)])
    assert [line for line, _ in bad_lines(file)] == [*range(1, len(BAD) + 1)]
    with pytest.raises(UnweaveError, match=rf"line 1: .* \({len(BAD) - 1} more"):
        read_task(file)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [([], "the file is empty"), (lines(3), "3 prompts in the file"), (lines(2) * 2, "again")],
)
def test_too_few_prompts(file, rows, reason):
    write(file, rows)
    with pytest.raises(UnweaveError, match=reason):
        read_task(file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("clean,corrupted,answer,distractor", "the file is empty"),
        ("clean,corrupted,answer,distractr\n", "unknown column 'distractr': did you mean"),
        ("clean,clean,answer,distractor\n", "column 'clean' twice"),
        ("clean,corrupted,answer,distractor\na,b, c\n", "3 fields under 4 columns"),
        ('clean,corrupted,answer,distractor\n"a,b, c\n', "not CSV"),
    ],
)
def test_bad_csv(tmp_path, text, reason):
    path = tmp_path / "cities.csv"
    path.write_text(text)
    assert any(reason in problem.reason for problem in bad_lines(path))


def test_csv_line_numbers_count_lines_of_the_file(tmp_path):
    path = tmp_path / "cities.csv"
    path.write_text('clean,corrupted,answer,distractor\n"two\nlines",b, c, d\na,a, c, d\n')
    assert [problem.line for problem in bad_lines(path)] == [4]


@pytest.mark.parametrize("name", ["none.jsonl", "folder.jsonl", "latin.jsonl"])
def test_unreadable_file(tmp_path, name):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "latin.jsonl").write_bytes(b'{"clean": "caf\xe9"}')
    with pytest.raises(UnweaveError, match="cannot be read"):
        bad_lines(tmp_path / name)


def test_answers_of_several_tokens(file, tokenized):
    model = tokenized["two-digit BPE"]
    good = line(clean="The {} key", corrupted="The men", answer=" is", distractor=" are")
    words = ("old", "new", "big", "red")
    rows = [good | {"clean": f"The {word} key", "positions": {}} for word in words]
    rows[1]["answer"] = " isareis"
    write(file, rows)
    assert bad_lines(file) == []
    (problem,) = bad_lines(file, model)
    assert problem.line == 2
    assert "' isareis' is 3 tokens" in problem.reason
    assert "choose a single-token answer" in problem.reason
    assert "--first-token" in problem.reason
    with pytest.raises(UnweaveError, match="' isareis' is"):
        _batches(file, model, False)
    assert bad_lines(file, model, first_token=True) == []
    _batches(file, model, True)


def _batches(file, model, first_token: bool) -> list:
    found = find_task(file, first_token)
    return [found.batch(model, part=part) for part in PARTS]


def test_prompts_may_differ_in_length(file, tokenized):
    model = tokenized["WordPiece"]
    prompts = [
        {
            "clean": f"The {'old ' * i}keys near the table",
            "corrupted": "The key near the table",
            "answers": [" are", " were"],
            "distractor": " is",
            "positions": {"subject": "keys"},
        }
        for i in range(6)
    ]
    write(file, prompts)
    for batch in _batches(file, model, False):
        assert set(batch.positions) == {"subject", "end"}
        for row, text in enumerate(batch.texts):
            assert batch.positions["subject"][row] == 1 + text.count("old")
            assert batch.readout.read[row] == 4 + text.count("old")
            assert batch.read_corrupted[row] == 4
        assert not batch.aligned or all("old" not in text for text in batch.texts)


def test_parts_are_disjoint_and_cover_the_file(file, tokenized):
    write(file, lines(20))
    found = read_task(file)
    parts = [
        {prompt.clean for prompt in found.prompts(tokenized["WordPiece"], seed=seed, part=part)}
        for seed, part in enumerate(PARTS)
    ]
    assert [len(part) for part in parts] == [8, 4, 4, 4]
    assert found.sizes == {"discover": 8, "check": 4, "evaluate": 4, "reference": 4}
    assert len(set.union(*parts)) == 20


@pytest.mark.parametrize(
    ("n", "sizes"), [(4, (1, 1, 1, 1)), (5, (2, 1, 1, 1)), (9, (4, 2, 2, 1)), (40, (16, 8, 8, 8))]
)
def test_sizes_of_parts(file, n, sizes):
    write(file, lines(n))
    found = read_task(file).sizes
    assert found is not None
    assert tuple(found[part] for part in PARTS) == sizes


def test_a_mirrored_pair_stays_in_one_part(file, tokenized):
    verbs = {"answer": " is", "distractor": " are", "positions": None}
    rows = [line(clean=f"{i} a", corrupted=f"{i} b", **verbs) for i in range(10)]
    flips = [row | {"clean": row["corrupted"], "corrupted": row["clean"]} for row in rows]
    write(file, rows + flips)
    found = read_task(file)
    assert found.sizes == {"discover": 8, "check": 4, "evaluate": 4, "reference": 4}
    for part in PARTS:
        drawn = found.prompts(tokenized["WordPiece"], part=part)
        assert {p.clean for p in drawn} == {p.corrupted for p in drawn}


def test_more_prompts_than_there_are(file, tokenized):
    write(file, lines(20))
    found, model = read_task(file), tokenized["WordPiece"]
    assert len(found.prompts(model, 100)) == 8
    found.require(model, 8)
    with pytest.raises(UnweaveError, match="cities has 8 prompts for part 'discover', 9 were"):
        found.require(model, 9)
    with pytest.raises(UnweaveError, match="99999999 prompts: expected 1 to 10000"):
        found.require(model, 99999999)


def test_token_ids_are_answers_too(file, tokenized):
    model = tokenized["WordPiece"]
    rows = [line(clean=f"{i} keys", answer=5, distractor=6, positions=None) for i in range(4)]
    write(file, [*rows, line(clean="The keys", answer=10**6, distractor=6, positions=None)])
    (problem,) = bad_lines(file, model)
    assert problem.line == 5
    assert "has outputs 0–" in problem.reason


texts = st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=12)


@st.composite
def prompt_rows(draw) -> dict:
    clean = draw(texts)
    start = draw(st.integers(0, len(clean) - 1))
    stop = draw(st.integers(start + 1, len(clean)))
    answers = draw(st.lists(texts, min_size=2, max_size=4, unique=True))
    return {
        "clean": clean,
        "corrupted": draw(texts.filter(lambda text: text != clean)),
        "answers": [f" {text}" for text in answers[1:]],
        "distractors": [f" {answers[0]}"],
        "positions": {"there": [start, stop]},
    }


several = st.lists(prompt_rows(), min_size=4, max_size=6, unique_by=lambda row: row["clean"])


@given(several)
def test_what_is_read_is_what_was_written(tmp_path_factory, tokenized, rows):
    folder = tmp_path_factory.mktemp("tasks")
    write(folder / "some.jsonl", rows)
    table = io.StringIO()
    writer = csv.DictWriter(table, rows[0])
    writer.writeheader()
    for row in rows:
        cells = {name: "|".join(row[name]) for name in ("answers", "distractors")}
        writer.writerow(row | cells | {"positions": json.dumps(row["positions"])})
    (folder / "some.csv").write_bytes(table.getvalue().encode())
    bars = any("|" in text for row in rows for text in row["answers"] + row["distractors"])
    words = Words(tokenized["WordPiece"])
    for name in ["some.jsonl"] if bars else ["some.jsonl", "some.csv"]:
        if bad_lines(folder / name):
            # A pair and its flip count once, so that four lines may be too few.
            assert len({frozenset((row["clean"], row["corrupted"])) for row in rows}) < 4
            continue
        sampler = read_task(folder / name).sampler
        read = [p for part in PARTS for p in sampler(words, 0, part)]
        found = {prompt.clean: prompt for prompt in read}
        assert len(read) == len(found) == len(rows)
        for row in rows:
            prompt = found[row["clean"]]
            assert prompt.corrupted == row["corrupted"]
            assert list(prompt.answers) == row["answers"]
            assert list(prompt.distractors) == row["distractors"]
            assert prompt.spans == {"there": tuple(row["positions"]["there"])}


@given(several, st.data())
def test_bad_lines_among_good_ones(tmp_path_factory, rows, data):
    path = tmp_path_factory.mktemp("tasks") / "some.jsonl"
    rows = [json.dumps(row) for row in rows]
    bad = data.draw(st.lists(st.integers(0, len(rows)), min_size=1, unique=True))
    for index in sorted(bad, reverse=True):
        rows.insert(index, data.draw(st.sampled_from(sorted(BAD))))
    path.write_text("\n".join(rows))
    wanted = [i for i, row in enumerate(rows, start=1) if row in BAD]
    assert [line for line, _ in bad_lines(path)] == wanted


@given(st.binary(max_size=200), st.sampled_from(["some.jsonl", "some.csv"]))
def test_rubbish_is_never_a_crash(tmp_path_factory, content, name):
    path = tmp_path_factory.mktemp("tasks") / name
    path.write_bytes(content)
    with suppress(UnweaveError):
        assert bad_lines(path)


def test_find_task(file):
    assert find_task("ioi") is tasks["ioi"]
    write(file, lines(5))
    assert find_task(str(file)).name == "cities"
    with pytest.raises(UnweaveError, match="did you mean docstring"):
        find_task("docstrings")
    with pytest.raises(UnweaveError, match=r"ends in .jsonl or .csv"):
        find_task("cities.txt")


def test_a_task_is_one_decorated_function(tokenized, monkeypatch):
    monkeypatch.setattr(tasks, "_entries", dict(tasks._entries))

    @task("colours", metric=LOGIT_DIFFERENCE, relative=("thing+1",))
    def colours(words, n, rng):
        """Snow is white."""
        things = words.single(["stone", "river", "apple", "table", "horse", "music"])
        return [
            Prompt(
                f"The {thing} and the {other} said {word}",
                f"The {thing} and the {thing} said {word}",
                (" is",),
                (" are",),
                spans={"thing": (4, 4 + len(thing))},
            )
            for thing, other, word in (rng.sample(things, 3) for _ in range(n))
        ]

    found = find_task("colours")
    assert found is colours
    assert found.summary == "Snow is white."
    batch = found.batch(tokenized["WordPiece"], 10)
    assert len(batch) == 10
    assert (batch.positions["thing+1"] == 2).all()


def templated(kinds: int, each: int) -> list[dict]:
    """Lines of several templates."""
    return [
        row | {"clean": f"{kind} {row['clean']}", "template": f"kind {kind}"}
        for kind in range(kinds)
        for row in lines(each)
    ]


def test_one_template_in_four_is_kept_for_evaluation(tmp_path, smollm2):
    path = tmp_path / "kinds.jsonl"
    write(path, templated(8, 10))
    found = read_task(path)
    assert len(found.new_templates) == 2
    assert found.sizes is not None
    drawn = {
        part: found.prompts(smollm2, 99, 0, part, per_group=99, only_correct=False)
        for part in PARTS
    }
    assert {part: len(prompts) for part, prompts in drawn.items()} == found.sizes
    assert sum(found.sizes.values()) == 80
    new = set(found.new_templates)
    kinds = {part: {prompt.template for prompt in prompts} for part, prompts in drawn.items()}
    assert not new & (kinds["discover"] | kinds["check"])
    assert new < kinds["evaluate"], "both kinds of templates are measured"
    assert new <= kinds["reference"], "means of new templates come from their own prompts"
    texts = [prompt.clean for prompts in drawn.values() for prompt in prompts]
    assert len(texts) == len({*texts})


@pytest.mark.parametrize(("kinds", "each", "kept"), [(2, 10, 0), (3, 10, 1), (3, 1, 0), (3, 2, 1)])
def test_templates_are_kept_where_there_are_enough(tmp_path, kinds, each, kept):
    path = tmp_path / "kinds.jsonl"
    write(path, [*templated(kinds, each), *lines(4 if each == 1 else 0)])
    assert len(read_task(path).new_templates) == kept

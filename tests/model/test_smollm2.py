"""The default model, real weights: against transformers, against the format's definition."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.closeness import assert_close

from unweave.model import sources
from unweave.model.gguf_file import open_gguf
from unweave.model.loading import oracle
from unweave.model.model import Model


def test_smollm2_equals_transformers(smollm2: Model) -> None:
    reference = oracle("smollm2-135m")
    reference.set_attn_implementation("eager")  # sdpa is our kernel too, and then all bits agree
    tokens = torch.randint(49152, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = reference(tokens).logits
    found = smollm2.logits(tokens)
    assert_close(found, expected)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    embedding = smollm2.network.body.embedding.tokens
    assert embedding is not None
    assert embedding.dtype == torch.float32


def test_smollm2_weights_by_hand(smollm2: Model) -> None:
    """Q4_1 from its definition, d·q + m for 32 weights at a time, and k's rows back in order."""
    file = open_gguf(sources.bundled("smollm2-135m"))
    head, d_head = 1, 64
    rows = []
    for row in file.tensors["blk.3.attn_k.weight"].data[head * d_head : (head + 1) * d_head]:
        weights: list[np.float32] = []
        for block in row.reshape(-1, 20):
            d, m = (np.float32(v) for v in block[:4].view(np.float16))
            weights += [d * (q & 15) + m for q in block[4:].tolist()]
            weights += [d * (q >> 4) + m for q in block[4:].tolist()]
        rows.append(weights)
    original = [rows[2 * (i % 32) + i // 32] for i in range(d_head)]
    found = smollm2.network.body.blocks[3].attention.k.weight[head * d_head : (head + 1) * d_head]
    assert torch.equal(found, torch.tensor(np.array(original, dtype=np.float32)))


def test_smollm2_knows_who_gets_the_drink(smollm2: Model) -> None:
    assert not smollm2.prepend_bos
    logits = smollm2.logits("When Mary and John went to the store, John gave a drink to")
    assert smollm2.decode(int(logits[0, -1].argmax())) == " Mary"


def test_smollm2_tokenizer(smollm2: Model) -> None:
    def pieces(text: str) -> list[str]:
        return [smollm2.decode(i) for i in smollm2.encode(text)[0]]

    assert pieces("in the year 1732") == ["in", " the", " year", " ", "1", "7", "3", "2"]
    assert pieces("<|im_start|>hi<|im_end|>") == ["<|im_start|>", "hi", "<|im_end|>"]
    assert smollm2.single_token(" Mary") is not None
    assert smollm2.single_token("1732") is None


def test_smollm2_text_survives(smollm2: Model) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer is not None

    # The vocabulary lacks the bytes of control characters and of far planes.
    letters = st.characters(max_codepoint=0xFFFF, exclude_categories=["C"])

    @settings(deadline=None, max_examples=50)
    @given(text=st.text(letters, max_size=40))
    def survives(text: str) -> None:
        assert tokenizer.decode(smollm2.encode(text)[0]) == text

    survives()

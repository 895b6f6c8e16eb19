import pytest
from tiny_tokenizers import byte_level_bpe, metaspace, tiny, wordpiece

from unweave.model.model import Model


@pytest.fixture(scope="session")
def tokenized() -> dict[str, Model]:
    """Tiny random decoders by the kind of their tokenizer."""
    return {
        "two-digit BPE": tiny("bpe", byte_level_bpe(digits=2), bos=False),
        "two-digit BPE with BOS": tiny("bpe-bos", byte_level_bpe(digits=2), bos=True),
        "three-digit BPE": tiny("bpe-3", byte_level_bpe(digits=3), bos=False),
        "one-digit Metaspace": tiny("metaspace", metaspace(), bos=True),
        "WordPiece": tiny("wordpiece", wordpiece(), bos=False),
    }

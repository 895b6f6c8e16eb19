"""`Model`: a network with its tokenizer, ready to take text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unweave.display.tables import block, table
from unweave.errors import UnweaveError
from unweave.model.devices import device_of
from unweave.model.program import Inputs, logits
from unweave.model.tokenizing import encoded
from unweave.model.weights import Block, Network, tensors
from unweave.model.window import unwindowed, windowed
from unweave.sites import HEAD_KINDS, Point, Site, head_point

Family = Literal["decoder", "encoder", "encoder-decoder", "image"]


@dataclass(frozen=True, eq=False)
class Model:
    """A transformer and how text enters it.

    Args:
        name: What the user called it.
        network: The weights as records.
        architecture: The family's name, transformers' `model_type`.
        tokenizer: A transformers tokenizer, or None when only token tensors are used.
        prepend_bos: Whether text gets a BOS token in front (decoders only).
        context: How many positions a model with rotary positions was made for; None where its
            config does not say, and where positions are learned one by one.
    """

    name: str
    network: Network
    architecture: str
    tokenizer: Any | None = None
    prepend_bos: bool = False
    context: int | None = None

    @property
    def family(self) -> Family:
        if self.network.encoder is not None:
            return "encoder-decoder"
        if self.network.body.embedding.patches is not None:
            return "image"
        causal = self.network.body.blocks[0].attention.causal
        return "decoder" if causal else "encoder"

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of a text and the characters that each token covers ((0, 0) for specials)."""
        tokenizer = self._tokenizer()
        ids, spans = encoded(tokenizer, text, special=self.family != "decoder")
        if self.prepend_bos:
            ids, spans = [tokenizer.bos_token_id, *ids], [(0, 0), *spans]
        return ids, spans

    def single_token(self, text: str) -> int | None:
        """The id of a text that is one token (mind the leading space), else None."""
        # A translator's answers are in the other language, which Marian cuts by another model.
        name = "text_target" if self.family == "encoder-decoder" else "text"
        ids = self._tokenizer()(**{name: text}, add_special_tokens=False)["input_ids"]
        return ids[0] if len(ids) == 1 else None

    def decode(self, token: int) -> str:
        return self._tokenizer().decode([token])

    def inputs(self, x: "str | Sequence[str] | Int[Tensor, 'batch position'] | Inputs") -> Inputs:
        """Text, texts (padded and masked) or a token tensor, as inputs on the model's device."""
        if isinstance(x, Inputs):
            return x
        if isinstance(x, Tensor):
            tokens = x if x.ndim == 2 else x[None]
            return self.rows([row.tolist() for row in tokens])
        texts = [x] if isinstance(x, str) else list(x)
        if not texts:
            raise UnweaveError("no text given: expected a string, a list of strings or a tensor")
        rows = [self.encode(text)[0] for text in texts]
        for text, row in zip(texts, rows, strict=True):
            if not row:
                raise UnweaveError(f"text {text!r} has no tokens: give at least one word")
        return self.rows(rows)

    def rows(self, rows: Sequence[Sequence[int]], decoder: Sequence[int] | None = None) -> Inputs:
        """Token ids as inputs on the model's device.

        Args:
            decoder: An encoder-decoder's decoder tokens so far; its start token unless given.

        Raises:
            UnweaveError: For a row that is longer than the model's limit, and for a token that is
                not in its vocabulary.
        """
        for number, row in enumerate(rows):
            what = f"text {number + 1} of {len(rows)}"
            self.check_length(len(row), what)
            self._check_tokens(row, what)
        inputs = pad(rows, self.network.device)
        if self.network.encoder is None:
            return inputs
        prefix = [self.decoder_start()] if decoder is None else list(decoder)
        side = pad([prefix] * len(rows), self.network.device)
        return replace(inputs, decoder=side)

    @property
    def token_limit(self) -> int | None:
        """How many tokens a text may have: learned positions, or those that a rotary model was
        made for; None for positions without a limit (ALiBi, T5)."""
        stack = self.network.encoder or self.network.body
        table = stack.embedding.positions
        return self.context if table is None else len(table) - stack.embedding.position_offset

    def check_length(self, tokens: int, what: str, remedy: str = "shorten it") -> None:
        """Raises when a text has more tokens than the model takes."""
        limit = self.token_limit
        if limit is not None and tokens > limit:
            raise UnweaveError(
                f"{what} has {tokens} tokens and {self.name} takes at most {limit}: {remedy}"
            )

    def decoder_start(self) -> int:
        """The token that a decoder begins with: BART's is its end token, others' is padding."""
        name = "eos_token_id" if self.architecture == "bart" else "pad_token_id"
        found = getattr(self.tokenizer, name, None)
        if found is None:
            raise UnweaveError(
                f"{self.name} is an encoder-decoder whose tokenizer has no {name}: give the "
                "decoder's tokens so far as decoder=[…]"
            )
        return found

    def logits(
        self, x: "str | Sequence[str] | Tensor | Inputs"
    ) -> Float[Tensor, "batch position out"]:
        """The plain forward pass."""
        return logits(self.network, self.inputs(x))

    def to(self, target: torch.dtype | torch.device | str) -> "Model":
        """The model in another dtype or on another device."""
        where = device_of(target) if isinstance(target, str) else target
        network, window = unwindowed(self.network), self.network.window
        moved = network.to(where)
        if window is not None and isinstance(where, torch.device):
            moved = windowed(moved, window.dtype)
        return replace(self, network=moved)

    def heads(self) -> list[Site]:
        """Every attention head, layer by layer, the encoder's first."""
        return [
            Site(head_point("z", layer, stack, attention.cross), head)
            for stack, layer, block in self._blocks()
            for attention in (block.attention, block.cross)
            if attention is not None
            for head in range(attention.heads)
        ]

    def mlps(self) -> list[Site]:
        """The output of every MLP."""
        return [
            Site(Point("mlp", layer, stack))
            for stack, layer, block in self._blocks()
            if block.mlp is not None
        ]

    def check_site(self, site: Site) -> None:
        """Raises unless the site exists in this model, naming what does."""
        point = site.point
        if point.stack == "enc" and self.network.encoder is None:
            raise UnweaveError(f"{site}: this model has no encoder; drop the prefix enc.")
        if point.stack == "enc" and point.kind == "logits":
            raise UnweaveError(f"{site}: an encoder has no logits; drop the prefix enc.")
        stack = self.network.encoder if point.stack == "enc" else self.network.body
        assert stack is not None
        last = len(stack.blocks) - (0 if point.kind == "resid" else 1)
        if point.layer > last:
            raise UnweaveError(f"{site}: this model has layers 0–{last}")
        if point.kind in ("embed", "logits", "resid"):
            return
        block = stack.blocks[point.layer]
        if point.kind in HEAD_KINDS:
            attention = block.cross if point.kind[0] == "c" else block.attention
            if attention is None:
                raise UnweaveError(f"{site}: this model has no cross-attention; use a… for c…")
            count = self.units(point)
            noun = "key-value heads" if count != attention.heads else "heads"
            _check_unit(site, count, noun)
        elif block.mlp is None:
            raise UnweaveError(f"{site}: this model is attention-only, it has no MLPs; name heads")
        elif point.kind == "neuron":
            _check_unit(site, self.units(point), "neurons")

    def units(self, point: Point) -> int:
        """How many nodes an activation can be split into: heads, neurons, or 1."""
        if point.kind not in HEAD_KINDS and point.kind != "neuron":
            return 1
        stack = self.network.encoder if point.stack == "enc" else self.network.body
        assert stack is not None
        block = stack.blocks[point.layer]
        if point.kind == "neuron":
            assert block.mlp is not None
            return block.mlp.inp.shape[0]
        attention = block.cross if point.kind[0] == "c" else block.attention
        assert attention is not None
        return attention.kv_heads if point.kind[-1] in "kv" else attention.heads

    def _blocks(self) -> Iterator[tuple[Literal["", "enc"], int, Block]]:
        if self.network.encoder is not None:
            for layer, block in enumerate(self.network.encoder.blocks):
                yield "enc", layer, block
        for layer, block in enumerate(self.network.body.blocks):
            yield "", layer, block

    def _check_tokens(self, row: Sequence[int], what: str) -> None:
        table = (self.network.encoder or self.network.body).embedding.tokens
        if table is None or not row:
            return
        worst = max(row) if min(row) >= 0 else min(row)
        if not 0 <= worst < len(table):
            raise UnweaveError(
                f"{what} has the token {worst}, and {self.name} knows 0–{len(table) - 1}: is the "
                "tokenizer this model's own?"
            )

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise UnweaveError(
                f"{self.name} has no tokenizer: pass token ids, or load it with tokenizer=…"
            )
        return self.tokenizer

    def __repr__(self) -> str:
        layers = len(self.network.body.blocks)
        heads = self.network.body.blocks[0].attention.heads
        bos = "with BOS" if self.prepend_bos else "no BOS"
        return f"Model({self.name}: {self.architecture}, {layers} layers × {heads} heads, {bos})"

    def _repr_html_(self) -> str:
        body, limit = self.network.body, self.token_limit
        attention = body.blocks[0].attention
        vocabulary = "–" if body.embedding.tokens is None else str(len(body.embedding.tokens))
        weights = sum(tensor.numel() for tensor in tensors(self.network))
        facts = {
            "family": f"{self.architecture} ({self.family})",
            "layers × heads": f"{len(body.blocks)} × {attention.heads}",
            "key-value heads": str(attention.kv_heads),
            "vocabulary": vocabulary,
            "parameters": f"{weights / 1e6:,.1f} million",
            "tokens of a text": "no limit" if limit is None else f"up to {limit}",
            "BOS token in front": "yes" if self.prepend_bos else "no",
            "device": str(self.network.device),
        }
        return block(f"Model {self.name}", (), table((), list(facts.items())))


def _check_unit(site: Site, count: int, noun: str) -> None:
    if site.unit is None or site.unit >= count:
        raise UnweaveError(f"{site}: layer {site.point.layer} has {noun} 0–{count - 1}")


def pad(rows: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Inputs:
    """Rows of token ids, padded on the right with a masked 0."""
    length = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), length, dtype=torch.long)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = True
    return Inputs(mask.to(device), tokens.to(device))

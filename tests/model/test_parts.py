"""One head computed by itself against the run of the whole model."""

import pytest
import torch
from oracles.closeness import assert_close
from oracles.patched import patched
from oracles.tiny import VARIANTS, tiny_inputs, tiny_model

from unweave.model.parts import head_output
from unweave.sites import Point, Site


@pytest.mark.parametrize(("family", "variant"), VARIANTS)
def test_a_head_from_its_own_query_key_and_value(family, variant):
    model = tiny_model(family, variant)
    if model.network.encoder is not None:
        pytest.skip("an encoder-decoder has heads that read another stack")
    inputs = tiny_inputs(family, variant)
    seen = patched(model.network, inputs, [], {})
    for layer, block in enumerate(model.network.body.blocks):
        whole = block.attention
        assert whole is not None
        for unit in range(whole.heads):
            shared = unit // (whole.heads // whole.kv_heads)
            given = {
                part: seen[Point(part, layer)][:, :, unit if part == "q" else shared]
                for part in ("q", "k", "v")
            }
            z = head_output(model, inputs, Site(Point("z", layer), unit))(given)
            assert_close(z, seen[Point("z", layer)][:, :, unit])
            # Another value gives another output: the given ones are what is used.
            other = head_output(model, inputs, Site(Point("z", layer), unit))
            doubled = other({**given, "v": 2 * given["v"]})
            assert torch.allclose(doubled, 2 * z)

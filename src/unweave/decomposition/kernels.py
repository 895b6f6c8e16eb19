"""The removal rules as Triton kernels: each reads β once and writes β′ once.

Same results as `rules.py` up to rounding, which is their twin in tests. The module imports triton:
`fused.py` decides whether it is used. Relevant parts are [source, batch, position, …] and totals
lack the source axis; both are contiguous, so element i of a total belongs to element i of every
source. Type checkers of tests leave them alone: Triton reads their source.
"""

# Triton is not installed everywhere, and makes its own of a function.
# pyright: reportMissingImports=false, reportIndexIssue=false

from typing import no_type_check

import torch
import triton
from jaxtyping import BFloat16, Bool, Float
from torch import Tensor
from triton import language as tl

from unweave.model.algebra import RotaryTable
from unweave.model.weights import Norm

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "quick_gelu": 3, "relu": 4}
_BLOCK = 1024
_SHARED = 8  # sources that a program serves with the totals that it loaded
_FLOOR = torch.finfo(torch.float32).min


@triton.jit
@no_type_check
def _activate(x, KIND: tl.constexpr, parameter):
    if KIND == 0:
        y = x / (1.0 + tl.exp(-x))
    elif KIND == 1:
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == 2:
        inner = parameter * x * (1.0 + 0.044715 * x * x)
        e = tl.exp(-2.0 * tl.abs(inner))
        tanh = (1.0 - e) / (1.0 + e)
        y = 0.5 * x * (1.0 + tl.where(inner < 0.0, -tanh, tanh))
    elif KIND == 3:
        y = x / (1.0 + tl.exp(-1.702 * x))
    else:
        y = tl.maximum(x, 0.0)
    return y


@triton.jit(do_not_specialize=["sources"])
@no_type_check
def _gate_kernel(
    rel_gate,
    rel_up,
    gate,
    up,
    out,
    to,
    count,
    sources,
    parameter,
    KIND: tl.constexpr,
    GATED: tl.constexpr,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`T′ − f(T_g − β_g)·(T_u − β_u)`, or `T′ − f(T − β)` without a gate."""
    cell = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < count
    t_gate = tl.load(gate + cell, mask=inside, other=0.0)
    t_out = tl.load(out + cell, mask=inside, other=0.0)
    t_up = t_out
    if GATED:
        t_up = tl.load(up + cell, mask=inside, other=0.0)
    for k in range(SHARED):
        source = tl.program_id(1).to(tl.int64) * SHARED + k
        here = inside & (source < sources)
        place = source * count + cell
        left = _activate(t_gate - tl.load(rel_gate + place, mask=here, other=0.0), KIND, parameter)
        if GATED:
            left = left * (t_up - tl.load(rel_up + place, mask=here, other=0.0))
        tl.store(to + place, t_out - left, mask=here)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _norm_kernel(
    rel,
    total,
    out,
    gain,
    bias,
    to,
    rows,
    width,
    eps,
    LAYER: tl.constexpr,
    GAIN: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`norm(T) − norm(T − β)`, a row a program."""
    row = tl.program_id(0).to(tl.int64)
    own = row % rows
    column = tl.arange(0, BLOCK)
    inside = column < width
    t = tl.load(total + own * width + column, mask=inside, other=0.0)
    x = t - tl.load(rel + row * width + column, mask=inside, other=0.0)
    if LAYER:
        x = tl.where(inside, x - tl.sum(x, 0) / width, 0.0)
    y = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / width + eps))
    if GAIN:
        y = y * tl.load(gain + column, mask=inside, other=0.0)
    if BIAS:
        y = y + tl.load(bias + column, mask=inside, other=0.0)
    o = tl.load(out + own * width + column, mask=inside, other=0.0)
    tl.store(to + row * width + column, o - y, mask=inside)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _rotate_kernel(
    x,
    cos,
    sin,
    to,
    rows,
    heads,
    width,
    half,
    INTERLEAVED: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Pairs of dimensions turned by their position's angle, all heads of a row a program."""
    row = tl.program_id(0).to(tl.int64)
    own = row % rows
    head = tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (pair < half)
    c = tl.load(cos + own * half + pair, mask=pair < half, other=0.0)
    s = tl.load(sin + own * half + pair, mask=pair < half, other=0.0)
    if INTERLEAVED:
        first = row * heads * width + head * width + 2 * pair
        second = first + 1
    else:
        first = row * heads * width + head * width + pair
        second = first + half
    a = tl.load(x + first, mask=inside, other=0.0)
    b = tl.load(x + second, mask=inside, other=0.0)
    tl.store(to + first, a * c - b * s, mask=inside)
    tl.store(to + second, b * c + a * s, mask=inside)


@triton.jit
@no_type_check
def _rest(total, rel, cell, rel_cell, inside, rel_inside):
    """T − β of a tile; β is 0 where there is none."""
    x = tl.load(total + cell, mask=inside, other=0.0)
    return x - tl.load(rel + rel_cell, mask=rel_inside, other=0.0)


@triton.jit
@no_type_check
def _softmax(scores, softcap, shift, inside, SOFTCAP: tl.constexpr):
    """`softmax(cap(scores) + shift)` over the keys that there are."""
    if SOFTCAP:
        e = tl.exp(-2.0 * tl.abs(scores / softcap))
        tanh = (1.0 - e) / (1.0 + e)
        scores = softcap * tl.where(scores < 0.0, -tanh, tanh)
    scores = tl.where(inside, scores + shift, -float("inf"))
    pattern = tl.exp(scores - tl.max(scores, 1)[:, None])
    return pattern / tl.sum(pattern, 1)[:, None]


@triton.jit(do_not_specialize=["examples", "queries", "keys", "start"])
@no_type_check
def _attention_kernel(
    rel_q,
    rel_k,
    rel_v,
    q,
    k,
    v,
    z,
    shift,
    to,
    examples,
    queries,
    keys,
    start,
    kv_heads,
    group,
    width,
    scale,
    softcap,
    by_example,
    by_head,
    by_query,
    by_key,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One source, example and key head; rows are the queries of the key head's whole group."""
    pair = tl.program_id(0).to(tl.int64)  # source · examples + example
    example, kv_head = pair % examples, tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    query, head = row % queries, kv_head * group + row // queries
    key, column = tl.arange(0, KEYS), tl.arange(0, WIDTH)
    wide, heads = (column < width)[None, :], kv_heads * group

    cell = (query * heads + head)[:, None] * width + column[None, :]
    inside, size = (row < queries * group)[:, None] & wide, queries * heads * width
    own_q = _rest(q, rel_q, example * size + cell, pair * size + cell, inside, inside)
    own = (key * kv_heads + kv_head)[:, None] * width + column[None, :]
    own_inside, own_size = (key < keys)[:, None] & wide, keys * kv_heads * width
    # Keys before `start` have β = 0.
    rel, rel_inside = own - start * kv_heads * width, own_inside & (key >= start)[:, None]
    own, rel = example * own_size + own, pair * (keys - start) * kv_heads * width + rel
    own_k = _rest(k, rel_k, own, rel, own_inside, rel_inside)

    scores = tl.dot(own_q, tl.trans(own_k), input_precision=PRECISION) * scale
    place = example * by_example + (head * by_head + query * by_query)[:, None]
    there = (row < queries * group)[:, None] & (key < keys)[None, :]
    moved = tl.load(shift + place + (key * by_key)[None, :], mask=there, other=0.0)
    pattern = _softmax(scores, softcap, moved, (key < keys)[None, :], SOFTCAP)
    own_v = _rest(v, rel_v, own, rel, own_inside, rel_inside)
    left = tl.dot(pattern, own_v, input_precision=PRECISION)
    own_z = tl.load(z + example * size + cell, mask=inside, other=0.0)
    tl.store(to + pair * size + cell, own_z - left, mask=inside)


@triton.jit
@no_type_check
def _halves_kernel(x, to, width, BLOCK: tl.constexpr):
    """A row as [high, low] in bfloat16, whose sum has 16 bits of it."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row * width + column, mask=inside, other=0.0)
    high = value.to(tl.bfloat16)
    low = (value - high.to(tl.float32)).to(tl.bfloat16)
    tl.store(to + row * 2 * width + column, high, mask=inside)
    tl.store(to + row * 2 * width + width + column, low, mask=inside)


def halves(x: Float[Tensor, "row d"]) -> BFloat16[Tensor, "row two_d"]:
    """[high, low] of every row."""
    x, (rows, width) = x.contiguous(), x.shape
    to = torch.empty(rows, 2 * width, dtype=torch.bfloat16, device=x.device)
    block = min(_BLOCK, triton.next_power_of_2(width))
    _halves_kernel[(rows, triton.cdiv(width, block))](x, to, width, BLOCK=block)
    return to


def check_compiler(device: torch.device) -> None:
    """Compiles and runs the smallest of the kernels; raises whatever is wrong with the compiler."""
    x = torch.ones(1, 1, 1, 16, device=device)
    gate(x, None, x[0], None, x[0], "relu", 0.0)


def gate(
    rel_gate: Tensor,
    rel_up: Tensor | None,
    gate: Tensor,
    up: Tensor | None,
    out: Tensor,
    activation: str,
    parameter: float,
) -> Tensor:
    """`T′ − f(T_g − β_g)·(T_u − β_u)`; without `up` the rule of a plain activation."""
    rel_gate = rel_gate.contiguous()
    rel_up = rel_gate if rel_up is None else rel_up.contiguous()
    gate, out = gate.contiguous(), out.contiguous()
    gated, up = up is not None, gate if up is None else up.contiguous()
    to, count, sources = torch.empty_like(rel_gate), gate.numel(), len(rel_gate)
    grid = (triton.cdiv(count, _BLOCK), triton.cdiv(sources, _SHARED))
    tensors = (rel_gate, rel_up, gate, up, out, to)
    _gate_kernel[grid](
        *tensors,
        count,
        sources,
        parameter,
        KIND=ACTIVATIONS[activation],
        GATED=gated,
        SHARED=_SHARED,
        BLOCK=_BLOCK,
    )
    return to


def norm(rel: Tensor, total: Tensor, w: Norm, out: Tensor) -> Tensor:
    """`norm(T) − norm(T − β)` over the last axis."""
    rel, total, out = rel.contiguous(), total.contiguous(), out.contiguous()
    to, width = torch.empty_like(rel), rel.shape[-1]
    gain, bias = w.gain, w.bias
    block = triton.next_power_of_2(width)
    _norm_kernel[(rel.numel() // width,)](
        rel,
        total,
        out,
        rel if gain is None else gain,
        rel if bias is None else bias,
        to,
        total.numel() // width,
        width,
        w.eps,
        LAYER=w.kind == "layer",
        GAIN=gain is not None,
        BIAS=bias is not None,
        BLOCK=block,
        num_warps=min(16, max(1, block // 256)),
    )
    return to


def rotate(x: Tensor, table: RotaryTable) -> Tensor:
    """Turns each pair of dimensions; dimensions past them stay."""
    x, cos, sin = x.contiguous(), table.cos.contiguous(), table.sin.contiguous()
    heads, width, half = x.shape[-2], x.shape[-1], cos.shape[-1]
    # Dimensions past the pairs are copied with the rest.
    to = torch.empty_like(x) if 2 * half == width else x.clone()
    _rotate_kernel[(x.shape[:-2].numel(),)](
        x,
        cos,
        sin,
        to,
        cos.numel() // half,
        heads,
        width,
        half,
        INTERLEAVED=table.interleaved,
        HEADS=triton.next_power_of_2(heads),
        HALF=triton.next_power_of_2(half),
    )
    return to


def fits_attention(queries: int, keys: int, group: int, width: int) -> bool:
    """Whether a program holds the keys and values of one head on the chip."""
    return keys <= 128 and max(16, triton.next_power_of_2(keys)) * _padded(width) <= 8192


def attention(
    rels: tuple[Tensor, Tensor, Tensor],
    totals: tuple[Tensor, Tensor, Tensor, Tensor],
    visible: Bool[Tensor, "#batch 1 query key"],
    bias: Float[Tensor, "#batch head query key"] | None,
    scale: float,
    softcap: float | None,
    start: int,
    tf32: bool,
) -> Tensor:
    """`z − softmax((T_q − β_q)(T_k − β_k)ᵀ)(T_v − β_v)`.

    Args:
        rels: β of queries, keys and values.
        totals: T of queries, keys, values, and z.
        start: Position of the first key that is relevant.
    """
    rel_q, rel_k, rel_v = (x.contiguous() for x in rels)
    q, k, v, z = (x.contiguous() for x in totals)
    sources, examples, queries, heads, width = rel_q.shape
    keys, kv_heads = k.shape[1:3]
    group = heads // kv_heads
    to = torch.empty_like(rel_q)
    # What is not seen gets a finite floor, as in `pattern_of`: added to a score, it is the floor.
    shift = torch.zeros_like(visible, dtype=q.dtype) if bias is None else bias
    shift = shift.masked_fill(~visible, _FLOOR).expand(examples, heads, queries, keys)
    rows = min(64, max(16, triton.next_power_of_2(group * queries)))
    padded = _padded(width)
    grid = (sources * examples, kv_heads, triton.cdiv(group * queries, rows))
    tensors = (rel_q, rel_k, rel_v, q, k, v, z, shift, to)
    sizes = (examples, queries, keys, start, kv_heads, group, width)
    _attention_kernel[grid](
        *tensors,
        *sizes,
        scale,
        softcap or 1.0,
        *shift.stride(),
        SOFTCAP=softcap is not None,
        PRECISION="tf32" if tf32 else "ieee",
        ROWS=rows,
        KEYS=max(16, triton.next_power_of_2(keys)),
        WIDTH=padded,
        num_warps=4,
    )
    return to


def _padded(width: int) -> int:
    return max(16, triton.next_power_of_2(width))

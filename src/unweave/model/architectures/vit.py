"""ViT: a pre-norm encoder over image patches behind a class token."""

from unweave.errors import UnweaveError
from unweave.model import weights as w
from unweave.model.architectures._encoder import attention, labels, unsupported
from unweave.model.checkpoint import Architecture, Checkpoint, Tiny, architectures


def read(c: Checkpoint) -> w.Network:
    root = c.root("vit.")
    heads, eps = c.get("num_attention_heads"), c.get("layer_norm_eps")
    activation = c.activation("hidden_act")
    for field in ("hidden_size", "intermediate_size", "image_size", "num_channels", "qkv_bias"):
        c.get(field, None)  # visible from the tensors themselves
    for field in ("pooler_output_size", "pooler_act", "encoder_stride"):
        c.get(field, None)  # of parts that are not on the way to the output

    def block(i: int) -> w.Block:
        name = f"{root}layers.{i}"
        parts = ("q_proj", "k_proj", "v_proj", "o_proj")
        body = attention(c, f"{name}.attention", parts, heads)
        mlp = w.Mlp(c.linear(f"{name}.mlp.fc1"), c.linear(f"{name}.mlp.fc2"), activation)
        return w.Block(
            (
                w.Branch(body, pre=c.norm(f"{name}.layernorm_before", "layer", eps)),
                w.Branch(mlp, pre=c.norm(f"{name}.layernorm_after", "layer", eps)),
            )
        )

    body = w.Stack(
        w.Embedding(
            positions=c.tensor(f"{root}embeddings.position_embeddings")[0],
            patches=_patches(c, f"{root}embeddings"),
        ),
        tuple(block(i) for i in range(c.get("num_hidden_layers"))),
        c.norm(f"{root}layernorm", "layer", eps),
    )
    match c.model_class:
        case "ViTForImageClassification":
            head = w.Head((c.linear("classifier"),), first=True, labels=labels(c))
        case "ViTModel":
            c.skip(rf"{root}pooler\..*")
            head = w.Head()
        case _:
            raise unsupported(c, "ViTModel", "ViTForImageClassification")
    return w.Network(body, head)


def _patches(c: Checkpoint, name: str) -> w.Patches:
    """A convolution that steps by its own size is a linear map of each patch."""
    kernel = c.tensor(f"{name}.patch_embeddings.projection.weight")
    size = c.get("patch_size")
    height, width = kernel.shape[2:]
    if height != width:
        raise UnweaveError(f"patch_size = {size!r} is not supported: expected square patches")
    projection = w.Linear(kernel.flatten(1), c.maybe(f"{name}.patch_embeddings.projection.bias"))
    return w.Patches(projection, height, c.tensor(f"{name}.cls_token")[0, 0])


_TINY = {
    "image_size": 12,
    "patch_size": 4,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
}
architectures.register("vit")(
    Architecture(
        read,
        tiny={
            "base model": Tiny("ViTModel", _TINY),
            "classifier": Tiny("ViTForImageClassification", _TINY | {"num_labels": 3}),
            "no biases, relu": Tiny(
                "ViTForImageClassification", _TINY | {"qkv_bias": False, "hidden_act": "relu"}
            ),
            "one channel, wide image": Tiny(
                "ViTModel", _TINY | {"num_channels": 1, "image_size": [8, 16]}
            ),
        },
        wrong={"layer_norm_eps": 0.1},
    )
)

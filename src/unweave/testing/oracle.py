"""transformers as the oracle: tiny models of a family, and what a forward pass of one computes."""

import copy
import inspect
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any, no_type_check

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unweave.errors import UnweaveError
from unweave.model.checkpoint import Tiny
from unweave.model.positions import token_positions
from unweave.model.pretrained import reason
from unweave.model.program import Inputs
from unweave.model.weights import Network
from unweave.registry import nearest


class Widened(TorchFunctionMode):
    """Turns every request for float32 into one for float64.

    transformers computes norms, rotary angles and softmax in float32 even in a float64 model, so
    its own float64 output is right to 1e-7 only, no oracle for a bound of 1e-10.
    """

    @no_type_check  # it would be checked at every operation of a model
    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = Tensor.double if func is Tensor.float else func
        wide = {name: _wide(value) for name, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **wide)


@no_type_check
def _wide(value):
    return torch.float64 if value is torch.float32 else value


def build(tiny: Tiny, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """A random model of transformers. Biases and gains are random too: at their initial 0 and 1 a
    mapping that forgot them would pass."""
    import transformers

    model_class = getattr(transformers, tiny.model_class, None)
    if model_class is None:
        raise UnweaveError(
            f"transformers has no class {tiny.model_class!r}: "
            f"{nearest(tiny.model_class, dir(transformers))}"
        )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        # A copy, since configs write into the dicts that they are given. The families' own special
        # tokens lie past a tiny vocabulary, which transformers warns of.
        fields = {"bos_token_id": 1, "eos_token_id": 2} | copy.deepcopy(dict(tiny.config))
        model = model_class(model_class.config_class(**fields)).eval()
        for tensor in model.state_dict().values():
            if tensor.is_floating_point() and (tensor == tensor.flatten()[0]).all():
                tensor.add_(0.3 * torch.randn_like(tensor))
        if dtype == torch.float64:
            _widen(model)
    return model


def _widen(model: Any) -> None:
    """Converts a model to float64, with the tables that it keeps (GPT-J's sines) computed again.

    Constants, such as rotary frequencies and embedding scales, stay at the float32 values that
    transformers gives them, and so do ours.
    """
    model.double()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with Widened():
        for prefix, module in model.named_modules():
            names = [
                f"{prefix}.{name}".lstrip(".")
                for name, buffer in module.named_buffers(recurse=False)
                if buffer.is_floating_point() and buffer.ndim > 1
            ]
            if any(name not in state for name in names):
                model._init_weights(module)
    model.load_state_dict(state)


def accepts(oracle: nn.Module, argument: str) -> bool:
    return argument in inspect.signature(oracle.forward).parameters


def arguments_for(oracle: nn.Module, inputs: Inputs) -> dict[str, Tensor]:
    """The inputs under transformers' names; a mask only where there is padding."""
    if inputs.pixels is not None:
        return {"pixel_values": inputs.pixels}
    assert inputs.tokens is not None
    arguments = {"input_ids": inputs.tokens}
    if inputs.types is not None:
        arguments["token_type_ids"] = inputs.types
    if not inputs.mask.all():
        arguments["attention_mask"] = inputs.mask.long()
    if not inputs.mask[:, 0].all() and accepts(oracle, "position_ids"):
        arguments["position_ids"] = token_positions(inputs.mask)
    if inputs.decoder is not None:
        decoder = arguments_for(oracle, inputs.decoder)
        arguments |= {f"decoder_{name}": value for name, value in decoder.items()}
    return arguments


def forward(
    oracle: nn.Module,
    inputs: Inputs,
    outputs: Mapping[Any, nn.Module],
    entries: Mapping[Any, nn.Module],
) -> tuple[Tensor, dict[Any, Tensor]]:
    """Runs the oracle.

    Args:
        outputs: Modules whose output is wanted, by a name.
        entries: Modules whose first input is wanted, by a name.

    Returns:
        Its logits or last hidden states, and what was wanted, by name.

    Raises:
        UnweaveError: When transformers cannot run it: it looks at some fields of a config (dropout)
            only then.
    """
    seen: dict[Any, Tensor] = {}
    wide = next(oracle.parameters()).dtype == torch.float64
    with ExitStack() as stack:
        for name, module in outputs.items():
            handle = module.register_forward_hook(partial(_keep_output, seen, name))
            stack.callback(handle.remove)
        for name, module in entries.items():
            keep = partial(_keep_entry, seen, name)
            handle = module.register_forward_pre_hook(keep, with_kwargs=True)
            stack.callback(handle.remove)
        stack.enter_context(torch.no_grad())
        stack.enter_context(Widened() if wide else nullcontext())
        result = _run(oracle, arguments_for(oracle, inputs))
    logits = getattr(result, "logits", None)
    return (result.last_hidden_state if logits is None else logits), seen


def _run(oracle: nn.Module, arguments: Mapping[str, Tensor]) -> Any:
    try:
        return oracle(**arguments)
    except Exception as error:  # whatever its classes raise for a config that they do not check
        raise UnweaveError(
            f"transformers cannot run this {type(oracle).__name__} ({reason(error)}): correct its "
            "config"
        ) from error


def _keep_output(
    seen: dict[Any, Tensor], name: Any, module: nn.Module, args: Any, output: Any
) -> None:
    seen[name] = output if isinstance(output, Tensor) else output[0]


def _keep_entry(
    seen: dict[Any, Tensor], name: Any, module: nn.Module, args: Any, kwargs: Any
) -> None:
    seen[name] = args[0] if args else kwargs["hidden_states"]


def block_modules(oracle: nn.Module, network: Network) -> dict[str, list[nn.Module]]:
    """The oracle's blocks, by the prefix of our stages: the outermost lists of modules as long as
    our stacks, encoder first."""
    found: list[tuple[str, nn.ModuleList]] = []
    for name, module in oracle.named_modules():
        if isinstance(module, nn.ModuleList) and not any(
            name.startswith(f"{outer}.") for outer, _ in found
        ):
            found.append((name, module))
    lists = [module for _, module in found]
    blocks: dict[str, list[nn.Module]] = {}
    for prefix, stack in (("enc.", network.encoder), ("", network.body)):
        if stack is None:
            continue
        match = next((m for m in lists if len(m) == len(stack.blocks)), None)
        if match is None:
            raise UnweaveError(
                f"{type(oracle).__name__} has no list of {len(stack.blocks)} blocks to compare with"
            )
        lists.remove(match)
        blocks[prefix] = list(match)
    return blocks


__all__ = ["Widened", "accepts", "arguments_for", "block_modules", "build", "forward"]

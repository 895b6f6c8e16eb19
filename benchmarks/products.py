"""oneDNN's float32 product against the one that torch takes by itself (MKL), in one run.

    python benchmarks/products.py

Shapes are SmolLM2-135M's at 64 prompts of 16 tokens; the last line is a whole circuit run.
"""

import time
from collections.abc import Callable

import torch

import unweave
from unweave.experiments.specification import Experiment, Specification
from unweave.model import products


def seconds(run: Callable[[], object], repeats: int = 10) -> float:
    """The median of some runs, after one to warm up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


def main() -> None:
    if not products._ONEDNN:
        raise SystemExit("torch has no oneDNN or the CPU no AVX-512: torch's own product is used")
    print(f"{torch.get_num_threads()} threads")
    with torch.no_grad():
        for rows, width, out in ((1024, 576, 1536), (1024, 1536, 576), (1024, 576, 192)):
            x, weight = torch.randn(rows, width), torch.randn(out, width)
            own = seconds(lambda x=x, w=weight: torch.nn.functional.linear(x, w))
            ours = seconds(lambda x=x, w=weight: products.linear(x, w))
            print(f"{rows} × {width} → {out}: {own / ours:.2f} times as fast")
    model = unweave.load("smollm2-135m")
    experiment = Experiment.set_up(Specification("ioi", model.name), model, None, False)
    experiment.prepare()
    problem = experiment.discovery
    circuit = problem.nodes[::20]
    ours = seconds(lambda: problem.metric([circuit]), 5)
    products._ONEDNN = False
    own = seconds(lambda: problem.metric([circuit]), 5)
    print(f"a circuit of SmolLM2 on {len(problem.batch)} prompts: {own / ours:.2f} times as fast")


if __name__ == "__main__":
    main()

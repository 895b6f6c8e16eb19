"""Loading the default model: the first time, and from the cache.

    python benchmarks/loading.py

Each load is a process of its own, from `import unweave` to a model that has made one prediction;
peak memory is the whole process's, torch and all, over the size of the float32 weights. CPU seconds
are printed beside those on the clock, which a busy machine stretches.
"""

import json
import os
import subprocess
import sys
import tempfile

LOAD = """
import json, resource, time
began = time.perf_counter()
import unweave
model = unweave.load()
ready = time.perf_counter() - began
model.logits("When Mary and John went to the store, John gave a drink to")
from unweave.model.weights import tensors
weights = {t.untyped_storage().data_ptr() + t.storage_offset(): t.nbytes
           for t in tensors(model.network)}
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"seconds": ready, "cpu": usage.ru_utime + usage.ru_stime,
                  "peak": usage.ru_maxrss * 1024, "weights": sum(weights.values())}))
"""


def measure(cache: str) -> dict[str, float]:
    environment = os.environ | {"UNWEAVE_CACHE": cache}
    command = [sys.executable, "-c", LOAD]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        for kind in ("first load", "from cache", "from cache"):
            found = measure(cache)
            megabytes, weights = found["peak"] / 2**20, found["weights"] / 2**20
            print(
                f"{kind}: {found['seconds']:.1f} s with imports ({found['cpu']:.1f} s CPU); "
                f"peak {megabytes:.0f} MB = {megabytes / weights:.2f}x {weights:.0f} MB of weights"
            )


if __name__ == "__main__":
    main()

"""Say in one sentence what was gained: python examples/sum_up.py demo/tuned demo/shipped demo

The models are timed one after the other in the same rounds, and evaluated on the same test examples.
"""

import sys

import transformers

import espalier


def main(dense, shipped, task):
    transformers.logging.disable_progress_bar()
    found = espalier.measure(shipped, dense, task=task, max_length=64, validation=250, test=400)
    small, large = found["models"]
    now, was, metric = small["test"], large["test"], small["test"]["metric"]
    size = [model["bytes"] / 1e6 for model in (large, small)]
    time = [model["median"] * 1e3 for model in (large, small)]
    print(
        f"{shipped} is {size[0] / size[1]:.1f} times smaller ({size[0]:.1f} to {size[1]:.1f} MB) and "
        f"{small['speedup']:.1f} times faster ({time[0]:.1f} to {time[1]:.1f} ms for a text of 64 tokens) "
        f"than {dense}: {metric} {now[metric]:.3f} [{now['low']:.3f}, {now['high']:.3f}] instead of "
        f"{was[metric]:.3f} on {now['n']} test texts."
    )


if __name__ == "__main__":
    main(*(sys.argv[1:] if len(sys.argv) > 3 else ("demo/tuned", "demo/shipped", "demo")))

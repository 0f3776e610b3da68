"""Time single layers, forward and backward, in float32 and bfloat16: from which size is it faster?

    python -m perf.precision_layers

Both ways take and give float32, as a layer of a net does, with the casts compiled into loops. The
last column is the number of multiplications of the layer's forward pass: precision.py rounds the
layers that reach `_LEAST_PRODUCTS` of them. Times are CPU time on one thread, so that other
programs disturb them little. Writes results/precision_layers.json.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from slm_lab.agent.learning import precision
from slm_lab.agent.learning.compiler import compile_graph
from slm_lab.agent.learning.precision import RoundedProducts

LINEAR = [
    (rows, inputs, outputs)
    for rows in (32, 128, 256, 1024)
    for inputs, outputs in ((17, 256), (64, 64), (128, 128), (256, 256))
]
# Rows, channels, pixels of a side; output channels, kernel, stride.
CONVOLUTIONS = [
    (rows, *layer)
    for rows in (32, 256)
    for layer in ((4, 10, 16, 3, 1), (4, 84, 32, 8, 4), (32, 20, 64, 4, 2), (64, 9, 64, 3, 1))
]
Layer = Callable[[Tensor, Tensor], Tensor]


def step_of(layer: Layer, x: Tensor, weight: Tensor, *, rounded: bool) -> float:
    """Microseconds of the layer, a ReLU and all gradients."""

    def step(x: Tensor, weight: Tensor) -> Sequence[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in (x, weight)]
        with torch.enable_grad():
            if rounded:
                with RoundedProducts(leaves[1:], torch.bfloat16):
                    out = layer(*leaves)
            else:
                out = layer(*leaves)
            loss = F.relu(out).square().mean()
        return torch.autograd.grad(loss, leaves)

    return microseconds(compile_graph(step, (x, weight)), x, weight)


def microseconds(step: Callable[..., object], *inputs: Tensor, repeats: int = 15) -> float:
    step(*inputs)
    start = time.thread_time()
    step(*inputs)
    calls = max(2, min(100, int(5e-3 / max(1e-6, time.thread_time() - start))))
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        for _ in range(calls):
            step(*inputs)
        times.append((time.thread_time() - start) / calls)
    return 1e6 * min(times)


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("torch._inductor.codecache").setLevel(logging.ERROR)
    found = []
    cases: list[tuple[str, Layer, Tensor, Tensor, float]] = []
    for rows, inputs, outputs in LINEAR:
        x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
        name = f"{rows} rows, linear {inputs} to {outputs}"
        cases.append((name, lambda a, b: F.linear(a, b), x, weight, rows * weight.numel()))
    for rows, channels, side, outputs, kernel, stride in CONVOLUTIONS:
        x = torch.randn(rows, channels, side, side).to(memory_format=torch.channels_last)
        weight = torch.randn(outputs, channels, kernel, kernel)
        name = f"{rows} rows, convolution {channels}x{side}x{side} to {outputs}, {kernel}/{stride}"

        def convolution(a: Tensor, b: Tensor, stride: int = stride) -> Tensor:
            return F.conv2d(a, b, None, stride)

        products = convolution(x, weight).numel() * weight[0].numel()
        cases.append((name, convolution, x, weight, products))
    print("| layer | float32 us | bfloat16 us | faster by | multiplications |")
    print("|---|---|---|---|---|")
    for name, layer, x, weight, size in cases:
        times = [step_of(layer, x, weight, rounded=rounded) for rounded in (False, True)]
        found.append({"layer": name, "float32": times[0], "bfloat16": times[1], "size": size})
        ratio = times[0] / times[1]
        mark = "" if (ratio > 1) == (size >= precision._LEAST_PRODUCTS) else " (!)"
        full, half = (f"{value:,.1f}" for value in times)
        print(f"| {name} | {full} | {half} | {ratio:.2f}{mark} | {size:,.0f} |", flush=True)
    path = Path(__file__).parent / "results" / "precision_layers.json"
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

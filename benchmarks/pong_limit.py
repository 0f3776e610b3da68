"""The physical limit of PPO on Pong: the env, and the convolution and matrix products, alone.

Called by side_by_side.py: `python pong_limit.py '<settings as JSON>'`. Prints one line of JSON: the
milliseconds each part takes per frame on one thread, and the frames per second they allow.

Counted per frame: one env step under random actions, one forward pass to act, and per epoch one
forward and one backward pass. Products run on data that is there already, in the layout they are
fastest in; copies, activations, losses, the optimiser and Python are free.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from slm_lab.env import make_env
from slm_lab.spec import EnvSpec

# (channels in, channels out, kernel, stride, side of the image) of the Nature CNN
CONVOLUTIONS = ((4, 32, 8, 4, 84), (32, 64, 4, 2, 20), (64, 64, 3, 1, 9))
LINEARS = ((3136, 512), (512, 7))
aten = torch.ops.aten


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    num_envs, rows = settings["num_envs"], settings["minibatch"]
    env = 1e3 * env_seconds(settings["env"], num_envs) / num_envs
    act = 1e3 * sum(forward_products(num_envs)) / num_envs
    learn = 1e3 * sum((*forward_products(rows), *backward_products(rows))) / rows
    learn *= settings["epochs"]
    total = env + act + learn
    parts = {"fps": 1e3 / total, "env_ms": env, "act_ms": act, "learn_ms": learn}
    print(json.dumps(parts))


def env_seconds(name: str, num_envs: int, steps: int = 300) -> float:
    """Seconds of one step of the whole batch."""
    spec = EnvSpec.model_validate({"name": name, "num_envs": num_envs, "max_frame": 1})
    env = make_env(spec, seed=0)
    env.reset()
    actions = [env.sample_action() for _ in range(steps)]
    start = time.perf_counter()
    for action in actions:
        env.step(action)
    return (time.perf_counter() - start) / steps


def forward_products(rows: int) -> list[float]:
    """Seconds of each product of a forward pass."""
    seconds = []
    for c_in, c_out, kernel, stride, side in CONVOLUTIONS:
        x, weight = image(rows, c_in, side), image(c_out, c_in, kernel)
        arguments = (None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1)
        seconds.append(best(partial(aten.convolution, x, weight, *arguments)))
    for width_in, width_out in LINEARS:
        x, weight = torch.rand(rows, width_in), torch.rand(width_out, width_in)
        seconds.append(best(partial(torch.mm, x, weight.T)))
    return seconds


def backward_products(rows: int) -> list[float]:
    """Gradients of weights, and of inputs except the image itself."""
    seconds = []
    for i, (c_in, c_out, kernel, stride, side) in enumerate(CONVOLUTIONS):
        x, weight = image(rows, c_in, side), image(c_out, c_in, kernel)
        grad = image(rows, c_out, (side - kernel) // stride + 1)
        arguments = (None, [stride] * 2, [0, 0], [1, 1], False, [0, 0], 1, [i > 0, True, False])
        seconds.append(best(partial(aten.convolution_backward, grad, x, weight, *arguments)))
    for width_in, width_out in LINEARS:
        x, weight = torch.rand(rows, width_in), torch.rand(width_out, width_in)
        grad = torch.rand(rows, width_out)
        seconds.append(best(partial(torch.mm, grad.T, x)))
        seconds.append(best(partial(torch.mm, grad, weight)))
    return seconds


def image(rows: int, channels: int, side: int) -> torch.Tensor:
    return torch.rand(rows, channels, side, side).to(memory_format=torch.channels_last)


def best(product: Callable[[], object], repeats: int = 10) -> float:
    product()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        product()
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()

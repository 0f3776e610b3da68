"""Products in half precision: which are, how they round, and that all else stays float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from loguru import logger
from torch import Tensor, nn

from slm_lab.agent.agent import Agent, make_agent
from slm_lab.agent.learning import precision
from slm_lab.agent.learning.compiler import Compiled
from slm_lab.agent.learning.learner import Learner, NetState, State, gradient_update
from slm_lab.agent.learning.precision import Precision, resolve_precision
from slm_lab.agent.net.mlp import make_net
from slm_lab.env.make import make_env
from slm_lab.spec import NetSpec, Spec, SpecError
from slm_lab.spec.net import NETS
from slm_lab.training.loop import Loop
from tests.agent.learning.test_learner import net_spec

CPU = torch.device("cpu")
MLP: dict[str, Any] = {
    "type": "MLPNet",
    "hid_layers": [256, 64],
    "hid_layers_activation": "relu",
    "optim_spec": {"name": "Adam", "lr": 1e-3},
}
CONV = MLP | {"type": "ConvNet", "conv_hid_layers": [[4, 3, 1, 0, 1]], "fc_hid_layers": [16]}
del CONV["hid_layers"]


@pytest.fixture
def small_layers_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_LEAST_PRODUCTS", 0)
    monkeypatch.setattr(precision, "_LEAST_SIDE", 1)
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device_type: True)


# Which layers


def wide(net: nn.Module, rows: int) -> tuple[str, ...]:
    return Precision(torch.bfloat16, rows).rounded_weights(net)


def net_spec_of(tree: dict[str, Any]) -> NetSpec:
    spec: NetSpec = NETS[tree["type"]].spec_class.model_validate(tree)
    return spec


def net_of(tree: dict[str, Any], obs_shape: tuple[int, ...], *out_dims: int) -> nn.Module:
    return make_net(net_spec_of(tree), obs_shape, out_dims)


def test_a_layer_is_wide_from_a_million_multiplications_of_a_step() -> None:
    net = net_of(MLP, (32,), 2)
    # 32 * 256 = 8,192 and 256 * 64 = 16,384 weights; 2 ** 20 / 16,384 = 64 rows
    assert wide(net, rows=63) == ()
    assert wide(net, rows=64) == ("model.2.weight",)
    assert wide(net, rows=128) == ("model.0.weight", "model.2.weight")


def test_few_inputs_and_heads_stay_float32_however_many_rows() -> None:
    # 15 inputs are fewer than 16; the head of 64 x 64 is a head.
    assert wide(net_of(MLP, (15,), 64), rows=10**6) == ("model.2.weight",)
    dueling = net_of(MLP | {"type": "DuelingMLPNet"}, (15,), 64)
    assert wide(dueling, rows=10**6) == ("model_body.2.weight",)


def test_a_convolution_is_wide_because_its_weights_meet_every_pixel() -> None:
    assert wide(net_of(CONV, (1, 8, 8), 2), rows=1) == ("conv_model.0.weight",)


def test_a_recurrent_state_is_multiplied_once_for_each_step() -> None:
    keys = {"type": "RecurrentNet", "fc_hid_layers": [], "rnn_hidden_size": 64, "seq_len": 8}
    tree = {k: v for k, v in MLP.items() if k != "hid_layers"} | keys | {"cell_type": "RNN"}
    net = net_of(tree, (64,), 2)
    # 64 * 64 weights: 256 rows make a million, 256 / 8 at each of 8 steps do not.
    assert wide(net, rows=256) == ("rnn_model.weight_ih_l0",)
    assert wide(net, rows=8 * 256) == ("rnn_model.weight_hh_l0", "rnn_model.weight_ih_l0")


def test_float32_rounds_nothing() -> None:
    assert Precision(torch.float32, 10**6).rounded_weights(net_of(MLP, (32,), 2)) == ()


# How products round


class Product(nn.Module):
    """x w + b as a Linear that is no head."""

    def __init__(self, weight: float, bias: float) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.layer.weight.data.fill_(weight)
        self.layer.bias.data.fill_(bias)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.layer(x),)


def product(weight: float, bias: float, dtype: torch.dtype = torch.bfloat16) -> NetState:
    return NetState("net", Product(weight, bias), net_spec(), Precision(dtype, 1))


def value(net: NetState, x: float, **keys: Any) -> float:
    return float(net(net.initial_state(), torch.tensor([[x]]), **keys)[0])


SMALL = 2.0**-9  # 1 + 2^-9 is a float32; the next bfloat16 after 1 is 1 + 2^-7


@pytest.mark.usefixtures("small_layers_are_wide")
def test_factors_are_rounded_and_biases_are_not() -> None:
    assert value(product(1 + SMALL, 0.0), 1.0) == 1.0
    assert value(product(1.0, 0.0), 1 + SMALL) == 1.0
    assert value(product(1.0, 1 + SMALL), 1.0) == 2 + SMALL
    assert value(product(1 + SMALL, 0.0), 1.0, exact=True) == 1 + SMALL


def test_a_product_may_name_its_arguments() -> None:
    x, weight, bias = torch.ones(1, 1, 4), torch.full((1, 1, 1), 1 + SMALL), torch.ones(1)
    with precision.RoundedProducts([weight], torch.bfloat16):
        named = F.conv1d(x, weight, bias=bias, stride=2)
        assert F.conv1d(x, weight, None, 2).tolist() == [[[1.0, 1.0]]]
    assert named.tolist() == [[[2.0, 2.0]]]


@pytest.mark.usefixtures("small_layers_are_wide")
def test_what_is_rounded_is_a_copy_and_the_step_moves_the_float32_weight() -> None:
    net = product(1 + SMALL, 0.0)

    def loss(state: State, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return net(state, x)[0].mean(), {}

    state = net.initial_state()
    learner = Learner(state, gradient_update([net], loss), compile=None)
    learner.set_coefficients(**{"net.lr": 2.0**-12})
    learner.step(torch.tensor([[1.0]]))
    # d loss / d weight = x = 1: the weight moves by lr, which no bfloat16 near 1 could hold.
    assert state["net"].dtype == torch.float32
    assert state["net"].tolist() == [1 + SMALL - 2.0**-12, -(2.0**-12)]


ARC = """
modules:
  body:
    Sequential:
    - LazyLinear: {out_features: 8}
    - LazyBatchRenorm1d: {momentum: 0.1}
    - LazyWeightNormLinear: {out_features: 8}
    - LayerNorm: {normalized_shape: 8}
graph: {input: x, modules: {body: [x]}, output: body}
"""
BATCH_NORM = {"batch_norm": True, "conv_hid_layers": [[4, 3, 1, 0, 1], [4, 3, 1, 0, 1]]}
NETS_OF_ALL_KINDS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "mlp": (MLP, (8,)),
    "dueling": (MLP | {"type": "DuelingMLPNet"}, (8,)),
    "conv with batch norm": (CONV | BATCH_NORM, (1, 8, 8)),
    "arc with batch renorm": (
        {"type": "TorchArcNet", "arc": yaml.safe_load(ARC), "optim_spec": MLP["optim_spec"]},
        (8,),
    ),
}


@pytest.mark.usefixtures("small_layers_are_wide")
@pytest.mark.parametrize("kind", NETS_OF_ALL_KINDS)
def test_every_net_learns_and_its_state_stays_float32(kind: str) -> None:
    tree, shape = NETS_OF_ALL_KINDS[kind]
    torch.manual_seed(0)
    spec = net_spec_of(tree)
    net = NetState("net", make_net(spec, shape, (1,)), spec, Precision(torch.bfloat16, 32))
    assert net.rounds

    def loss(state: State, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        (out,) = net(state, x, training=True)
        assert out.dtype == torch.float32
        return (out - 3).square().mean(), {}

    state = net.initial_state()
    learner = Learner(state, gradient_update([net], loss), compile=None)
    learner.set_coefficients(**{"net.lr": 1e-2})
    x = torch.rand(32, *shape)
    losses = []
    for _ in range(60):
        learner.step(x)
        losses.append(learner.mean_metrics()["loss"])
    assert losses[-1] < 0.2 * losses[0]
    assert {value.dtype for key, value in state.items() if "batches" not in key} == {torch.float32}


# Acting and learning


def playing(spec: Spec) -> tuple[Agent, Loop]:
    env = make_env(spec.env, seed=0)
    agent = make_agent(spec, env.spaces, seed=0)
    return agent, Loop(agent, env, spec.env.max_frame)


def metrics_at_the_weights_that_acted(spec: Spec) -> dict[str, float]:
    """Metrics of a PPO update that moves nothing."""
    _, loop = playing(spec)
    while loop.metrics is None:
        loop.run(lambda: None, 10**9, lambda: False, until=loop.clock.frame + 1)
    return dict(loop.metrics.values)


FROZEN: dict[str, Any] = {
    "meta.precision": "bfloat16",
    "agent.net.optim_spec": {"name": "SGD", "lr": 0.0},
    "agent.algorithm.clip_eps_spec": {"name": "no_decay", "start_val": 1e-4},
    "agent.algorithm.minibatch_size": 16,
}


@pytest.mark.usefixtures("small_layers_are_wide")
@pytest.mark.parametrize(
    "keys",
    [
        {"agent.net.hid_layers": [32, 32]},  # acts in NumPy
        {"agent.net.hid_layers": [300]},  # acts in torch
        {"agent.net.hid_layers": [32], "env.num_envs": 80},  # acts in torch, rounded
        {"env.name": "ALE/Pong-v5", "agent.net": CONV | {"shared": True}},  # keeps its log-probs
    ],
    ids=["numpy", "torch", "many envs", "images"],
)
def test_the_ratio_of_ppo_is_one_at_the_weights_that_acted(
    make_spec: Any, keys: dict[str, Any]
) -> None:
    spec = make_spec("PPO", keys | FROZEN)
    found = metrics_at_the_weights_that_acted(spec)
    assert found["clip_frac"] == 0.0  # no ratio is farther from 1 than 1e-4
    assert found["approx_kl"] < 1e-8


@pytest.mark.usefixtures("small_layers_are_wide")
def test_the_policy_that_acts_in_float32_is_the_one_that_learns_to_a_few_thousandths(
    make_spec: Any,
) -> None:
    spec = make_spec("PPO", {"agent.net.hid_layers": [64, 64], "meta.precision": "bfloat16"})
    agent, loop = playing(spec)
    obs = torch.from_numpy(loop.env.reset())
    (net, *_) = agent.algorithm.nets.net_states  # type: ignore[attr-defined]
    state = agent.algorithm.learner.state
    acted, learned = (net(state, obs, exact=exact)[0].log_softmax(-1) for exact in (True, False))
    difference = (acted - learned).abs().max()
    assert 0 < difference < 5e-3


# Where it is refused


def test_float16_is_refused_on_a_cpu(make_spec: Any) -> None:
    with pytest.raises(SpecError, match=r"meta.precision: float16 is for CUDA.*Use bfloat16"):
        resolve_precision(make_spec("PPO", {"meta.precision": "float16"}), CPU)


def test_a_cpu_without_bfloat16_trains_in_float32_and_says_so_once(
    make_spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda device_type: False)
    precision._warn_of_float32.cache_clear()
    spec = make_spec("PPO", {"meta.precision": "bfloat16"})
    lines: list[str] = []
    handler = logger.add(lines.append, level="WARNING")
    assert [resolve_precision(spec, CPU).name for _ in range(2)] == ["float32", "float32"]
    logger.remove(handler)
    (line,) = lines
    assert "this CPU has no instructions for it" in line


# Scaled gradients


def float16_step(slope: float) -> tuple[State, Learner]:
    """A float16 net after a step on slope * (w x + b) at x = 1, with a learning rate of 1/2."""
    net = product(1.0, 0.0, torch.float16)

    def loss(state: State, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return slope * net(state, x)[0].mean(), {}

    state = net.initial_state()
    learner = Learner(state, gradient_update([net], loss), compile=None)
    learner.set_coefficients(**{"net.lr": 0.5})
    learner.step(torch.ones(1, 1))
    return state, learner


@pytest.mark.usefixtures("small_layers_are_wide")
def test_gradients_of_float16_are_scaled_and_steps_are_not() -> None:
    # 2^-20 * 2^16 is far from what float16 rounds to zero, 2^-25. The step is 2^-21.
    state, _ = float16_step(2.0**-20)
    assert state["net"].tolist() == [1 - 2.0**-21, -(2.0**-21)]


@pytest.mark.usefixtures("small_layers_are_wide")
def test_a_gradient_beyond_float16_is_skipped_and_halves_the_scale() -> None:
    state, learner = float16_step(1.0)  # 2^16 > 65,504
    assert state["net"].tolist() == [1.0, 0.0]
    assert state["net.slot.step"] == 0
    assert state["gradient_scale"] == 2.0**15
    assert learner.mean_metrics()["grad_norm"] == 0.0  # not infinite: nothing has diverged
    learner.step(torch.ones(1, 1))
    assert state["net"].tolist() == [0.5, -0.5]


@pytest.mark.usefixtures("small_layers_are_wide")
def test_the_scale_doubles_after_two_thousand_good_steps() -> None:
    state, learner = float16_step(0.0)
    state["gradient_scale.steps"].fill_(1999.0)
    learner.step(torch.ones(1, 1))
    assert state["gradient_scale"] == 2.0**17
    assert state["gradient_scale.steps"] == 0


def test_other_precisions_have_no_scale() -> None:
    assert "gradient_scale" not in product(1.0, 0.0).initial_state()


# Compiled


@pytest.mark.slow
@pytest.mark.usefixtures("small_layers_are_wide")
def test_compiled_code_rounds_where_eager_code_does() -> None:
    spec = net_spec_of(MLP)
    net = NetState("net", make_net(spec, (32,), (2,)), spec, Precision(torch.bfloat16, 64))
    state = net.initial_state()

    def outputs(flat: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        return net({**state, "net": flat}, x)

    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    compiled = Compiled(outputs, mode="default")
    found, expected = compiled(state["net"], x)[0], outputs(state["net"], x)[0]
    assert compiled.is_compiled
    rounding = (net(state, x, exact=True)[0] - expected).abs().max()
    assert (found - expected).abs().max() < 0.1 * rounding

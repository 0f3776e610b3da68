"""Distributions against torch.distributions; sampling through seeded noise; action families."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, distributions

from slm_lab.agent.algorithm.actor import Noise
from slm_lab.agent.algorithm.distribution import (
    ActionDistribution,
    Bernoulli,
    Beta,
    Categorical,
    Distribution,
    Gumbel,
    LogNormal,
    MultiCategorical,
    NoiseKind,
    Normal,
    TanhNormal,
    make_action_distribution,
)
from slm_lab.spec import SpecError
from slm_lab.types import ActionType, Spaces


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def draws(kind: NoiseKind, count: int, dim: int) -> Tensor:
    """[count, dim] noise from a fixed seed."""
    return Noise(kind, (count, dim), seed=0)()


def spaces(action_type: ActionType, sizes: Sequence[int], *, bounded: bool = True) -> Spaces:
    return Spaces((3,), "float32", action_type, tuple(sizes), bounded)


def assert_frequencies(counts: Tensor, probs: Tensor) -> None:
    """Pearson's chi-square below its 0.1% point for the few degrees of freedom used here."""
    expected = probs * counts.sum()
    chi_square = ((counts - expected).square() / expected).sum().item()
    assert chi_square < {1: 10.8, 2: 13.8, 3: 16.3}[len(probs) - 1]


def test_categorical_equals_torch() -> None:
    logits, action = random(5, 3), torch.tensor([0, 1, 2, 1, 0])
    ours, theirs = Categorical(logits), distributions.Categorical(logits=logits)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.mode(), logits.argmax(-1))


def test_categorical_samples_have_the_frequencies_of_its_probabilities() -> None:
    probs = torch.tensor([0.1, 0.2, 0.3, 0.4])
    policy = Categorical(probs.log().expand(20_000, 4))
    action = policy.sample(draws("gumbel", 20_000, 4))
    assert action.dtype == torch.int64
    assert_frequencies(torch.bincount(action, minlength=4), probs)


def test_an_impossible_action_is_never_sampled() -> None:
    policy = Categorical(torch.tensor([0.0, -math.inf]).expand(10_000, 2))
    assert policy.sample(draws("gumbel", 10_000, 2)).eq(0).all()


def test_multi_categorical_is_a_product_of_categoricals() -> None:
    logits, action = random(6, 5), torch.tensor([[0, 2], [1, 0], [1, 1], [0, 0], [0, 1], [1, 2]])
    ours = MultiCategorical(logits, (2, 3))
    first = distributions.Categorical(logits=logits[:, :2])
    second = distributions.Categorical(logits=logits[:, 2:])
    torch.testing.assert_close(
        ours.log_prob(action), first.log_prob(action[:, 0]) + second.log_prob(action[:, 1])
    )
    torch.testing.assert_close(ours.entropy(), first.entropy() + second.entropy())
    torch.testing.assert_close(
        ours.mode(), torch.stack([logits[:, :2].argmax(-1), logits[:, 2:].argmax(-1)], -1)
    )


def test_multi_categorical_samples_each_sub_action_by_its_own_probabilities() -> None:
    probs = [torch.tensor([0.3, 0.7]), torch.tensor([0.2, 0.5, 0.3])]
    policy = MultiCategorical(torch.cat(probs).log().expand(20_000, 5), (2, 3))
    action = policy.sample(draws("gumbel", 20_000, 5))
    assert action.shape == (20_000, 2)
    for i, expected in enumerate(probs):
        assert_frequencies(torch.bincount(action[:, i], minlength=len(expected)), expected)


def test_bernoulli_equals_torch() -> None:
    logits = random(4, 2)
    action = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0]])
    ours, theirs = Bernoulli(logits), distributions.Bernoulli(logits=logits)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action.float()).sum(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1))
    torch.testing.assert_close(ours.mode(), (logits > 0).long())


def test_bernoulli_samples_are_integers_with_the_right_frequencies() -> None:
    policy = Bernoulli(torch.tensor([0.2, 0.9]).logit().expand(20_000, 2))
    action = policy.sample(draws("uniform", 20_000, 2))
    assert action.dtype == torch.int64
    for i, p in enumerate((0.2, 0.9)):
        assert_frequencies(torch.bincount(action[:, i], minlength=2), torch.tensor([1 - p, p]))


def test_bernoulli_stays_finite_at_extreme_logits() -> None:
    policy = Bernoulli(torch.tensor([[90.0, -90.0]]))
    assert policy.entropy().item() == pytest.approx(0.0, abs=1e-6)
    assert policy.log_prob(torch.tensor([[1, 0]])).item() == pytest.approx(0.0, abs=1e-6)
    assert policy.log_prob(torch.tensor([[0, 1]])).item() == pytest.approx(-180.0)


def test_normal_equals_torch() -> None:
    mean, log_std, action = random(5, 3), 0.5 * random(5, 3, seed=1), random(5, 3, seed=2)
    ours = Normal(mean, log_std)
    theirs = distributions.Independent(distributions.Normal(mean, log_std.exp()), 1)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.mode(), mean)


def test_normal_samples_have_its_mean_and_standard_deviation() -> None:
    policy = Normal(torch.full((40_000, 1), 3.0), torch.full((40_000, 1), math.log(2.0)))
    action = policy.sample(draws("normal", 40_000, 1))
    # Standard errors are 0.01 and 0.007.
    assert action.mean().item() == pytest.approx(3.0, abs=0.03)
    assert action.std().item() == pytest.approx(2.0, abs=0.03)


def test_tanh_normal_log_prob_from_the_pre_squash_sample_equals_torch() -> None:
    mean, log_std, u = random(6, 2), 0.3 * random(6, 2, seed=1), random(6, 2, seed=2)
    squashed = distributions.TransformedDistribution(
        distributions.Normal(mean, log_std.exp()), distributions.TanhTransform(cache_size=0)
    )
    expected = squashed.log_prob(u.double().tanh()).sum(-1)
    torch.testing.assert_close(
        TanhNormal(mean, log_std).log_prob(u).double(), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("u", [8.0, -8.0, 12.0])
def test_tanh_normal_log_prob_stays_exact_where_atanh_would_fail(u: float) -> None:
    # tanh(8) is 1 - 2.3e-7 and rounds badly in float32; tanh(12) rounds to 1.
    policy = TanhNormal(torch.zeros(1, 1), torch.zeros(1, 1))
    # log N(u) - log(1 - tanh(u)^2), and 1 - tanh(u)^2 = 1 / cosh(u)^2
    expected = -0.5 * u * u - 0.5 * math.log(2 * math.pi) + 2 * math.log(math.cosh(u))
    assert policy.log_prob(torch.tensor([[u]])).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("mean", [0.0, 0.7, -2.0])
@pytest.mark.parametrize("std", [0.05, 0.3, 1.0])
def test_tanh_normal_entropy_equals_a_monte_carlo_estimate(mean: float, std: float) -> None:
    policy = TanhNormal(torch.full((1, 1), mean), torch.full((1, 1), math.log(std)))
    u = mean + std * draws("normal", 200_000, 1)
    many = TanhNormal(policy.mean.expand_as(u), policy.log_std.expand_as(u))
    estimate = -many.log_prob(u).mean().item()
    assert policy.entropy().item() == pytest.approx(estimate, abs=0.012)


@pytest.mark.parametrize("log_std", [-5.0, -2.0, -0.5, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("mean", [0.0, 0.7, -2.0, 9.0])
def test_tanh_normal_entropy_equals_its_integral_for_every_spread(
    mean: float, log_std: float
) -> None:
    """The integral of -p log p over u, in steps of a thousandth of a standard deviation."""
    z = torch.linspace(-10, 10, 20_001, dtype=torch.float64)[:, None]
    one = torch.ones_like(z)
    policy = TanhNormal(mean * one, log_std * one)
    weight = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi) / 1000
    u = policy.mean + math.exp(log_std) * z
    integral = -(weight[:, 0] * policy.log_prob(u)).sum().item()
    ours = TanhNormal(torch.full((1, 1), mean), torch.full((1, 1), log_std)).entropy()
    assert ours.item() == pytest.approx(integral, abs=1e-4)


def test_tanh_normal_entropy_is_that_of_a_uniform_at_most() -> None:
    """No distribution on [-1, 1] has more than log 2."""
    log_std = torch.linspace(-2, 2, 401)[:, None]
    entropy = TanhNormal(torch.zeros(401, 1), log_std).entropy()
    assert entropy.max().item() < math.log(2)
    peak = math.exp(log_std[entropy.argmax()].item())
    assert 0.8 < peak < 1.0  # a wider Gaussian gathers at the ends


def test_tanh_normal_entropy_has_a_gradient_towards_less_saturation() -> None:
    mean = torch.tensor([[2.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(TanhNormal(mean, torch.zeros(1, 1)).entropy().sum(), mean)
    assert gradient.item() < 0  # moving back to the centre widens the squashed distribution


@pytest.mark.parametrize("kind", ["gumbel", "normal", "uniform"])
@pytest.mark.parametrize("spent", [0, 3, 4, 9])
def test_saved_noise_continues_its_stream_exactly(
    monkeypatch: pytest.MonkeyPatch, kind: NoiseKind, spent: int
) -> None:
    monkeypatch.setattr(Noise, "BLOCK_STEPS", 4)
    original = Noise(kind, (2, 3), seed=7)
    for _ in range(spent):
        original()
    restored, again = (Noise(kind, (2, 3), seed=seed) for seed in (98, 99))
    restored.load_state_dict(original.state_dict())
    again.load_state_dict(restored.state_dict())  # resumed, saved at once and resumed again
    for _ in range(10):
        expected = original()
        assert torch.equal(restored(), expected)
        assert torch.equal(again(), expected)


def test_noise_comes_from_its_seed_and_never_repeats_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Noise, "BLOCK_STEPS", 2)
    noise, same, other = (Noise("normal", (2,), seed=seed) for seed in (1, 1, 2))
    rows = [noise() for _ in range(4)]
    assert all(torch.equal(row, same()) for row in rows)
    assert not torch.equal(rows[0], other())
    assert not torch.equal(rows[0], rows[2])


def test_a_batch_larger_than_a_block_still_gets_its_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Noise, "BLOCK_NUMBERS", 10)
    noise = Noise("uniform", (20, 3), seed=0)
    assert noise().shape == (20, 3)
    assert not torch.equal(noise(), noise())


@pytest.mark.parametrize(
    ("action_type", "sizes", "heads", "shape", "dtype"),
    [
        ("discrete", (3,), (3,), (), torch.int64),
        ("multi_discrete", (2, 3), (2, 3), (2,), torch.int64),
        ("multi_binary", (4,), (4,), (4,), torch.int64),
        ("continuous", (1,), (2,), (1,), torch.float32),
        ("multi_continuous", (3,), (3, 3), (3,), torch.float32),
    ],
)
def test_each_action_space_gets_heads_and_actions_of_its_shape(
    action_type: ActionType,
    sizes: tuple[int, ...],
    heads: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    distribution = make_action_distribution(spaces(action_type, sizes), "default")
    assert distribution.head_dims == heads
    policy = distribution([random(5, dim) for dim in heads])
    action = policy.sample(Noise(distribution.noise_kind, (5, distribution.noise_dim), seed=0)())
    assert action.shape == (5, *shape)
    assert action.dtype == dtype
    assert policy.log_prob(action).shape == policy.entropy().shape == (5,)
    assert policy.mode().shape == action.shape
    assert policy.mode().dtype == dtype


def test_the_standard_deviation_is_clamped() -> None:
    distribution = make_action_distribution(spaces("multi_continuous", (2,)), None)
    policy = distribution([torch.zeros(1, 2), torch.tensor([[-100.0, 100.0]])])
    assert isinstance(policy, Normal)
    assert policy.log_std.tolist() == [[-5.0, 2.0]]


def test_one_head_of_a_single_continuous_action_is_mean_then_log_std() -> None:
    policy = make_action_distribution(spaces("continuous", (1,)), None)(
        [torch.tensor([[0.5, -1.0]])]
    )
    assert isinstance(policy, Normal)
    assert (policy.mean.tolist(), policy.log_std.tolist()) == ([[0.5]], [[-1.0]])


def test_only_the_env_sees_actions_bounded() -> None:
    u = torch.tensor([[-3.0, 0.5]])
    bounded = spaces("multi_continuous", (2,))
    assert make_action_distribution(bounded, "Normal").to_env(u).tolist() == [[-1.0, 0.5]]
    torch.testing.assert_close(make_action_distribution(bounded, "NormalTanh").to_env(u), u.tanh())
    unbounded = spaces("multi_continuous", (2,), bounded=False)
    assert make_action_distribution(unbounded, "Normal").to_env(u).tolist() == u.tolist()


@pytest.mark.parametrize("pdtype", [None, "default"])
def test_default_picks_the_distribution_of_the_action_space(pdtype: str | None) -> None:
    assert make_action_distribution(spaces("multi_binary", (2,)), pdtype) == ActionDistribution(
        "Bernoulli", spaces("multi_binary", (2,))
    )


@pytest.mark.parametrize(
    ("action_type", "pdtype"),
    [("discrete", "Normal"), ("multi_continuous", "Categorical"), ("discrete", "Argmax")],
)
def test_a_wrong_pdtype_is_refused_with_key_finding_and_remedy(
    action_type: ActionType, pdtype: str
) -> None:
    with pytest.raises(SpecError) as error:
        make_action_distribution(spaces(action_type, (2,)), pdtype)
    message = str(error.value)
    assert "agent.algorithm.action_pdtype" in message
    assert pdtype in message
    assert action_type in message
    assert "Use default or" in message


LOC, LOG_SCALE = random(5, 2), 0.5 * random(5, 2, seed=1)
CONCENTRATION = 1.05 + random(2, 5, 2, seed=2).square()


def stretched_beta() -> distributions.Distribution:
    unit = distributions.Beta(*CONCENTRATION)
    return distributions.TransformedDistribution(
        unit, [distributions.AffineTransform(-1.0, 2.0)], validate_args=False
    )


def test_gumbel_equals_torch() -> None:
    ours, theirs = Gumbel(LOC, LOG_SCALE), distributions.Gumbel(LOC, LOG_SCALE.exp())
    action = random(5, 2, seed=3)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action).sum(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1))


def test_log_normal_equals_torch() -> None:
    ours, theirs = LogNormal(LOC, LOG_SCALE), distributions.LogNormal(LOC, LOG_SCALE.exp())
    action = random(5, 2, seed=3).exp()
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action).sum(-1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1))
    torch.testing.assert_close(ours.mode(), theirs.mode)


def test_beta_equals_torch_on_a_stretched_interval() -> None:
    ours = Beta(*CONCENTRATION)
    action = random(5, 2, seed=3).tanh()
    torch.testing.assert_close(ours.log_prob(action), stretched_beta().log_prob(action).sum(-1))
    unit = distributions.Beta(*CONCENTRATION)
    # Stretching to twice the length adds log 2 for each of the two dimensions.
    torch.testing.assert_close(ours.entropy(), unit.entropy().sum(-1) + 2 * math.log(2))
    torch.testing.assert_close(ours.mode(), 2 * unit.mode - 1)


NEXT = 1 + torch.finfo(torch.float32).eps  # the smallest concentration above 1


@pytest.mark.parametrize(
    ("alpha", "beta", "mode"),
    [
        (1.0, 1.0, 0.0),  # flat: the mean
        (1.0, NEXT, -1.0),
        (NEXT, 1.0, 1.0),
        (NEXT, NEXT, 0.0),
        (1.0, 3.0, -1.0),
        (2.0, 4.0, -0.5),  # 2 (2 - 1) / (6 - 2) - 1
    ],
)
def test_the_mode_of_a_beta_is_defined_up_to_the_flat_one(
    alpha: float, beta: float, mode: float
) -> None:
    assert Beta(torch.tensor([[alpha]]), torch.tensor([[beta]])).mode().item() == mode


def test_a_policy_net_of_a_beta_may_ask_for_the_flat_one() -> None:
    """softplus(-20) is 2e-9: added to 1 it is lost."""
    distribution = make_action_distribution(spaces("continuous", (1,)), "Beta")
    policy = distribution([torch.tensor([[-20.0, -20.0]])])
    assert policy.mode().tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("kind", "numbers", "low", "high", "edges"),
    [
        (Gumbel, (0.3, 0.0), -10.0, 40.0, [0.0, 1.0]),
        (LogNormal, (0.3, 0.0), 1e-4, 60.0, [0.5, 2.0]),
        (Beta, (1.3, 2.5), -1.0, 1.0, [-0.6, 0.1]),
        (Beta, (40.0, 1.05), -1.0, 1.0, [0.93, 0.97]),
    ],
)
def test_samples_fall_where_the_density_says(
    kind: Callable[..., Distribution],
    numbers: tuple[float, float],
    low: float,
    high: float,
    edges: list[float],
) -> None:
    def policy(rows: int) -> Distribution:
        return kind(*(torch.full((rows, 1), number) for number in numbers))

    dim = 4 * Beta.TRIES if kind is Beta else 1
    noise = draws("gumbel" if kind is Gumbel else "normal", 20_000, dim)
    action = policy(20_000).sample(noise)[:, 0]
    grid = torch.linspace(low, high, 100_001)
    density = policy(len(grid)).log_prob(grid[:, None]).exp()
    mass = (density[1:] + density[:-1]) / 2 * grid.diff()
    assert mass.sum().item() == pytest.approx(1, abs=0.01)
    cell = torch.bucketize(grid[:-1], torch.tensor(edges))
    probs = torch.zeros(3).index_add_(0, cell, mass)
    counts = torch.bincount(torch.bucketize(action, torch.tensor(edges)), minlength=3)
    assert_frequencies(counts, probs / probs.sum())


@pytest.mark.parametrize("pdtype", ["Beta", "Gumbel", "LogNormal"])
@pytest.mark.parametrize(("action_type", "dim"), [("continuous", 1), ("multi_continuous", 3)])
def test_skewed_families_take_two_numbers_per_dimension(
    pdtype: str, action_type: ActionType, dim: int
) -> None:
    distribution = make_action_distribution(spaces(action_type, (dim,)), pdtype)
    policy = distribution([random(7, width) for width in distribution.head_dims])
    action = policy.sample(draws(distribution.noise_kind, 7, distribution.noise_dim))
    assert action.shape == policy.mode().shape == (7, dim)
    assert policy.log_prob(action).shape == policy.entropy().shape == (7,)
    assert policy.log_prob(action).isfinite().all()


def test_gumbel_softmax_is_drawn_as_a_categorical() -> None:
    distribution = make_action_distribution(spaces("discrete", (3,)), "GumbelSoftmax")
    assert isinstance(distribution([random(2, 3)]), Categorical)

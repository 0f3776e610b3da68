"""Batch renormalisation: batch statistics, corrected towards the running ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.net.arc import BatchRenorm1d, LazyBatchRenorm1d

# One feature with mean 3 and biased variance 4.
X = torch.tensor([[1.0], [5.0]])


def layer(mean: float = 0.0, var: float = 1.0, steps: int = 100, **keys: Any) -> BatchRenorm1d:
    """eps 0, fully open clamps unless `steps` is below 100."""
    options = {"eps": 0.0, "momentum": 0.1, "warmup_steps": 100} | keys
    renorm = BatchRenorm1d(1, **options)
    renorm.running_mean.fill_(mean)
    renorm.running_var.fill_(var)
    renorm.steps.fill_(steps)
    return renorm


def output(renorm: nn.Module, x: Tensor = X) -> list[float]:
    found: list[float] = renorm(x).detach().flatten().tolist()
    return found


def test_open_clamps_give_what_running_statistics_would() -> None:
    # r = 2 / 1 and d = (3 - 1) / 1: (x - 3) / 2 * 2 + 2 = x - 1 = (x - mu_run) / sigma_run
    assert output(layer(mean=1.0, var=1.0)) == pytest.approx([0.0, 4.0])


def test_the_scale_is_clamped_both_ways() -> None:
    # sigma_run 0.5: r = 4 -> 3, d = (3 - 3) / 0.5 = 0: -+ 1 * 3
    assert output(layer(mean=3.0, var=0.25)) == pytest.approx([-3.0, 3.0])
    # sigma_run 20: r = 0.1 -> 1/3
    assert output(layer(mean=3.0, var=400.0)) == pytest.approx([-1 / 3, 1 / 3])


def test_the_shift_is_clamped_both_ways() -> None:
    # sigma_run 1, so r = 2; d = 3 - (-7) = 10 -> 5, and 3 - 13 = -10 -> -5
    assert output(layer(mean=-7.0)) == pytest.approx([3.0, 7.0])
    assert output(layer(mean=13.0)) == pytest.approx([-7.0, -3.0])


def test_a_batch_far_from_zero_keeps_its_spread() -> None:
    # In float32 the squares of these differ by less than they are rounded.
    far = layer(steps=0, momentum=1.0)
    assert output(far, X + 1e5) == pytest.approx([-1.0, 1.0])
    assert far.running_mean.item() == pytest.approx(1e5 + 3)
    assert far.running_var.item() == pytest.approx(4.0)


def test_statistics_and_gradients_are_those_of_torch() -> None:
    x = torch.randn(6, 3, 5, generator=torch.Generator().manual_seed(0)) * 2 + 7
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    renorm, norm = BatchRenorm1d(3, eps=1e-3), nn.BatchNorm1d(3, eps=1e-3)  # step 0: the same
    renorm(ours).pow(3).sum().backward()
    norm(theirs).pow(3).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def test_at_the_start_it_is_plain_batch_norm() -> None:
    assert output(layer(mean=-7.0, var=0.01, steps=0)) == pytest.approx([-1.0, 1.0])


def test_the_clamps_open_linearly() -> None:
    # Half way r_max = 2 and d_max = 2.5: r = 2 / 0.5 -> 2, d = (3 + 7) / 0.5 -> 2.5
    assert output(layer(mean=-7.0, var=0.25, steps=50)) == pytest.approx([0.5, 4.5])


def test_after_the_warm_up_the_clamps_open_no_further() -> None:
    # r = 2 / 0.5 -> 3, d = (3 + 7) / 0.5 -> 5
    assert output(layer(mean=-7.0, var=0.25, steps=500)) == pytest.approx([2.0, 8.0])


def test_without_warm_up_the_clamps_are_open_at_once() -> None:
    renorm = layer(mean=1.0, steps=0, warmup_steps=0)
    assert output(renorm) == pytest.approx([0.0, 4.0])
    assert all(math.isfinite(value) for value in output(renorm))


def test_running_statistics_follow_by_the_momentum() -> None:
    renorm = layer(mean=0.0, var=1.0, steps=7)
    renorm(X)
    assert renorm.running_mean.item() == pytest.approx(0.3)  # a tenth of the way to 3
    assert renorm.running_var.item() == pytest.approx(1.3)  # to 4, the biased variance
    assert renorm.steps.item() == 8


def test_eval_mode_uses_running_statistics_and_moves_nothing() -> None:
    renorm = layer(mean=1.0, var=4.0, steps=7).eval()
    assert output(renorm) == pytest.approx([0.0, 2.0])
    assert output(renorm, X[:1]) == pytest.approx([0.0])  # one row is enough
    assert (renorm.running_mean.item(), renorm.running_var.item()) == (1.0, 4.0)
    assert renorm.steps.item() == 7


def test_weight_and_bias_come_last() -> None:
    renorm = layer(mean=1.0)
    with torch.no_grad():
        renorm.weight.fill_(2.0)
        renorm.bias.fill_(0.5)
    assert output(renorm) == pytest.approx([0.5, 8.5])


def test_epsilon_is_inside_both_roots() -> None:
    # Batch: sqrt(4 + 5) = 3; running: sqrt(4 + 5) = 3, so r = 1; d = (3 - 0) / 3 = 1
    assert output(layer(mean=0.0, var=4.0, eps=5.0)) == pytest.approx([-2 / 3 + 1, 2 / 3 + 1])


def test_no_gradient_flows_through_the_corrections() -> None:
    # With r and d constants the gradient is that of batch norm times r = 2, which is zero for a
    # sum of outputs; through r and d it would be that of x - mu_run, which is one.
    x = torch.tensor([[1.0], [5.0], [3.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(mean=1.0)(x).sum(), x)
    assert gradient.flatten().tolist() == pytest.approx([0.0] * 3, abs=1e-6)


def test_gradients_of_plain_batch_norm_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, requires_grad=True)
    weights = torch.randn(6, 3, generator=generator)
    ours, theirs = BatchRenorm1d(3), nn.BatchNorm1d(3)
    first, second = (torch.autograd.grad((net(x) * weights).sum(), x)[0] for net in (ours, theirs))
    assert torch.allclose(first, second, atol=1e-5)


def test_channels_are_on_axis_one_whatever_the_rank() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((6, 3), (6, 3, 5), (6, 3, 4, 5)):
        x = torch.randn(shape, generator=generator)
        ours = BatchRenorm1d(3)
        norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](3)
        assert torch.allclose(ours(x), norm(x), atol=1e-5)
        assert ours.running_mean.shape == (3,)
        assert ours.eval()(x).shape == shape


def test_the_lazy_form_becomes_the_plain_one() -> None:
    lazy = LazyBatchRenorm1d(momentum=0.25, eps=0.5, warmup_steps=7)
    lazy.eval()(torch.zeros(2, 4, 3, 3))
    plain = BatchRenorm1d(4)
    assert type(lazy) is BatchRenorm1d
    assert (lazy.momentum, lazy.eps, lazy.warmup_steps) == (0.25, 0.5, 7)
    ours, theirs = lazy.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert [name for name, _ in lazy.named_parameters()] == ["weight", "bias"]
    lazy.load_state_dict(theirs)


def test_a_dry_run_in_eval_mode_leaves_no_trace() -> None:
    lazy = LazyBatchRenorm1d()
    lazy.eval()(torch.full((2, 4), 9.0))
    assert lazy.running_mean.tolist() == [0.0] * 4
    assert lazy.steps.item() == 0

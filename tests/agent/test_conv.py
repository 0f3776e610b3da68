"""ConvNet and DuelingConvNet: every key of their spec, from bytes to heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from slm_lab.agent.agent import make_agent
from slm_lab.agent.net.conv import ConvNet, DuelingConvNet
from slm_lab.agent.net.mlp import make_net
from slm_lab.spec import SpecError, load_spec
from slm_lab.spec.net import NETS
from slm_lab.types import Spaces

NATURE: dict[str, Any] = {
    "type": "ConvNet",
    "conv_hid_layers": [[32, 8, 4, 0, 1], [64, 4, 2, 0, 1], [64, 3, 1, 0, 1]],
    "fc_hid_layers": [512],
    "hid_layers_activation": "relu",
    "batch_norm": False,
    "normalize": True,
}
SMALL: dict[str, Any] = NATURE | {"conv_hid_layers": [[2, 3, 1, 0, 1]], "fc_hid_layers": [5]}


def net(shape: tuple[int, ...] = (4, 84, 84), dims: tuple[int, ...] = (6,), **keys: Any) -> Any:
    torch.manual_seed(0)
    tree = NATURE | keys
    spec = NETS[tree["type"]].spec_class.model_validate(tree)
    return make_net(spec, shape, dims)


def small(shape: tuple[int, ...] = (2, 6, 6), dims: tuple[int, ...] = (3,), **keys: Any) -> Any:
    return net(shape, dims, **(SMALL | keys))


def images(rows: int = 3, shape: tuple[int, ...] = (2, 6, 6)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (rows, *shape), dtype=torch.uint8, generator=generator)


def test_the_nature_cnn_has_the_parameters_of_the_paper():
    """4x8x8x32 + 32, 32x4x4x64 + 64, 64x3x3x64 + 64, 7x7x64x512 + 512, 512x6 + 6."""
    count = sum(p.numel() for p in net().parameters())
    assert count == 8224 + 32832 + 36928 + 1606144 + 3078


def test_each_head_has_its_width():
    policy, value = net(dims=(6, 1))(images(2, (4, 84, 84)))
    assert policy.shape == (2, 6)
    assert value.shape == (2, 1)


def test_it_is_the_plain_stack_of_layers_in_torchs_own_order_of_channels():
    """By hand: bytes / 255, a 3x3 convolution, relu, flattened channel by channel, two Linears."""
    ours, obs = small(), images()
    conv, fc, head = ours.conv_model[0], ours.fc_model[0], ours.tails[0]
    x = torch.relu(nn.functional.conv2d(obs.float() / 255, conv.weight, conv.bias))
    x = torch.relu(x.reshape(3, -1) @ fc.weight.T + fc.bias)
    torch.testing.assert_close(ours(obs)[0], x @ head.weight.T + head.bias)


def test_without_normalize_pixels_count_as_they_are():
    whole, scaled = small(normalize=False), small(normalize=True)
    obs = images()
    torch.testing.assert_close(whole(obs.float() / 255)[0], scaled(obs)[0])


def test_rows_do_not_depend_on_their_batch():
    ours, obs = net(), images(5, (4, 84, 84))
    torch.testing.assert_close(ours(obs)[0][2:3], ours(obs[2:3])[0], rtol=1e-4, atol=1e-5)


def test_padding_stride_and_dilation_reach_the_convolution():
    conv = small((2, 9, 9), conv_hid_layers=[[4, 3, 2, 1, 2]]).conv_model[0]
    assert (conv.out_channels, conv.kernel_size) == (4, (3, 3))
    assert (conv.stride, conv.padding, conv.dilation) == ((2, 2), (1, 1), (2, 2))


def test_batch_norm_follows_every_convolution_but_the_first():
    layers = [[4, 3, 1, 0, 1], [8, 3, 1, 0, 1]]
    norms = [
        m
        for m in small(conv_hid_layers=layers, batch_norm=True).modules()
        if isinstance(m, nn.BatchNorm2d)
    ]
    assert [norm.num_features for norm in norms] == [8]
    assert not any(isinstance(m, nn.BatchNorm2d) for m in small(conv_hid_layers=layers).modules())


def test_orthogonal_weights_keep_lengths_up_to_the_gain_of_relu():
    weight = net(init_fn="orthogonal_").conv_model[0].weight.flatten(1)
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(32), rtol=1e-4, atol=1e-4)


def test_the_activation_is_the_one_named():
    kinds = {type(m) for m in small(hid_layers_activation="selu").modules()}
    assert nn.SELU in kinds
    assert nn.ReLU not in kinds


def test_output_activations_are_given_per_head():
    policy, value = small(dims=(3, 1), out_layer_activation=[None, "tanh"])(images() * 0 + 255)
    assert value.abs().max() < 1
    assert isinstance(policy, torch.Tensor)


def test_the_dueling_net_adds_centred_advantages_to_the_value():
    ours = small(type="DuelingConvNet")
    assert isinstance(ours, DuelingConvNet)
    obs = images()
    features = ours.fc_model(ours.conv_model(obs.float() / 255).flatten(1))
    (q,) = ours(obs)
    torch.testing.assert_close(q.mean(-1, keepdim=True), ours.v(features))


def test_images_too_small_for_the_convolutions_name_the_key():
    with pytest.raises(SpecError, match=r"agent\.net\.conv_hid_layers"):
        net((4, 10, 10))


def test_vectors_name_the_net_to_use():
    with pytest.raises(SpecError, match="MLPNet"):
        net((4,))


@pytest.mark.parametrize("shared", [True, False])
def test_actor_and_critic_share_a_body_or_have_one_each(shared):
    sets = ["env=ALE/Pong-v5", "agent.net.fc_hid_layers=[8]", f"agent.net.shared={shared}"]
    spec = load_spec("slm_lab/spec/benchmark/ppo/ppo_atari.json", "ppo_atari", sets)
    spaces = Spaces((4, 84, 84), "uint8", "discrete", (6,), frame_stack=4)
    nets = make_agent(spec, spaces, seed=0).algorithm.modules
    assert all(isinstance(module, ConvNet) for module in nets.values())
    assert list(nets) == (["net"] if shared else ["net", "critic_net"])


def test_gradients_reach_every_parameter_through_bytes():
    ours = small()
    ours(images())[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in ours.parameters())

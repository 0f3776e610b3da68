"""ConvNet and DuelingConvNet: convolutions on an image, then fully connected layers."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

from slm_lab.agent.net.mlp import DuelingNet, HeadedNet, Shape, linear_layers, make_activation
from slm_lab.agent.net.noisy import MakeLinear
from slm_lab.spec import (
    ConvNetSpec,
    DuelingConvNetSpec,
    MultiInputNetSpec,
    Problem,
    SpecError,
)

ImageSpec: TypeAlias = ConvNetSpec | DuelingConvNetSpec | MultiInputNetSpec


class ConvNet(HeadedNet):
    """Images [N, C, H, W] -> one output per head.

    uint8 frames stay bytes until here; with `normalize` they are scaled to [0, 1] on the way in.
    """

    def make_body(self, spec: ConvNetSpec | DuelingConvNetSpec, obs_shape: Shape) -> int:
        if len(obs_shape) != 3:
            problem = (
                f"{spec.type} reads images [C, H, W]; the env gives {list(obs_shape)}. Use MLPNet."
            )
            raise SpecError([Problem("agent.net.type", problem)])
        self._scale = 1 / 255 if spec.normalize else 1.0
        self.conv_model, self.fc_model, width = make_image_layers(spec, obs_shape, self.linear)
        return width

    def features(self, obs: Tensor) -> Tensor:
        features: Tensor = self.fc_model(self.conv_model(pixels(obs, self._scale)).flatten(1))
        return features


class DuelingConvNet(DuelingNet, ConvNet):
    """ConvNet with a value and an advantage stream instead of heads."""


def make_image_layers(
    spec: ImageSpec, obs_shape: Shape, linear: MakeLinear
) -> tuple[nn.Sequential, nn.Sequential, int]:
    """(convolutions, the layers after them, the width of what comes out)."""
    convolutions = nn.Sequential(*_conv_layers(spec, obs_shape[0]))
    with torch.no_grad():
        try:
            width = convolutions.eval()(torch.zeros(1, *obs_shape)).numel()
        except RuntimeError as error:
            problem = f"does not fit images of {list(obs_shape)}: {error}"
            raise SpecError([Problem("agent.net.conv_hid_layers", problem)]) from error
    layers = linear_layers(width, spec.fc_hid_layers, spec.hid_layers_activation, linear=linear)
    return convolutions, layers, spec.fc_hid_layers[-1] if spec.fc_hid_layers else width


def pixels(obs: Tensor, scale: float) -> Tensor:
    """Images as floats, with the channels of a pixel side by side in memory.

    On CPUs that makes the weight gradient of a first layer with few channels several times faster
    (Nature CNN, 256 Atari stacks, one core: 75 against 19 ms), and the layers after it no slower.
    """
    return obs.to(torch.float32, memory_format=torch.channels_last) * scale


def _conv_layers(spec: ImageSpec, channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for i, (width, kernel, stride, padding, dilation) in enumerate(spec.conv_hid_layers):
        assert isinstance(width, int), "validated by the spec"
        layers.append(nn.Conv2d(channels, width, kernel, stride, padding, dilation))
        layers.append(make_activation(spec.hid_layers_activation))
        if spec.normalizes_batches and i > 0:
            layers.append(nn.BatchNorm2d(width))
        channels = width
    return layers

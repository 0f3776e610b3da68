"""MultiInputNet: observations of several parts, each read in the way that suits it, then joined."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from slm_lab.agent.net.conv import make_image_layers, pixels
from slm_lab.agent.net.mlp import HeadedNet, Shape, linear_layers
from slm_lab.spec import MultiInputNetSpec


class MultiInputNet(HeadedNet):
    """Convolutions for every image, one MLP for all vectors, and layers on both together.

    A critic that also reads the action reads it among the vectors.
    """

    def make_body(self, spec: MultiInputNetSpec, inputs: Mapping[str, Shape]) -> int:
        self._scale = 1 / 255 if spec.normalize else 1.0
        self._images = [name for name, shape in inputs.items() if len(shape) == 3]
        self._vectors = [name for name in inputs if name not in self._images]
        models, width = [], 0
        for name in self._images:
            conv, fc, features = make_image_layers(spec, inputs[name], self.linear)
            models.append(nn.Sequential(conv, nn.Flatten(), fc))
            width += features
        self.image_models = nn.ModuleList(models)
        size = sum(math.prod(inputs[name]) for name in self._vectors)
        activation = spec.hid_layers_activation
        widths = spec.vector_hid_layers if size else ()
        self.vector_model = linear_layers(size, widths, activation, linear=self.linear)
        width += widths[-1] if widths else size
        self.model = linear_layers(width, spec.hid_layers, activation, linear=self.linear)
        return spec.hid_layers[-1] if spec.hid_layers else width

    def features(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Parts [N, ...] by name -> [N, width]."""
        seen = [
            model(pixels(obs[name], self._scale))
            for name, model in zip(self._images, self.image_models, strict=True)
        ]
        if self._vectors:
            vectors = [obs[name].flatten(1).float() for name in self._vectors]
            seen.append(self.vector_model(torch.cat(vectors, -1)))
        joined: Tensor = self.model(torch.cat(seen, -1))
        return joined

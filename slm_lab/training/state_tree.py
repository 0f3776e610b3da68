"""A session's state as a tree: dicts and lists of numbers, text, tensors, arrays and rings.

For a checkpoint the tree becomes JSON, in which a reference stands in place of each array; the
arrays are stored under their path in the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.memory.ring import Ring


def flatten(node: Any, path: str, arrays: dict[str, np.ndarray], rings: dict[str, Ring]) -> Any:
    """The tree with references in place of arrays and rings, which are collected by path."""
    if isinstance(node, Ring):
        rings[path] = node
        return {"$ring": path}
    if isinstance(node, Tensor):
        arrays[path] = to_array(node)
        return {"$tensor": path}
    if isinstance(node, np.ndarray):
        arrays[path] = node if node.flags.c_contiguous else node.copy()
        return {"$array": path}
    if isinstance(node, Mapping):
        return {k: flatten(v, f"{path}/{k}" if path else k, arrays, rings) for k, v in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        return [flatten(v, f"{path}/{i}", arrays, rings) for i, v in enumerate(node)]
    return node.item() if isinstance(node, np.generic) else node


def unflatten(node: Any, arrays: Any, ring: Callable[[str], Any]) -> Any:
    """The inverse of `flatten`: `arrays` is an open safetensors file, `ring` finds one by path."""
    if isinstance(node, list):
        return [unflatten(value, arrays, ring) for value in node]
    if not isinstance(node, dict):
        return node
    match node:
        case {"$tensor": str(path)}:
            return torch.from_numpy(arrays.get_tensor(path))
        case {"$array": str(path)}:
            return arrays.get_tensor(path)
        case {"$ring": str(path)}:
            return ring(path)
    return {key: unflatten(value, arrays, ring) for key, value in node.items()}


def to_array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().contiguous().numpy()
    return array


def has_rings(state: Any) -> bool:
    if isinstance(state, Mapping):
        return any(map(has_rings, state.values()))
    return isinstance(state, Ring)


def tree_bytes(state: Any) -> int:
    """Memory that the tensors and arrays of a tree take, rings in full."""
    if isinstance(state, Ring):
        return sum(column.nbytes for column in state.columns.values())
    if isinstance(state, Tensor | np.ndarray):
        return int(state.nbytes)
    if isinstance(state, Mapping):
        return sum(map(tree_bytes, state.values()))
    if isinstance(state, Sequence) and not isinstance(state, str):
        return sum(map(tree_bytes, state))
    return 0


def check_fits(saved: Any, live: Any, path: str = "") -> None:
    """Raise ValueError unless the saved tree has the keys, shapes and types of the live one."""
    if isinstance(live, Mapping):
        if not isinstance(saved, Mapping) or saved.keys() != live.keys():
            found = sorted(saved) if isinstance(saved, Mapping) else type(saved).__name__
            raise ValueError(f"{path}: found {found}, expected {sorted(live)}")
        for key, value in live.items():
            check_fits(saved[key], value, f"{path}/{key}")
    elif isinstance(live, Tensor) and (
        not isinstance(saved, Tensor) or saved.shape != live.shape or saved.dtype != live.dtype
    ):
        found = f"{tuple(saved.shape)}" if isinstance(saved, Tensor) else type(saved).__name__
        raise ValueError(f"{path}: found {found}, expected {tuple(live.shape)} of {live.dtype}")


def check_actions(saved: Any, sizes: Sequence[int]) -> None:
    """Raise ValueError if a stored discrete action is none of the env's.

    `sizes` are the numbers of actions. Another one would be an index beyond the output of a net.
    """
    columns = saved.columns if isinstance(saved, Ring) else saved
    if not isinstance(columns, Mapping):
        return
    for key, value in columns.items():
        if key == "action" and isinstance(value, Tensor) and not value.is_floating_point():
            if bool(((value < 0) | (value >= torch.tensor(sizes, device=value.device))).any()):
                found = f"found {int(value.min())} to {int(value.max())}"
                raise ValueError(f"stored actions: {found}, expected less than {sizes}")
        else:
            check_actions(value, sizes)

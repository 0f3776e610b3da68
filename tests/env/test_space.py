"""Every number here can be checked by hand."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from slm_lab.env import EnvError
from slm_lab.env.space import action_codec, obs_codec, quicken
from slm_lab.env.vector import VectorEnv


def encode(space, obs, lead=()):
    codec = obs_codec(space)
    out = np.full((*lead, *codec.shape), 9, codec.dtype)
    codec.write(obs, out)
    return out


def test_float64_boxes_become_float32():
    out = encode(spaces.Box(-1, 1, (2,), np.float64), np.array([0.1, -0.2]))
    assert out.dtype == np.float32
    assert out.tolist() == [np.float32(0.1), np.float32(-0.2)]


def test_a_scalar_box_becomes_a_vector_of_one():
    assert encode(spaces.Box(0, 9, (), np.float32), np.float32(3)).tolist() == [3]


def test_integers_other_than_images_become_float32():
    out = encode(spaces.Box(0, 255, (3,), np.uint8), np.array([1, 2, 255], np.uint8))
    assert out.dtype == np.float32
    assert out.tolist() == [1, 2, 255]


def test_images_stay_uint8_and_put_channels_first():
    image = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    out = encode(spaces.Box(0, 255, (2, 4, 3), np.uint8), image)
    assert out.dtype == np.uint8
    assert out.shape == (3, 2, 4)
    assert out[1].tolist() == [[1, 4, 7, 10], [13, 16, 19, 22]]


def test_images_with_channels_first_are_left_alone():
    image = np.arange(4 * 84 * 84, dtype=np.uint32).astype(np.uint8).reshape(4, 84, 84)
    np.testing.assert_array_equal(encode(spaces.Box(0, 255, (4, 84, 84), np.uint8), image), image)


def test_a_grey_image_without_channels_gains_one():
    image = np.array([[1, 2], [3, 4]], np.uint8)
    assert encode(spaces.Box(0, 255, (2, 2), np.uint8), image).tolist() == [[[1, 2], [3, 4]]]


def test_discrete_is_one_hot_from_its_start():
    assert encode(spaces.Discrete(3, start=5), 6).tolist() == [0, 1, 0]


def test_multi_discrete_is_one_one_hot_each():
    space = spaces.MultiDiscrete([2, 3], start=[0, 10])
    assert encode(space, np.array([1, 12])).tolist() == [0, 1, 0, 0, 1]


def test_multi_binary_is_a_float_vector():
    assert encode(spaces.MultiBinary((2, 2)), np.array([[1, 0], [0, 1]])).tolist() == [1, 0, 0, 1]


NESTED = spaces.Dict(
    {
        "z": spaces.Box(-1, 1, (2, 2), np.float64),
        "a": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2)]),
        "m": spaces.MultiDiscrete([2, 4]),
    }
)


def test_dicts_and_tuples_flatten_in_gymnasiums_order():
    NESTED.seed(0)
    for _ in range(20):
        obs = NESTED.sample()
        expected = np.asarray(spaces.flatten(NESTED, obs), np.float32)
        np.testing.assert_array_equal(encode(NESTED, obs), expected)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2,)),
        spaces.Box(-1, 1, ()),
        spaces.Box(0, 255, (4, 5, 3), np.uint8),
        spaces.Box(0, 255, (4, 5), np.uint8),
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        NESTED,
    ],
)
def test_a_batch_is_written_as_its_rows_would_be(space):
    space.seed(0)
    singles = [space.sample() for _ in range(3)]
    empty: Any = create_empty_array(space, 3)
    batch = concatenate(space, singles, empty)
    expected = np.stack([encode(space, obs) for obs in singles])
    np.testing.assert_array_equal(encode(space, batch, lead=(3,)), expected)


def test_an_observation_without_fixed_shape_is_refused():
    with pytest.raises(EnvError, match="cannot become an array of fixed shape"):
        obs_codec(spaces.Sequence(spaces.Discrete(2)))


def test_minus_one_to_one_spans_the_whole_box():
    codec = action_codec(spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float32))
    assert codec.bounded
    assert codec.type == "multi_continuous"
    agent = np.array([[-1, -1], [0, 0], [1, 1], [0.5, -0.5]], np.float32)
    assert codec.decode(agent).tolist() == [[-2, 0], [0, 5], [2, 10], [1, 2.5]]


def test_actions_beyond_the_box_are_clipped_to_it():
    codec = action_codec(spaces.Box(-2.0, 2.0, (1,), np.float32))
    assert codec.type == "continuous"
    assert codec.decode(np.array([[-7.0], [1.5]])).tolist() == [[-2], [2]]


def test_an_unbounded_box_takes_the_action_as_it_is():
    codec = action_codec(spaces.Box(-np.inf, np.inf, (1,), np.float32))
    assert not codec.bounded
    assert codec.decode(np.array([[-7.0], [1.5]])).tolist() == [[-7], [1.5]]


def test_a_half_bounded_box_clips_on_its_finite_side_only():
    codec = action_codec(spaces.Box(0.0, np.inf, (1,), np.float32))
    assert not codec.bounded
    assert codec.decode(np.array([[-7.0], [99.0]])).tolist() == [[0], [99]]


def test_a_box_of_several_axes_is_acted_on_as_a_vector():
    codec = action_codec(spaces.Box(-1.0, 1.0, (2, 2), np.float32))
    assert codec.sizes == (4,)
    assert codec.decode(np.array([[0.0, 0.25, 0.5, 1.0]])).tolist() == [[[0, 0.25], [0.5, 1]]]


def test_discrete_actions_count_from_zero_for_the_agent():
    codec = action_codec(spaces.Discrete(3, start=-1))
    assert codec.sizes == (3,)
    assert codec.decode(np.array([0, 1, 2])).tolist() == [-1, 0, 1]


def test_multi_discrete_actions_count_from_zero_for_the_agent():
    codec = action_codec(spaces.MultiDiscrete([2, 3], start=[0, 5]))
    assert (codec.type, codec.sizes) == ("multi_discrete", (2, 3))
    assert codec.decode(np.array([[1, 2]])).tolist() == [[1, 7]]


def test_multi_binary_actions_are_bits():
    codec = action_codec(spaces.MultiBinary(3))
    assert (codec.type, codec.sizes) == ("multi_binary", (3,))
    assert codec.decode(np.array([[1, 0, 1]])).tolist() == [[1, 0, 1]]


def test_float_actions_for_a_discrete_space_are_refused():
    with pytest.raises(EnvError, match="float32 for a discrete action space"):
        action_codec(spaces.Discrete(2)).decode(np.zeros(2, np.float32))


def test_unsupported_action_spaces_are_refused():
    for space in (spaces.Tuple([spaces.Discrete(2)]), spaces.Box(0, 3, (1,), np.int64)):
        with pytest.raises(EnvError, match="is not supported"):
            action_codec(space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3], start=[1, 1]),
        spaces.MultiBinary(2),
        spaces.Box(-3.0, 1.0, (2,), np.float32),
        spaces.Box(-np.inf, np.inf, (2,), np.float32),
    ],
)
def test_decoded_actions_are_new_arrays_inside_the_space(space):
    codec = action_codec(space)
    action = codec.sample(np.random.default_rng(0), 50)
    decoded = codec.decode(action)
    assert not np.shares_memory(action, decoded)
    assert all(space.contains(row if row.shape else int(row)) for row in decoded)


def test_spaces_carry_shapes_to_the_agent():
    obs, action = spaces.Box(0, 255, (84, 84, 3), np.uint8), spaces.Discrete(4)
    box = VectorEnv(1, obs_codec(obs), action_codec(action), seed=0).spaces
    assert box.is_image
    assert (box.obs_shape, box.obs_dtype) == ((3, 84, 84), "uint8")
    assert (box.action_type, box.action_sizes) == ("discrete", (4,))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2, 3), np.float32),
        spaces.Box(0, 9, (), np.float32),
        spaces.Box(0, 255, (5, 4, 3), np.uint8),
        spaces.Box(0, 255, (5, 4), np.uint8),
        spaces.Discrete(3, start=5),
        spaces.MultiDiscrete([2, 3], start=[0, 10]),
        spaces.MultiBinary((2, 2)),
    ],
)
def test_reading_a_batch_gives_back_what_was_written(space):
    space.seed(0)
    codec = obs_codec(space)
    given = np.stack([space.sample() for _ in range(20)])
    rows = np.zeros((20, *codec.shape), codec.dtype)
    codec.write(given, rows)
    np.testing.assert_array_equal(codec.read(rows), given)


def test_a_dict_is_read_part_by_part():
    codec = obs_codec(spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (2, 1))))
    read = codec.read(np.array([[0, 1, 0.5, -0.5]], np.float32))
    assert read["a"].tolist() == [1]
    assert read["b"].tolist() == [[[0.5], [-0.5]]]


# Quick membership


@pytest.mark.parametrize(
    "x",
    [-3, -2, -1, 0, 1, 2, 3, 10**30, True, False, np.int64(1), np.int8(9), np.array(2), 1.0, "1"],
)
@pytest.mark.parametrize("start", [0, -2])
def test_a_quick_discrete_space_holds_what_the_plain_one_holds(x: object, start: int) -> None:
    plain, quick = (spaces.Discrete(3, start=start) for _ in range(2))
    quicken(quick)
    assert (x in quick) is (x in plain)
    assert quick == plain
    assert plain == quick


def test_only_plain_discrete_spaces_are_made_quick() -> None:
    class Odd(spaces.Discrete):
        def contains(self, x: object) -> bool:
            return x in (1, 3)

    odd, box = Odd(4), spaces.Box(0, 1)
    quicken(odd)
    quicken(box)
    assert 2 not in odd
    assert type(box) is spaces.Box


def test_a_quickened_space_can_be_copied_and_pickled() -> None:
    space = spaces.Discrete(3)
    quicken(space)
    for copied in (copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert copied == space
        assert 2 in copied
        assert 3 not in copied

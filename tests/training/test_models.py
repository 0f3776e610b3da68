"""Saved nets: plain state dicts under the names that existing tools know."""

from __future__ import annotations

import errno

import pytest
import safetensors.torch
import torch

from slm_lab.agent.saving import save_models
from slm_lab.runs.layout import RunLayout
from slm_lab.spec.run_folder import RunFolderError
from slm_lab.training.saving import load_model


def saved(layout) -> dict[str, dict[str, torch.Tensor]]:
    return {
        path.name.removeprefix("tiny_t0_s0_"): torch.load(path, weights_only=True)
        for path in (layout.predir / "model").iterdir()
    }


@pytest.mark.parametrize(
    ("algorithm", "shared", "nets"),
    [
        ("PPO", False, ["net", "critic_net"]),
        ("PPO", True, ["net"]),
        ("ActorCritic", False, ["net", "critic_net"]),
        ("Reinforce", False, ["net"]),
    ],
)
def test_each_net_is_saved_with_its_optimizer_as_last_and_best(
    make_spec, run_session, algorithm, shared, nets
):
    models = saved(run_session(make_spec(algorithm, agent__net__shared=shared)))
    assert set(models) == {
        f"{best}{net}_{kind}.pt"
        for best in ("", "ckpt-best_")
        for net in nets
        for kind in ("model", "optim")
    }
    for net in nets:
        assert all(isinstance(value, torch.Tensor) for value in models[f"{net}_model.pt"].values())
        assert models[f"{net}_optim.pt"], "an optimizer that has stepped has state"


def test_the_best_is_from_the_checkpoint_with_the_best_average(make_spec, run_session):
    # Reward 1, 1, 1, ... : every checkpoint ties the best, so the last one is the best one.
    tie = saved(run_session(make_spec(env__name="probe/ConstantReward-v0")))
    assert torch.equal(*weights(tie))
    # Stopped at frame 140: the update at 128 came after the last checkpoint, that of frame 100.
    cut = saved(run_session(make_spec(env__name="probe/ConstantReward-v0"), stop_after=70))
    assert not torch.equal(*weights(cut))


def weights(models) -> tuple[torch.Tensor, torch.Tensor]:
    """All numbers of the last net and of the best one."""
    last, best = (
        torch.cat([tensor.flatten() for tensor in models[f"{kind}net_model.pt"].values()])
        for kind in ("", "ckpt-best_")
    )
    return last, best


def test_a_session_that_earned_nothing_saves_its_first_nets_as_best(make_spec, run_session):
    models = saved(run_session(make_spec(), stop_after=0))
    assert torch.equal(*weights(models))


def test_normalizer_statistics_are_saved_with_the_nets(make_spec, run_session):
    spec = make_spec(env__name="probe/ObsReward-v0", env__normalize_obs=True)
    models = saved(run_session(spec))
    statistics = models["obs_normalizer_model.pt"]
    assert float(statistics["count"]) == 192  # six rollouts of 32 observations
    assert abs(float(statistics["mean"])) < 0.3  # +1 or -1 at random
    assert "ckpt-best_obs_normalizer_model.pt" in models
    assert "obs_normalizer_optim.pt" not in models


def test_no_half_written_file_is_left(make_spec, run_session):
    folder = run_session(make_spec()).predir / "model"
    assert {path.suffix for path in folder.iterdir()} == {".pt"}


def test_a_file_that_holds_code_is_refused(tmp_path):
    class Payload:
        def __reduce__(self):
            return (print, ("unpickled",))

    torch.save({"weight": Payload()}, tmp_path / "net_model.pt")
    with pytest.raises(Exception, match=r"[Ww]eights.only"):
        load_model(tmp_path / "net_model.pt")


def test_a_flipped_bit_is_refused_or_changes_no_weight(tmp_path):
    """torch's reader ignores the checksums of its zip; 400 bits, evenly over the file."""
    path = tmp_path / "net_model.pt"
    torch.save({"weight": torch.arange(2_000.0), "bias": torch.zeros(3)}, path)
    whole, weights = path.read_bytes(), load_model(path)
    refused = 0
    for i in range(400):
        place = i * len(whole) // 400
        damaged = bytearray(whole)
        damaged[place] ^= 1 << i % 8
        path.write_bytes(damaged)
        try:
            loaded = load_model(path)
        except RunFolderError:
            refused += 1
        else:  # in a part of the zip that means nothing, such as a date
            assert loaded.keys() == weights.keys()
            assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    assert refused > 350


def test_models_that_cannot_all_be_written_leave_the_older_set_whole(tmp_path, monkeypatch):
    """The disk is full when the second of two files is written."""
    layout = RunLayout.create("tiny", "2026_01_01_000000", tmp_path)
    before = {"net_model": {"w": torch.zeros(2)}, "net_optim": {"w": torch.zeros(2)}}
    save_models(before, layout, 0, 0, best=False)
    save, calls = torch.save, []

    def save_once(state, file):
        calls.append(file)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(state, file)

    monkeypatch.setattr(torch, "save", save_once)
    after = {"net_model": {"w": torch.ones(2)}, "net_optim": {"w": torch.ones(2)}}
    with pytest.raises(OSError, match=r"No space left on device: '.*tiny_t0_s0_net_optim\.pt'"):
        save_models(after, layout, 0, 0, best=False)
    assert {name: state["w"].tolist() for name, state in saved(layout).items()} == {
        "net_model.pt": [0.0, 0.0],
        "net_optim.pt": [0.0, 0.0],
    }


def test_a_file_of_safetensors_loads_as_it_was_and_a_damaged_one_is_refused(tmp_path):
    path = tmp_path / "net_model.safetensors"
    path.write_bytes(safetensors.torch.save({"bias": torch.tensor([1.0, 2.0])}))
    assert load_model(path)["bias"].tolist() == [1.0, 2.0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunFolderError, match=r"net_model\.safetensors: is no file of safetensors"):
        load_model(path)

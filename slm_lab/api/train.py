"""`train("PPO", env="CartPole-v1", frames=50_000)`: from keywords to a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from slm_lab.api.result import Result
from slm_lab.api.run import run
from slm_lab.runs.layout import new_timestamp
from slm_lab.spec import Problem, Spec, SpecError
from slm_lab.spec.keywords import spec_from_keywords
from slm_lab.training.notebook_display import in_notebook
from slm_lab.training.options import RunOptions

if TYPE_CHECKING:
    from slm_lab.agent.agent import Agent
    from slm_lab.training.callback import Callback


def train(
    algorithm: str | type | Spec | Mapping[str, Any] | Result | Agent,
    env: Any = None,
    frames: int | None = None,
    *,
    name: str = "",
    data: str | Path = "data",
    callbacks: Sequence[Callback | type[Callback]] = (),
    **keys: Any,
) -> Result:
    """Train an agent and return its result.

        result = train("PPO", env="CartPole-v1", frames=50_000)
        result = train("SAC", env=lambda: MyEnv(size=7), frames=100_000, sessions=4, gamma=0.98)
        result = train(result, frames=200_000)

    `algorithm` is a name or a class of your own, a Spec, or a mapping with a whole spec. `env` is a
    name, a `gymnasium.Env`, a function that makes one, or the block `env` with any of these as its
    `name`. Other keywords are keys of a spec, see docs/SPEC.md: single ones (`gamma`, `num_envs`,
    `hid_layers`), blocks (`net={...}`), or dotted paths. `sessions` are seeds, `seed` is what all
    random numbers come from, `lr` is the learning rate.

    A Result is trained on to more frames, in its own folder and as if it had never stopped. An
    agent that learns begins a new run, which `init_from=FOLDER` does too. The folder of a run is in
    `data`. `callbacks` are as for `run`.
    """
    if isinstance(algorithm, Result):
        others = {"name": name or None, "callbacks": callbacks or None}
        return _go_on(algorithm, env, {**keys, **others, "frames": frames})
    if env is not None:
        from slm_lab.env.given import env_block  # gymnasium is slow to import

        keys["env"] = env_block(env)
    if isinstance(source := keys.get("init_from"), Result):
        keys["init_from"] = str(source.predir)
    base: object = algorithm
    if getattr(algorithm, "learns", None) is not None:  # an Agent; its class brings torch
        base, keys["init_from"] = _begin_with(cast("Agent", algorithm), Path(data))
    spec = spec_from_keywords(base, {**keys, "frames": frames}, name)
    return _run(spec, "train", data=str(data), callbacks=callbacks)


def _go_on(result: Result, env: Any, keys: Mapping[str, Any]) -> Result:
    """Train a result further, in its folder."""
    if others := [key for key, value in keys.items() if key != "frames" and value is not None]:
        fix = "A result goes on as it began; for a new run with its weights: init_from=result"
        raise SpecError([Problem(key, fix) for key in others], "train")
    if env is not None:
        from slm_lab.env.given import give_again

        give_again(result.spec.env.name, env)
    budget = keys["frames"] or result.spec.env.max_frame
    spec = result.spec.with_values({"env.max_frame": budget})
    return _run(spec, f"train@{result.predir}", data=str(result.predir.parent))


def _begin_with(agent: Agent, data: Path) -> tuple[Spec, str]:
    """The spec of an agent, and a folder that it is saved in, for a new run to begin with."""
    if agent.spec is None or not agent.learns:
        fix = "It was loaded to act. Use load_agent(FOLDER, learns=True), or init_from=FOLDER."
        raise SpecError([Problem("agent", fix)], "train")
    folder = agent.save(data / f"{agent.spec.name}_agent_{new_timestamp()}")
    return agent.spec, str(folder)


def _run(
    spec: Spec, mode: str, *, data: str, callbacks: Sequence[Callback | type[Callback]] = ()
) -> Result:
    """Run a spec; a notebook shows progress and warnings, but no lines of the log."""
    level = "WARNING" if in_notebook() else "INFO"
    return run(spec, mode, RunOptions(data_dir=data, log_level=level), callbacks=callbacks)

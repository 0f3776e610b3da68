"""`meta`: how often a spec is repeated, logged and saved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from slm_lab.spec.block import Block, Count, CountOrZero, FreeMapping, SmallCount, Whole, spec_key

# A saved spec carries what its run added; none of it shapes the next run.
SAVED_RUN_KEYS = frozenset(
    [
        "experiment",
        "trial",
        "session",
        "cuda_offset",
        "resume",
        "experiment_ts",
        "prepath",
        "git_sha",
        "predir",
        "graph_prepath",
        "info_prepath",
        "log_prepath",
        "model_prepath",
    ]
)
FORMER_META_KEYS = frozenset(
    ["num_gpus", "resources", "search", "training_mode", "debug_level", "max_tick", "max_tick_unit"]
)


def _on_off(value: object) -> object:
    # YAML reads a bare `on` as true.
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _count_of_truth(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


class MetaSpec(Block):
    """The run around the algorithm."""

    distributed: Literal[False, "synced", "shared"] = spec_key(
        False, "Hogwild training by all sessions together: false, synced, shared."
    )
    max_session: Annotated[SmallCount, Field(le=10_000)] = spec_key(1, "Seeds of each trial.")
    max_trial: SmallCount | None = spec_key(None, "Trials of a search.")
    log_frequency: Count = spec_key(
        10_000,
        "Frames between rows of the curve; unless given a hundredth of env.max_frame, "
        "at most 10,000.",
    )
    eval_frequency: Count = spec_key(10_000, "Frames between evals, with rigorous_eval.")
    checkpoint_frequency: Count | None = spec_key(
        None, "Frames between saved checkpoints; null is automatic."
    )
    rigorous_eval: Annotated[
        CountOrZero,
        BeforeValidator(_count_of_truth),
        WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 0}]}),
    ] = spec_key(0, "Not 0: evaluate in a separate env.")
    search_resources: FreeMapping = spec_key(
        {"cpu": 1, "gpu": 0}, "What one trial of a search takes: cpu, gpu."
    )
    search_scheduler: FreeMapping | None = spec_key(
        None, "ASHA arguments, such as grace_period and reduction_factor."
    )
    search_sampler: Literal["optuna", "random", "grid"] = spec_key(
        "optuna", "Where the trials of a search are: optuna, random, grid."
    )
    random_seed: Annotated[Whole, Field(ge=0, le=2**63 - 1)] | None = spec_key(
        None, "Seed that all random streams come from; null draws one."
    )
    compile: Annotated[
        Literal["auto", "on", "off"],
        BeforeValidator(_on_off),
        WithJsonSchema({"enum": ["auto", "on", "off", True, False]}),
    ] = spec_key("auto", "Compile the learning step; auto decides by expected work.")
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = spec_key(
        "default", "How to compile, as torch.compile names it; reduce-overhead is CUDA graphs."
    )
    threads: SmallCount | None = spec_key(
        None, "Torch threads of each session; null is 1. With 2 PPO trains two nets at once."
    )

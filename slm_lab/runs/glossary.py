"""Names, labels and meanings of the columns of a session table and of the metrics made of them.

The dashboard, the report and the graphs take their labels from here; `slm-lab spec --glossary`
writes docs/GLOSSARY.md from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

MOVING_AVERAGE_WINDOW = 100  # rows of `total_reward` in `total_reward_ma`


class Term(NamedTuple):
    label: str
    meaning: str


SCORES: Mapping[str, Term] = {
    "total_reward": Term(
        "return",
        "Score of one row. Several envs: the mean return of the last 100 finished episodes, empty "
        "before the first. One env: the return of the last finished episode, 0 before the first. "
        "In `df_eval`, which exists with `meta.rigorous_eval` alone: the mean return of one fresh "
        "episode per env, played greedily.",
    ),
    "total_reward_ma": Term(
        "return, moving average",
        "Mean of `total_reward` over the last 100 rows. It is the score of the benchmark tables, "
        "of searches and of `ckpt-best`. It lags: with few rows, or soon after the agent has "
        "learned, rows from before that are still in the mean. Look at `last_100_return` for how "
        "good the agent was at the end.",
    ),
    "last_100_return": Term(
        "return, last 100 episodes",
        "Mean return of the last 100 finished training episodes, exploration included; of fewer "
        "where there were not so many.",
    ),
}
COUNTERS: Mapping[str, Term] = {
    "fps": Term("frames per second", "Frames divided by the seconds of the session so far."),
    "frame": Term("frames", "Env steps so far, over all envs of the session."),
    "wall_t": Term("seconds", "Seconds that the session has run, interruptions left out."),
    "t": Term("step", "One env: steps of the running episode. Several: steps of each env."),
    "epi": Term("episodes", "One env: finished episodes. Empty with several envs."),
    "opt_step": Term("gradient steps", "Optimiser steps so far, those of each net counted."),
}
LEARNING: Mapping[str, Term] = {
    "loss": Term(
        "loss", "The whole loss that was differentiated; of SAC's kin that of the critics."
    ),
    "lr": Term("learning rate", "Mean of today's learning rates of the nets."),
    "grad_norm": Term(
        "gradient norm", "Euclidean norm of the gradient before clipping, averaged over the nets."
    ),
    "last_100_length": Term(
        "episode length", "Mean length in steps of the last 100 finished training episodes."
    ),
    "entropy": Term(
        "entropy",
        "Entropy of the policy in nats, mean over the states learned from. Near 0 it has stopped "
        "exploring; a density may have a negative one.",
    ),
    "policy_loss": Term("policy loss", "Part of the loss that moves the policy, without entropy."),
    "value_loss": Term(
        "value loss", "Part of the loss that moves the values, times `val_loss_coef`."
    ),
    "explained_variance": Term(
        "explained variance",
        "1 - Var(target - value) / Var(target) over a rollout, before learning from it. 1: the "
        "critic foresees the returns. 0: no better than their mean. Below 0: worse.",
    ),
    "approx_kl": Term(
        "approximate KL",
        "KL divergence of the policy that acted from the one that learns, by Schulman's estimator "
        "r - 1 - ln r. A few hundredths is usual.",
    ),
    "clip_frac": Term("clip fraction", "Share of rows whose probability ratio PPO clips."),
    "clip_eps": Term("clip range", "Today's clip range of PPO."),
    "entropy_coef": Term("entropy coefficient", "Today's weight of the entropy in the loss."),
    "explore_var": Term(
        "exploration", "Today's epsilon, temperature with boltzmann, or std of TD3's noise."
    ),
    "alpha": Term("temperature", "Weight of the entropy in SAC's objective."),
    "q_value": Term(
        "Q value", "Mean predicted return of the actions in a batch, in rewards of the env."
    ),
    "sil_policy_loss": Term("imitation policy loss", "Policy loss of self-imitation."),
    "sil_value_loss": Term("imitation value loss", "Value loss of self-imitation."),
}
COLUMNS: Mapping[str, Term] = {**SCORES, **COUNTERS, **LEARNING}

METRICS: Mapping[str, Term] = {
    "strength": Term("strength", "Mean over the rows of S = return - return of a random policy."),
    "max_strength": Term("max strength", "Highest S of any row."),
    "final_strength": Term("final strength", "S of the last row."),
    "sample_efficiency": Term(
        "sample efficiency", "sum(S / frame) / sum(S): high if the strength came early."
    ),
    "training_efficiency": Term(
        "training efficiency", "sum(S / opt_step) / sum(S): the same per gradient step."
    ),
    "stability": Term("stability", "1 - |sum of the drops of S / sum(S)|: 1 if it never drops."),
    "consistency": Term(
        "consistency", "1 - 2 sum(std of S over sessions) / sum(mean): 1 if all learn alike."
    ),
    "evaluated": Term(
        "evaluated score",
        "Mean return over fresh episodes, by `slm-lab eval` of the best saved agents, else of the "
        "last ones; without one, the last evaluation of `meta.rigorous_eval`. Nothing else is "
        "called an evaluation.",
    ),
}


def label(name: str) -> str:
    """What a graph or a table calls a column or a metric."""
    term = COLUMNS.get(name) or METRICS.get(name)
    return term.label if term else name.replace("_", " ")


def meaning(name: str) -> str:
    """The meaning of a column or a metric; empty for one of the user's own."""
    term = COLUMNS.get(name) or METRICS.get(name)
    return term.meaning if term else ""


def format_value(key: str, value: float) -> str:
    """Format `frame` as 2.00e+05, rewards as 500.00, other fractions to four digits."""
    if key == "frame":
        return f"{value:.2e}"
    if key in ("total_reward", "total_reward_ma", "last_100_return"):
        return f"{value:.2f}"
    return f"{value:g}" if float(value).is_integer() else f"{value:.4g}"


def page() -> str:
    """The glossary as Markdown."""
    return "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    yield "# Glossary"
    yield ""
    yield "Every column of a session's CSV and every metric of a trial. This page is generated:"
    yield "`slm-lab spec --glossary > docs/GLOSSARY.md`."
    yield ""
    yield "`info/NAME_t0_s0_session_df_train.csv` has a row every `meta.log_frequency` frames; an"
    yield "empty cell is not known yet. A file with `eval` in its name exists only where episodes"
    yield "apart from training were played (`meta.rigorous_eval`). The original SLM Lab and earlier"
    yield "versions of this one always write one, a copy of the training table; it is read as that."
    titles = {"Scores": SCORES, "Counters": COUNTERS, "Learning": LEARNING}
    for title, terms in titles.items():
        yield from _table(f"{title} (columns)", "column", terms)
    yield ""
    yield "Learning columns are means over the gradient steps of the latest update. All algorithms"
    yield "that learn have `loss`, `lr` and `grad_norm`, and all have `last_100_return` and"
    yield "`last_100_length`, after the columns that the original has. The others are there where"
    yield "an algorithm has such a thing; its record in `slm_lab/spec/algorithm/` names them."
    scores = {name: SCORES[name] for name in ("total_reward_ma", "last_100_return")}
    metrics = {**scores, **METRICS}
    yield from _table("Metrics of a trial", "metric", metrics)
    yield ""
    yield "Each is the mean over the sessions of a trial. `frame` is the last of session 0."


def _table(title: str, head: str, terms: Mapping[str, Term]) -> Iterator[str]:
    yield from ("", f"## {title}", "", f"| {head} | on screen | meaning |", "|---|---|---|")
    for name, term in terms.items():
        yield f"| `{name}` | {term.label} | {term.meaning.replace('|', chr(92) + '|')} |"

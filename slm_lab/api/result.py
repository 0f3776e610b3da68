"""The result of a trial in Python: its metrics, tables, curve and agents, and more training."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, fields
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from slm_lab.analysis.evaluation import Evaluation
from slm_lab.analysis.tables import read_session
from slm_lab.analysis.trial import TrialMetrics, analyze_trial
from slm_lab.api.results import evaluate
from slm_lab.card import card, picture
from slm_lab.runs.find import open_run
from slm_lab.runs.layout import RunLayout
from slm_lab.spec import Spec
from slm_lab.spec.trust import trusted_modules

if TYPE_CHECKING:
    import pandas as pd

    from slm_lab.agent.agent import Agent


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result(TrialMetrics):
    """A trained trial. `sessions` maps each session to its metrics; the files are in `predir`."""

    spec: Spec
    layout: RunLayout
    trial: int = 0

    @classmethod
    def of(cls, metrics: TrialMetrics, spec: Spec, layout: RunLayout, trial: int = 0) -> Result:
        """Build the result of a trial from its metrics and where they lie."""
        values = {each.name: getattr(metrics, each.name) for each in fields(TrialMetrics)}
        return cls(**values, spec=spec, layout=layout, trial=trial)

    @property
    def df(self) -> pd.DataFrame:
        """All rows of the curves of all sessions; the column `session` comes first."""
        import pandas as pd  # slow to import, and a run has no other use for it before its end

        tables = self._tables()
        for session, table in tables.items():
            table.insert(0, "session", session)
        return pd.concat(tables.values(), ignore_index=True) if tables else pd.DataFrame()

    def agent(
        self, session: int | None = None, *, best: bool = True, learns: bool = False
    ) -> Agent:
        """Load a trained agent: by default the best of the best session.

        With `learns` it has its critics and a memory too, and goes on learning.
        """
        from slm_lab.playback.saved_agent import load_agent  # torch is slow to import

        agent, env = load_agent(
            self.predir,
            trial=self.trial,
            session=session,
            best=best,
            learns=learns,
            trust=trusted_modules(self.spec),
        )
        env.close()
        return agent

    def evaluate(self, episodes: int = 100, *, seed: int = 0, sampled: bool = False) -> Evaluation:
        """Play fresh episodes with the best agent of every session; see `slm_lab.evaluate`."""
        return evaluate(
            self.predir,
            trial=self.trial,
            episodes=episodes,
            sampled=sampled,
            seed=seed,
            trust=trusted_modules(self.spec),
        )

    def plot(self, y: str = "total_reward", *, smooth: bool = True) -> Graph:
        """The curve of a column of `df`; a notebook shows it, `.save(FILE)` writes it as PNG."""
        if y == "total_reward" and smooth and self.graph_png.is_file():
            return Graph(self.graph_png.read_bytes())
        from slm_lab.analysis.plot import plot_tables  # matplotlib is slow to import

        tables = self._tables()
        known = sorted({str(column) for table in tables.values() for column in table})
        if y not in known:
            raise ValueError(f"no column {y!r}; the sessions have {', '.join(known)}")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.png"
            title = self.layout.trial_name(self.trial)
            is_return = y == "total_reward"
            plot_tables([*tables.values()], path, title=title, y=y, smooth=smooth and is_return)
            return Graph(path.read_bytes())

    def _tables(self) -> dict[int, pd.DataFrame]:
        sessions = self.layout.sessions(self.trial)
        paths = {s: self.layout.session_csv(self.trial, s, "train") for s in sessions}
        return {s: read_session(path, folder=self.predir) for s, path in paths.items()}

    def _facts(self) -> dict[str, str]:
        """What is worth knowing at a glance."""
        score = "no episode ended yet"
        if not math.isnan(self.total_reward_ma):
            score = f"{self.last_100_return:.2f} in the last 100 episodes"
        facts = {
            "score": f"{score}, mean of {len(self.sessions)} session(s)",
            "average": f"{self.total_reward_ma:.2f} (total_reward_ma, of the last 100 rows)",
            "frames": f"{self.frame:,.0f} of {self.spec.env.max_frame:,} a session",
            "folder": str(self.predir),
        }
        facts |= {f"session {s} failed": error.splitlines()[-1] for s, error in self.failed.items()}
        return facts | {f"session {s} ended early": why for s, why in self.stopped.items()}

    @property
    def _title(self) -> str:
        return f"{self.spec.agent.label} on {self.spec.env.name}"

    def __repr__(self) -> str:
        facts = self._facts().items()
        return "\n".join([self._title, *(f"  {name:<8}{fact}" for name, fact in facts)])

    def _repr_html_(self) -> str:
        shown = picture(_smaller(self.graph_png.read_bytes())) if self.graph_png.is_file() else ""
        return card(self._title, self._facts(), shown)


@dataclass(frozen=True, slots=True, repr=False)
class Graph:
    """A graph as PNG, which a notebook shows."""

    png: bytes

    def save(self, path: str | Path) -> Path:
        Path(path).write_bytes(self.png)
        return Path(path)

    def __repr__(self) -> str:
        return f"a PNG of {len(self.png):,} bytes; .save(FILE) writes it"

    def _repr_png_(self) -> bytes:
        return _smaller(self.png)


def _smaller(png: bytes) -> bytes:
    """The same graph in fewer colours, a third of the bytes, as a notebook keeps all of them."""
    from PIL import Image  # matplotlib brings it; slow to import

    small = BytesIO()
    Image.open(BytesIO(png)).convert("RGB").quantize(64).save(small, "PNG", optimize=True)
    return small.getvalue()


def load_result(
    folder: str | Path = "latest",
    *,
    trial: int | None = None,
    data: str | Path = "data",
    trust: Collection[str] = (),
) -> Result:
    """The result of a run on disk: its folder, or `latest` of those in `data`."""
    run = open_run(folder, trial=trial, data_dir=data, trust=trust)
    metrics = analyze_trial(run.layout, run.trial, write=False)
    return Result.of(metrics, run.spec, run.layout, run.trial)

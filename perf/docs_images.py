"""Make the pictures of docs/images/: train what they show, if it is not there yet, and draw it.

    python perf/docs_images.py [--data data/docs]     # graphs
    python -m perf.dashboard_screenshots              # the page on the same runs

The runs are shipped specs, cut to budgets that are enough to see them differ: minutes on two cores.
What was trained already is not trained again. A picture may take 150 kB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image

IMAGES = Path(__file__).parents[1] / "docs" / "images"
DATA = Path("data/docs")
MOST_BYTES = 150_000
TITLE = "CartPole-v1"


class Training(NamedTuple):
    """A run of a shipped spec; `time` makes the name of its folder known beforehand."""

    file: str  # below slm_lab/spec/benchmark/
    name: str
    time: str
    sets: tuple[str, ...]
    mode: str = "train"

    def folder(self, data: Path) -> Path:
        return data / f"{self.name}_{self.time}"


FOUR_SEEDS = ("meta.max_session=4", "env.max_frame=60000", "meta.random_seed=1")
COMPARED = (
    Training(
        "reinforce/reinforce_cartpole.json", "reinforce_cartpole", "2026_11_19_100000", FOUR_SEEDS
    ),
    Training("a2c/a2c_gae_cartpole.json", "a2c_gae_cartpole", "2026_11_19_110000", FOUR_SEEDS),
    Training("ppo/ppo_cartpole.json", "ppo_cartpole", "2026_11_19_120000", FOUR_SEEDS),
)
ON_THE_PAGE = (
    *COMPARED,
    Training(
        *("ppo/ppo_cartpole.json", "ppo_cartpole", "2026_11_19_130000"),
        (*FOUR_SEEDS, "agent.algorithm.training_epoch=2"),
    ),
    Training(
        *("ppo/ppo_cartpole_search.json", "ppo_cartpole_search", "2026_11_19_140000"),
        (
            "env.max_frame=20000",
            "meta.max_session=1",
            "meta.max_trial=16",
            "meta.search_scheduler.grace_period=5000",
            "meta.random_seed=1",
        ),
        "search",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    data = parser.parse_args().data
    for training in ON_THE_PAGE:
        train(training, data)
    folders = [training.folder(data) for training in COMPARED]
    with tempfile.TemporaryDirectory() as scratch:
        draw(folders, Path(scratch))
        IMAGES.mkdir(exist_ok=True)
        for drawn in sorted(Path(scratch).glob("*.png")):
            shrink(drawn, IMAGES / drawn.name)
    trial = next(folders[-1].glob("*_trial_graph_mean_returns_ma_vs_frames.png"))
    shrink(trial, IMAGES / "trial.png")
    searched = ON_THE_PAGE[-1].folder(data)
    for kind in ("experiment_graph", "experiment_graph_parallel"):
        shrink(searched / f"{ON_THE_PAGE[-1].name}_{kind}.png", IMAGES / f"search_{kind}.png")


def train(training: Training, data: Path) -> None:
    """Train it, unless it is trained; go on with one that was cut short."""
    folder = training.folder(data)
    if next(folder.glob("*_t0_trial_metrics_scalar.json"), None) and training.mode == "train":
        return
    if next(folder.glob("*_experiment_graph.html"), None):
        return
    resume = str(folder) if folder.exists() else ""
    options = f"RunOptions(data_dir={str(data)!r}, timestamp={training.time!r})"
    call = f"search(spec, {options}, resume={resume!r})"
    if training.mode == "train":
        mode = f"train@{resume}" if resume else "train"
        call = f"run(spec, {mode!r}, {options})"
    code = (
        "from slm_lab import RunOptions, load_spec, run\n"
        "from slm_lab.api.run import search\n"
        "if __name__ == '__main__':\n"
        f"    sets = {json.dumps(training.sets)}\n"
        f"    spec = load_spec('benchmark/{training.file}', {training.name!r}, sets=sets)\n"
        f"    {call}\n"
    )
    with tempfile.TemporaryDirectory() as place:  # sessions import the script they belong to
        script = Path(place) / "train.py"
        script.write_text(code)
        subprocess.run([sys.executable, script], check=True)


def draw(folders: list[Path], output: Path) -> None:
    names = [str(folder) for folder in folders]
    slm_lab("plot", "-t", TITLE, "-f", ",".join(names), "-o", str(output))
    slm_lab("compare", *names, "-t", TITLE, "-o", str(output))


def slm_lab(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "slm_lab.cli.main", *arguments], check=True)


def shrink(source: Path, path: Path) -> None:
    """The same picture with 128 colours, which is what a graph has."""
    with Image.open(source) as image:
        image.convert("RGB").quantize(128).save(path, optimize=True)
    size = path.stat().st_size
    assert size <= MOST_BYTES, f"{path}: {size:,} bytes, at most {MOST_BYTES:,}"


if __name__ == "__main__":
    main()

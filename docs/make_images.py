"""Make the pictures of docs/images/: train what they show, if it is not there yet, and draw it.

    python docs/make_images.py [--data data/docs]

The runs are shipped CartPole specs, four seeds each, cut to 60,000 frames: enough to see them
differ, and minutes on two cores. A picture may take 150 kB.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

IMAGES = Path(__file__).parent / "images"
MOST_BYTES = 150_000
TITLE = "CartPole-v1"
SETS = ["meta.max_session=4", "env.max_frame=60000", "meta.random_seed=1"]
RUNS = {  # spec name -> file below slm_lab/spec/benchmark/
    "reinforce_cartpole": "reinforce/reinforce_cartpole.json",
    "a2c_gae_cartpole": "a2c/a2c_gae_cartpole.json",
    "ppo_cartpole": "ppo/ppo_cartpole.json",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data/docs"))
    arguments = parser.parse_args()
    folders = [folder_of(name, arguments.data) for name in RUNS]
    with tempfile.TemporaryDirectory() as scratch:
        draw(folders, Path(scratch))
        IMAGES.mkdir(exist_ok=True)
        for drawn in sorted(Path(scratch).glob("*.png")):
            shrink(drawn, IMAGES / drawn.name)
    trial = next(folders[-1].glob("*_trial_graph_mean_returns_ma_vs_frames.png"))
    shrink(trial, IMAGES / "trial.png")


def folder_of(name: str, data: Path) -> Path:
    """The newest run of a spec, trained now if there is none."""
    found = sorted(data.glob(f"{name}_[0-9]*/{name}_t0_trial_metrics_scalar.json"))
    if not found:
        spec = RUNS[name]
        code = (
            "from slm_lab import RunOptions, load_spec, run\n"
            "if __name__ == '__main__':\n"
            f"    sets = {SETS!r}\n"
            f"    spec = load_spec('benchmark/{spec}', '{name}', sets=sets)\n"
            f"    run(spec, 'train', RunOptions(data_dir={str(data)!r}))\n"
        )
        with tempfile.TemporaryDirectory() as folder:  # sessions import the script they belong to
            script = Path(folder) / "train.py"
            script.write_text(code)
            subprocess.run([sys.executable, script], check=True)
        found = sorted(data.glob(f"{name}_[0-9]*/{name}_t0_trial_metrics_scalar.json"))
    return found[-1].parent


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

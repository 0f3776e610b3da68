"""Pictures into files, without a screen."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from slm_lab.env.error import EnvError
from slm_lab.playback import enjoy
from slm_lab.playback.enjoy import can_write_mp4, open_video


def frames(count: int, height: int = 40, width: int = 60) -> list[np.ndarray]:
    """A red bar that moves right by one pixel at each frame."""
    pictures = np.zeros((count, height, width, 3), np.uint8)
    for i in range(count):
        pictures[i, :, i : i + 5, 0] = 255
    return list(pictures)


def write(path: Path, fps: float, pictures: list[np.ndarray]) -> Path:
    with open_video(path, fps) as movie:
        for picture in pictures:
            movie.add(picture)
    return path


def pictures_in(path: Path) -> list[tuple[int, np.ndarray]]:
    """(milliseconds, picture) of every picture in a GIF."""
    with Image.open(path) as gif:
        shown = []
        for i in range(gif.n_frames):  # type: ignore[attr-defined]
            gif.seek(i)
            shown.append((gif.info["duration"], np.asarray(gif.convert("RGB"))))
        return shown


def red_columns(picture: np.ndarray) -> list[int]:
    return np.flatnonzero(picture[10, :, 0] > 128).tolist()


def test_a_gif_shows_the_frames_at_the_speed_they_were_made_for(tmp_path):
    shown = pictures_in(write(tmp_path / "bar.gif", 20, frames(10)))
    assert [milliseconds for milliseconds, _ in shown] == [50] * 10
    for i, (_, picture) in enumerate(shown):
        assert red_columns(picture) == list(range(i, i + 5))


def test_a_fast_env_is_thinned_to_25_pictures_a_second_and_lasts_as_long(tmp_path):
    shown = pictures_in(write(tmp_path / "bar.gif", 50, frames(20)))
    assert [milliseconds for milliseconds, _ in shown] == [40] * 10


def test_a_large_picture_is_scaled_down_in_a_gif(tmp_path):
    shown = pictures_in(write(tmp_path / "bar.gif", 20, frames(2, 400, 640)))
    assert shown[0][1].shape == (200, 320, 3)


@pytest.mark.skipif(not can_write_mp4(), reason="imageio-ffmpeg is not installed (extra `video`)")
def test_an_mp4_holds_every_frame(tmp_path):
    import imageio_ffmpeg

    path = write(tmp_path / "bar.mp4", 50, frames(20, 65, 97))
    assert imageio_ffmpeg.count_frames_and_secs(str(path)) == (20, 0.4)
    # 96 x 64: even, as the pixel format asks.
    decode = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path)]
    decode += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    data = subprocess.run(decode, capture_output=True, check=True).stdout
    pictures = np.frombuffer(data, np.uint8).reshape(20, 64, 96, 3)
    assert abs(np.mean(red_columns(pictures[10])) - 12) < 1


def test_no_file_appears_until_it_is_whole(tmp_path):
    path = tmp_path / "new" / "bar.gif"
    with open_video(path, 20) as movie:
        movie.add(frames(1)[0])
        assert not path.exists()
    assert [p.name for p in path.parent.iterdir()] == ["bar.gif"]


def test_an_interrupted_video_leaves_nothing_and_keeps_the_old_one(tmp_path):
    path = write(tmp_path / "bar.gif", 20, frames(3))
    before = path.read_bytes()
    with pytest.raises(AttributeError), open_video(path, 20) as movie:
        movie.add("no picture")  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["bar.gif"]


def test_another_suffix_is_refused(tmp_path):
    expected = r"--output: found `bar.avi`; expected a name in .mp4 or .gif"
    with pytest.raises(EnvError, match=expected), open_video(tmp_path / "bar.avi", 20):
        pass


def test_an_mp4_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(enjoy, "can_write_mp4", lambda: False)
    expected = r"pip install 'slm-lab\[video\]'.*\.gif"
    with pytest.raises(EnvError, match=expected), open_video(tmp_path / "bar.mp4", 20):
        pass

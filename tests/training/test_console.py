import io
import math
import re
from dataclasses import replace

import pytest
from loguru import logger
from rich.console import Console

from slm_lab.training.console import (
    Progress,
    TrialDisplay,
    format_checkpoint,
    format_profile,
    format_value,
    setup_logging,
)

START = Progress(
    session=0, frame=500, max_frame=10_000, fps=11_300.0, total_reward_ma=21.5, best=22.0
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def messages():
    caught: list[str] = []
    handler = logger.add(lambda message: caught.append(message.record["message"]))
    yield caught
    logger.remove(handler)


@pytest.fixture
def restored_logger():
    yield
    logger.remove()


# Formats


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("frame", 200_000, "2.00e+05"),
        ("total_reward", 500.0, "500.00"),
        ("total_reward_ma", 23.456, "23.46"),
        ("strength", 401.8234, "401.8"),
        ("consistency", 1.0, "1"),
        ("lr", 0.0003, "0.0003"),
        ("opt_step", 1500, "1500"),
        ("loss", math.nan, "nan"),
        ("total_reward_ma", math.nan, "nan"),
    ],
)
def test_a_value_is_spelled_by_what_it_is(key, value, text):
    assert format_value(key, value) == text


def test_a_checkpoint_is_a_heading_and_cells_of_one_width_four_to_a_line():
    row = {"total_reward": 20.0, "loss": 0.5, "fps": 1000.0, "frame": 100.0, "lr": 3e-4}
    assert format_checkpoint(0, 2, "demo_t0_s2", row).splitlines() == [
        "Trial 0 session 2 demo_t0_s2 [train]",
        "total_reward:20.00  loss:0.5            fps:1000            frame:1.00e+02",
        "lr:0.0003",
    ]


def test_a_profile_is_one_line_of_shares():
    line = format_profile(env_s=3.1, act_s=2.2, learn_s=4.1, other_s=0.6)
    assert line == "time: env 31 % · act 22 % · learn 41 % · other 6 %"


def test_a_profile_of_no_time_is_all_zero():
    assert format_profile(0, 0, 0, 0) == "time: env 0 % · act 0 % · learn 0 % · other 0 %"


# Logging


def test_log_lines_go_to_the_file_and_to_stderr_in_the_house_form(
    tmp_path, capsys, restored_logger
):
    setup_logging(tmp_path / "demo_t0.log", "info")
    logger.info("Trial 0 done")
    logger.debug("not asked for")
    written = (tmp_path / "demo_t0.log").read_text()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| INFO \| PID:\d+ \| test_console:test_\w+ \| "
        r"Trial 0 done\n",
        written,
    )
    assert capsys.readouterr().err == written


def test_a_session_keeps_its_checkpoints_to_its_file_but_warns_on_stderr(
    tmp_path, capsys, restored_logger
):
    setup_logging(tmp_path / "demo_t0_s0.log", "INFO", stderr_level="WARNING")
    logger.info("a checkpoint")
    logger.warning("a surprise")
    assert "a checkpoint" in (tmp_path / "demo_t0_s0.log").read_text()
    err = capsys.readouterr().err
    assert "a checkpoint" not in err
    assert "a surprise" in err


# The display


def plain_console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False)


def test_a_pipe_gets_one_line_per_session_every_five_seconds_and_the_last(messages):
    clock = Clock()
    with TrialDisplay(0, 2, console=plain_console(), clock=clock) as display:
        for step in range(1, 101):  # a hundred updates over ten seconds
            clock.now = step / 10
            for session in (0, 1):
                display.update(replace(START, session=session, frame=step * 100))
    of_first = [message for message in messages if "session 0" in message]
    assert [re.findall(r"frame ([\d,]+)", message) for message in of_first] == [
        ["100"],
        ["5,100"],
        ["10,000"],
    ]
    assert len(messages) == 6


def test_a_plain_line_says_where_the_session_is_and_how_it_does(messages):
    with TrialDisplay(1, 4, console=plain_console()) as display:
        display.update(replace(START, session=3, profile="time: env 31 %"))
        display.update(replace(START, session=2, total_reward_ma=math.nan, best=math.nan))
        display.finish(3, "done")
    assert messages == [
        "Trial 1 session 3 | frame 500 of 10,000 (5%) | 11,300 frames/s | "
        "total_reward_ma 21.50 | best 22.00 | time: env 31 %",
        "Trial 1 session 2 | frame 500 of 10,000 (5%) | 11,300 frames/s | "
        "total_reward_ma nan | best nan",
        "Trial 1 session 3 | done",
    ]


def test_a_terminal_gets_a_row_per_session_and_no_progress_lines(messages):
    screen = io.StringIO()
    console = Console(
        file=screen, force_terminal=True, width=100, color_system=None, _environ={"TERM": "xterm"}
    )
    with TrialDisplay(0, 2, console=console) as display:
        display.update(replace(START, frame=5_000, profile="time: env 31 % · act 22 %"))
    escape_sequence = r"\x1b\[[0-9;?]*[A-Za-z]"
    picture = re.sub(escape_sequence, "", screen.getvalue()).replace("\r", "\n").split("\n")
    first, second, profile = [line.strip() for line in picture if line.strip()][-3:]
    assert messages == []
    assert first.startswith("t0 s0")
    for shown in ("50%", "11,300 frames/s", "reward 21.50", "best 22.00"):
        assert shown in first
    assert second.startswith("t0 s1")
    assert "starting" in second
    assert "time: env 31 % · act 22 %" in profile

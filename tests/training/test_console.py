import io
import math
import re
from dataclasses import replace

import pytest
from loguru import logger
from rich.console import Console

from slm_lab.runs.glossary import format_value
from slm_lab.training.console import (
    Pace,
    Progress,
    Told,
    TrialDisplay,
    format_checkpoint,
    format_count,
    format_duration,
    format_profile,
    setup_logging,
)

nan = math.nan
START = Progress(
    session=0,
    frame=500,
    max_frame=10_000,
    fps=11_300.0,
    total_reward_ma=21.5,
    best=22.0,
    last_100_return=40.0,
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
    with TrialDisplay(0, [0, 1], 10_000, console=plain_console(), clock=clock) as display:
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
    with TrialDisplay(1, range(4), 10_000, console=plain_console()) as display:
        display.update(replace(START, session=3, profile="time: env 31 %"))
        display.update(
            replace(START, session=2, last_100_return=nan, total_reward_ma=nan, best=nan)
        )
        display.finish(3, "done")
    assert messages == [
        "Trial 1 session 3 | frame 500 of 10,000 (5%) | 11,300 frames/s | "
        "last 100 episodes 40.00 | total_reward_ma 21.50 | best 22.00 | time: env 31 %",
        "Trial 1 session 2 | frame 500 of 10,000 (5%) | 11,300 frames/s | "
        "last 100 episodes nan | total_reward_ma nan | best nan",
        "Trial 1 session 3 | done",
    ]


def screen_of(width: int) -> Console:
    options = {"force_terminal": True, "color_system": None, "_environ": {"TERM": "xterm"}}
    return Console(file=io.StringIO(), width=width, **options)  # type: ignore[arg-type]


def lines_on(console: Console) -> list[str]:
    """The rows of the last picture that was drawn."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.replace("\r", "\n").split("\n") if line.strip()]


def test_a_terminal_gets_a_row_per_session_and_no_progress_lines(messages):
    console = screen_of(100)
    with TrialDisplay(0, [0, 1], 10_000, console=console) as display:
        display.update(replace(START, frame=5_000, profile="time: env 31 % · act 22 %"))
    first, second, profile, left = lines_on(console)[-4:]
    assert messages == []
    assert first.startswith("t0 s0")
    for shown in ("50%", "5k/10k", "11,300 frames/s", "last 100 40.00", "ma 21.50"):
        assert shown in first
    assert second.startswith("t0 s1")
    assert "waiting for a core" in second
    assert "time: env 31 % · act 22 %" in profile
    assert left == "0 of 2 session(s) done"


@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_every_row_fits_the_screen_and_a_control_c_fits_behind_the_last(width):
    console = screen_of(width)
    clock = Clock()
    full = replace(START, frame=3, profile=format_profile(3.1, 2.2, 4.1, 0.6))
    with TrialDisplay(0, range(12), 10_000_000, console=console, clock=clock) as display:
        for clock.now in (0.0, 20.0):
            frame = int(1 + 123_456 * clock.now)
            display.update(replace(full, session=11, frame=frame, max_frame=10_000_000))
    *rows, profile, left = lines_on(console)[-14:]
    assert all(len(row) <= width for row in rows)
    assert rows[11].startswith("t0 s11")
    assert "2.47M/10M" in rows[11]
    assert profile.startswith("time: env 31 %")
    assert re.fullmatch(r"0 of 12 session\(s\) done, about 15 min \d\d s left", left)
    display.stopping()
    for line in (left, display._left.plain):
        assert len(line) <= width - len("^C^C^C")


def test_what_a_session_waits_for_stands_where_its_speed_will():
    console = screen_of(100)
    with TrialDisplay(0, [0], 10_000, console=console) as display:
        for stage in ("importing", "making envs", "compiling"):
            display.update(Progress(0, stage=stage))
            display._live.refresh()  # type: ignore[union-attr]
            row = [line for line in lines_on(console) if line.startswith("t0 s0")][-1]
            assert "last 100 - ma -" in " ".join(row.split())
            assert stage in row
            assert "frames/s" not in row
        display.update(START)
    assert any("11,300 frames/s" in line for line in lines_on(console))


def test_a_warning_of_several_sessions_is_told_once(capsys):
    with TrialDisplay(0, [0, 1], 10_000, console=plain_console()) as display:
        for pid in (7, 8):
            display.tell(Told(f"PID:{pid} | the env cannot resume\n", "the env cannot resume"))
        display.tell(Told("PID:8 | session 1 stopped\n", "session 1 stopped"))
    assert capsys.readouterr().err == "PID:7 | the env cannot resume\nPID:8 | session 1 stopped\n"


def test_a_session_gives_its_warnings_to_its_trial_and_not_to_the_screen(
    tmp_path, capsys, restored_logger
):
    told: list[Told] = []
    setup_logging(tmp_path / "s0.log", "INFO", stderr_level="WARNING", tell=told.append)
    logger.info("a checkpoint")
    logger.warning("a surprise")
    assert [each.message for each in told] == ["a surprise"]
    assert told[0].line.endswith("| a surprise\n")
    assert capsys.readouterr().err == ""
    assert "a surprise" in (tmp_path / "s0.log").read_text()


# The end of a trial


def test_the_end_of_a_trial_is_estimated_from_all_its_sessions():
    """Two of three sessions train 100 frames/s each; 1,700 + 1,700 + 2,000 frames are left."""
    clock = Clock()
    pace = Pace({0: 2_000, 1: 2_000, 2: 2_000}, clock)
    assert pace.describe() == "0 of 3 session(s) done"
    for clock.now in (0.0, 1.0, 2.0, 3.0):
        for session in (0, 1):
            pace.reached(session, int(100 * clock.now))
    assert pace.seconds_left() == pytest.approx(5_400 / 200)
    pace.ended(0)  # by a callback, long before its budget
    assert pace.describe() == "1 of 3 session(s) done, about 18 s left"
    pace.ended(1)
    pace.ended(2)
    assert pace.describe() == "3 of 3 session(s) done"


def test_frames_of_an_earlier_run_are_not_counted_as_fast_ones():
    """One session trains 10 frames a second. Another, resumed at 1,500, is seen for the first time:
    1,990 and 500 frames are left at 10 a second."""
    clock = Clock()
    pace = Pace({0: 2_000, 1: 2_000}, clock)
    pace.reached(0, 0)
    clock.now = 1.0
    pace.reached(0, 10)
    pace.reached(1, 1_500)
    assert pace.seconds_left() == pytest.approx(249.0)


def test_only_the_last_half_minute_counts():
    """Fast for a minute, then 1 frame/s: the estimate follows."""
    clock = Clock()
    pace = Pace({0: 10_000}, clock)
    for second in range(121):
        clock.now = float(second)
        pace.reached(0, 100 * second if second < 60 else 6_000 + second - 60)
    assert pace.seconds_left() == pytest.approx(10_000 - 6_060)


@pytest.mark.parametrize(
    ("count", "text"),
    [(950, "950"), (1_000, "1k"), (12_345, "12.3k"), (999_950, "1000k"), (1_250_000, "1.25M")],
)
def test_a_large_count_is_short(count, text):
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.4, "7 s"), (75, "1 min 15 s"), (3_720, "1 h 02 min")]
)
def test_a_duration_is_told_as_a_person_would(seconds, text):
    assert format_duration(seconds) == text

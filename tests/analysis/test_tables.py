import pandas as pd
import pytest

from slm_lab.analysis.tables import drop_clock, read_session

WHOLE = "total_reward,loss,fps,frame,wall_t\n1.5,,900.0,100,0.0\n2.5,0.25,950.0,200,1.0\n"


def test_a_session_table_reads_as_floats_with_nan_for_empty_cells(tmp_path):
    path = tmp_path / "session.csv"
    path.write_text(WHOLE)
    table = read_session(path)
    assert (table.dtypes == "float64").all()
    assert table["total_reward"].tolist() == [1.5, 2.5]
    assert table["loss"].isna().tolist() == [True, False]


def test_a_row_that_a_crash_cut_short_is_left_out(tmp_path):
    path = tmp_path / "session.csv"
    path.write_text(WHOLE + "3.5,0.12")
    assert read_session(path)["frame"].tolist() == [100, 200]


def test_a_table_with_no_rows_yet_reads_as_empty(tmp_path):
    path = tmp_path / "session.csv"
    path.write_text(WHOLE.splitlines(keepends=True)[0])
    assert read_session(path).empty


def test_a_file_without_a_whole_header_is_refused_by_name(tmp_path):
    path = tmp_path / "session.csv"
    path.write_text("total_rew")
    with pytest.raises(ValueError, match=r"session\.csv: no complete line"):
        read_session(path)


def test_dropping_the_clock_leaves_what_two_equal_runs_share():
    table = pd.DataFrame({"total_reward": [1.0], "fps": [900.0], "frame": [1.0], "wall_t": [3.0]})
    assert list(drop_clock(table)) == ["total_reward", "frame"]

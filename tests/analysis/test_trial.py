"""A trial analysed from files alone, as written by anyone: here by hand."""

import json
import math

import pytest
from loguru import logger

from slm_lab.analysis import plot
from slm_lab.analysis.trial import analyze_trial
from slm_lab.runs.glossary import format_value
from slm_lab.runs.layout import RunLayout

HEADER = "total_reward,total_reward_ma,loss,fps,frame,wall_t,t,epi,opt_step,lr,entropy\n"
# A stored table: CartPole's random policy scores 22.97, so strengths are 10, 30, 24, 40.
STORED = HEADER + (
    "32.97,32.97,,1000.0,100,0.0,25,,10,0.001,0.69\n"
    "52.97,42.97,0.5,1000.0,200,0.0,50,,20,0.001,0.68\n"
    "46.97,44.303333,0.4,1000.0,300,0.0,75,,30,0.001,0.67\n"
    "62.97,48.97,0.3,1000.0,400,0.0,100,,40,0.001,0.66\n"
)
OTHER = STORED.replace("32.97,32.97", "36.97,36.97")  # strengths 14, 30, 24, 40
DIVERGED = HEADER + "30.0,30.0,,1000.0,100,0.0,25,,10,0.001,0.69\n,30.0,,1,200,0.0,50,,20,0.001,\n"


@pytest.fixture
def messages():
    caught: list[str] = []
    handler = logger.add(lambda message: caught.append(message.record["message"]))
    yield caught
    logger.remove(handler)


@pytest.fixture
def undrawn(monkeypatch):
    """Graphs as empty files, for tests that are about numbers: drawing is what takes the time."""
    for name in ("plot_curves", "plot_tables"):
        monkeypatch.setattr(plot, name, lambda *args, **kwargs: args[-1].touch())


def run_folder(tmp_path, *sessions: str, env: str = "CartPole-v1", eval_tables: bool = True):
    layout = RunLayout.create("demo", "2026_01_01_000000", tmp_path)
    spec = json.dumps({"name": "demo", "env": {"name": env}})
    layout.spec_path().write_text(spec)
    layout.trial_spec_path(0).write_text(spec)
    for i, text in enumerate(sessions):
        layout.session_csv(0, i, "train").write_text(text)
        if eval_tables:
            layout.session_csv(0, i, "eval").write_text(text)
    return layout


def test_the_metrics_of_a_stored_table_reproduce(tmp_path, undrawn):
    metrics = analyze_trial(run_folder(tmp_path, STORED), 0, html=False)
    assert metrics.scalars == pytest.approx(
        {
            "frame": 400,
            "total_reward_ma": 48.97,
            "strength": 26,
            "max_strength": 40,
            "final_strength": 40,
            "sample_efficiency": (0.1 + 0.15 + 0.08 + 0.1) / 104,
            "training_efficiency": (1 + 1.5 + 0.8 + 1) / 104,
            "stability": 1 - 6 / 64,
            "consistency": 1,
            "last_100_return": math.nan,  # a table of the original has no such column
        },
        rel=1e-6,
        nan_ok=True,
    )


def test_a_trial_writes_all_its_files_where_people_and_tools_look(tmp_path):
    layout = run_folder(tmp_path, STORED, OTHER, eval_tables=False)
    metrics = analyze_trial(layout, 0)

    files = {str(path.relative_to(layout.predir)) for path in layout.predir.rglob("*.*")}
    session_graphs = {
        f"graph/demo_t0_s{s}_session_graph_train_{curve}.png"
        for s in (0, 1)
        for curve in (
            "mean_returns_vs_frames",
            "mean_returns_ma_vs_frames",
            "loss_vs_frame",
            "entropy_vs_frame",
        )
    }
    session_info = {
        f"info/demo_t0_s{s}_session_{kind}_train.{ending}"
        for s in (0, 1)
        for kind, ending in (("df", "csv"), ("metrics", "json"), ("metrics_scalar", "json"))
    }
    session_graphs |= {
        f"graph/demo_t0_s{s}_session_graph_train_mean_returns_vs_frames.html" for s in (0, 1)
    }
    trial_pngs = {
        f"graph/demo_t0_trial_graph_{y}_vs_{x}.png"
        for y in ("mean_returns", "mean_returns_ma")
        for x in ("frames", "opt_steps", "wall_t")
    }
    assert files == session_graphs | session_info | trial_pngs | {
        "demo_spec.json",
        "demo_t0_spec.json",
        "demo_t0_trial_metrics_scalar.json",
        "demo_t0_trial_graph_mean_returns_vs_frames.png",
        "demo_t0_trial_graph_mean_returns_vs_frames.html",
        "demo_t0_trial_graph_mean_returns_ma_vs_frames.png",
        "plotly.min.js",
        "info/demo_t0_trial_metrics.json",
        "info/demo_t0_trial_metrics_scalar.json",
    }
    written = json.loads(layout.trial_metrics_scalar_copy(0).read_text())
    assert written == pytest.approx(metrics.scalars, nan_ok=True)
    assert metrics.graph_png.exists()
    assert metrics.graph_html is not None
    assert metrics.graph_html.exists()
    assert metrics.predir == layout.predir
    assert metrics.sessions[1]["strength"] == pytest.approx(27)


def test_a_trial_metrics_file_holds_lists_per_session_and_single_lists(tmp_path, undrawn):
    layout = run_folder(tmp_path, STORED, OTHER)
    analyze_trial(layout, 0, html=False)
    content = json.loads(layout.trial_metrics(0).read_text())
    assert list(content) == ["scalar", "local"]
    assert [len(series) for series in content["local"]["mean_returns"]] == [4, 4]
    assert [len(series) for series in content["local"]["stabilities"]] == [3, 3]
    assert content["local"]["frames"] == [100, 200, 300, 400]
    assert content["local"]["opt_steps"] == [10, 20, 30, 40]


def test_the_interactive_graph_can_be_left_out(tmp_path, undrawn):
    layout = run_folder(tmp_path, STORED)
    assert analyze_trial(layout, 0, html=False).graph_html is None
    assert not layout.trial_graph_html(0).exists()


def test_the_extra_graphs_show_the_local_metrics(tmp_path):
    layout = run_folder(tmp_path, STORED)
    analyze_trial(layout, 0, log_extra=True, html=False)
    for y, x in [
        ("strengths", "frames"),
        ("sample_efficiencies_ma", "frames"),
        ("stabilities", "frames"),
        ("training_efficiencies", "opt_steps"),
    ]:
        assert layout.session_graph(0, 0, "train", y, x).exists()
        assert layout.trial_graph(0, y, x).exists()
    assert layout.trial_graph(0, "consistencies").exists()


def test_the_summary_line_is_what_tools_grep_for(tmp_path, undrawn):
    metrics = analyze_trial(run_folder(tmp_path, STORED), 0, html=False)
    assert metrics.summary_line() == (
        "trial_metrics: frame:4.00e+02 | total_reward_ma:48.97 | strength:26 | max_strength:40 | "
        "final_strength:40 | sample_efficiency:0.004135 | training_efficiency:0.04135 | "
        "stability:0.9062 | consistency:1 | last_100_return:nan"
    )
    for cell in metrics.summary_line().removeprefix("trial_metrics: ").split(" | "):
        key, text = cell.split(":")
        assert text == format_value(key, metrics.scalars[key])  # as the console prints it


def test_a_run_that_solved_its_env_is_told_so_though_its_average_lags(tmp_path, undrawn):
    # 60 rows of 500 frames; from frame 15,500 on the last 100 episodes reach 500.
    returns = [20.0] * 30 + [500.0] * 30
    rows = [f"{r},{r},,1,{500 * (i + 1)},0,0,,1,0.1,{r}\n" for i, r in enumerate(returns)]
    header = HEADER.replace("entropy", "last_100_return")
    metrics = analyze_trial(run_folder(tmp_path, header + "".join(rows)), 0, html=False)
    assert metrics.total_reward_ma == pytest.approx(260)
    assert metrics.last_100_return == 500
    assert metrics.summary_line().endswith("last_100_return:500.00")


def test_a_copy_of_the_training_table_is_no_evaluation(tmp_path):
    layout = run_folder(tmp_path, STORED)  # with a copy, as the original writes it
    analyze_trial(layout, 0, html=False)
    drawn = {path.name for path in (layout.predir / "graph").iterdir()}
    assert not {name for name in drawn if "_eval_" in name}
    layout.session_csv(0, 0, "eval").write_text(OTHER)
    analyze_trial(layout, 0, html=False)
    assert layout.session_graph(0, 0, "eval", "mean_returns", "frames").exists()
    assert layout.session_metrics(0, 0, "eval").exists()


def test_trial_scalars_come_from_the_eval_table(tmp_path, undrawn):
    layout = run_folder(tmp_path, STORED)
    layout.session_csv(0, 0, "eval").write_text(OTHER)
    assert analyze_trial(layout, 0, html=False).strength == pytest.approx(27)
    train = json.loads(layout.session_metrics_scalar(0, 0, "train").read_text())
    assert train["strength"] == pytest.approx(26)


def test_a_session_that_was_killed_is_judged_by_its_training_table(tmp_path, undrawn):
    layout = run_folder(tmp_path, STORED + "63.0,49", eval_tables=False)
    metrics = analyze_trial(layout, 0, html=False)
    assert metrics.frame == 400
    assert metrics.strength == pytest.approx(26)


def test_a_diverged_session_turns_the_trial_nan_and_is_named(tmp_path, messages):
    layout = run_folder(tmp_path, STORED, DIVERGED)
    metrics = analyze_trial(layout, 0)
    assert metrics.diverged == {1: "total_reward is nan at frame 200"}
    assert math.isnan(metrics.total_reward_ma)
    assert metrics.sessions[0]["total_reward_ma"] == pytest.approx(48.97)
    assert "total_reward_ma:nan" in metrics.summary_line()
    assert '"total_reward_ma": NaN' in layout.trial_metrics_scalar(0).read_text()
    assert messages == [
        "Trial 0 session 1 diverged: total_reward is nan at frame 200. Its metrics are NaN."
    ]


def test_an_unknown_env_counts_strength_from_zero_with_one_warning(tmp_path, undrawn, messages):
    metrics = analyze_trial(run_folder(tmp_path, STORED, OTHER, env="My-v0"), 0, html=False)
    assert metrics.max_strength == pytest.approx(62.97)
    assert len(messages) == 1
    assert "no random-policy baseline is known for My-v0" in messages[0]


def test_a_trial_without_tables_is_refused_with_what_was_expected(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"demo_t0_s0_session_df_train\.csv"):
        analyze_trial(run_folder(tmp_path), 0)


def test_analysing_twice_gives_the_same_files(tmp_path):
    layout = run_folder(tmp_path, STORED.replace("entropy", "last_100_return"))
    first = analyze_trial(layout, 0)
    before = {path: path.read_bytes() for path in layout.predir.rglob("*.*")}
    assert analyze_trial(RunLayout.open(layout.predir), 0) == first
    assert {path: path.read_bytes() for path in layout.predir.rglob("*.*")} == before


def test_a_graph_names_algorithm_env_and_score(tmp_path, monkeypatch):
    headings = []
    draw = plot.plot_tables

    def note(*arguments, title, **options):
        headings.append(title)
        draw(*arguments, title=title, **options)

    monkeypatch.setattr(plot, "plot_tables", note)
    layout = run_folder(tmp_path, STORED.replace("entropy", "last_100_return"))
    tree = {"name": "demo", "env": {"name": "CartPole-v1"}, "agent": {"algorithm": {"name": "DQN"}}}
    layout.trial_spec_path(0).write_text(json.dumps(tree))
    analyze_trial(layout, 0)
    trial = headings[-1]
    assert trial.title == "DQN on CartPole-v1: last 100 episodes 0.66"
    assert trial.subtitle == "demo_t0 · moving average 48.97"
    assert trial.target == 400
    page = layout.trial_graph_html(0).read_text()
    assert "DQN on CartPole-v1: last 100 episodes 0.66" in page
    assert '"learning rate"' in page  # what was learned, beside the returns

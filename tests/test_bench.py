"""What a benchmark says must be consistent; how fast anything is, is no matter of tests."""

import pytest
import torch

from fedsift import bench
from fedsift.bench import Case
from fedsift.engines import ENGINES
from fedsift.engines.sequential import SequentialEngine
from fedsift.types import UserError
from tests.helpers.cli import complaint, done, rows
from tests.helpers.json_shapes import read_printed


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    """Starting it takes longer than all the rest."""
    monkeypatch.delitem(ENGINES, "ray")


TINY = Case("mlp", (1, 4, 4), clients=3, samples=10, batch=4, epochs=2)


def middle(figure):
    return figure["median"]


def test_a_spread_is_the_median_and_the_ends_to_four_figures():
    assert bench.spread([3.00004, 1.0, 2.0, 12.34567]) == {"median": 2.5, "low": 1.0, "high": 12.35}


# --- engines ---


def test_a_cohort_is_equal_jobs_on_data_of_their_own():
    jobs = TINY.cohort()
    assert [len(job.data) for job in jobs] == [10] * 3
    assert sorted(row for job in jobs for row in job.data.samples.rows) == list(range(30))
    assert len({job.key for job in jobs}) == 3 and all(job.state is jobs[0].state for job in jobs)


@pytest.mark.parametrize("model", ["mlp", "resnet8(width=0.25)"])
def test_the_plain_loop_trains_as_the_engines_do(model):
    jobs = Case(model, (1, 8, 8), clients=2, samples=10, batch=4).cohort()
    before = torch.get_num_threads()
    for plain, engine in zip(
        bench.plain_loop(jobs, "cpu"), SequentialEngine("cpu").run(jobs), strict=True
    ):
        for name, value in engine.items():
            torch.testing.assert_close(plain[name], value, rtol=1e-3, atol=1e-5)
        assert not torch.equal(plain[name], jobs[0].state[name])
    assert torch.get_num_threads() == before


def test_the_figures_of_one_measurement_agree_with_each_other():
    """Three clients of 10 samples in batches of 4, 4, 2, twice: 18 steps. A model takes six of
    them.
    """
    result = bench.engines([TINY], "cpu", repeats=1)
    (case,) = result["cases"]
    assert (case["model"], case["clients"], case["model_steps"], result["device"]) == (
        "mlp",
        3,
        18,
        "cpu",
    )
    ways = {row["way"]: row for row in case["ways"]}
    assert list(ways)[:2] == ["plain loop", "sequential engine, one thread"]
    plain = ways["plain loop"]
    for row in ways.values():
        assert middle(row["models_per_second"]) * 6 * middle(
            row["ms_per_model_step"]
        ) == pytest.approx(1000, rel=2e-3)
        ratio = middle(plain["ms_per_model_step"]) / middle(row["ms_per_model_step"])
        assert middle(row["times_plain_loop"]) == pytest.approx(ratio, rel=2e-3)
    assert result["machine"]["torch"] == torch.__version__


def test_every_engine_on_the_shelf_is_warmed_up_and_measured_in_turn(monkeypatch):
    runs = []

    class Noted(SequentialEngine):
        def run(self, jobs):
            runs.append(len(jobs))
            return []

    monkeypatch.setitem(ENGINES, "noted", Noted)
    monkeypatch.setattr(bench, "LEAST", 0)  # seconds: once will do
    (case,) = bench.engines([TINY], "cpu", repeats=2)["cases"]
    named = {f"{name} engine" for name in ENGINES if name != "auto"}
    assert named < {row["way"] for row in case["ways"]}
    assert runs == [3, 3, 3]


@pytest.mark.slow
def test_bench_engines_prints_a_table_or_json():
    sizes = (
        "--model",
        "mlp",
        "--clients",
        "2",
        "--samples",
        "4",
        "--batch",
        "2",
        "--repeats",
        "1",
        "--device",
        "cpu",
    )
    result = done("bench", "engines", *sizes)
    table, progress = result.stdout, result.stderr.splitlines()
    assert (
        progress[0] == "mlp: plain loop, once to warm up"
        and progress[-1] == "mlp: all in turn, 1 of 1"
    )
    assert table.startswith("mlp, 3x32x32, 2 clients x 4 samples, batch 2, on cpu")
    assert rows(table)[0][0] == "plain loop" and rows(table)[0][-1] == "1"
    as_json = done("bench", "engines", *sizes, "--epochs", "3", "--json")
    assert as_json.stderr == ""
    (case,) = read_printed("bench engines", as_json.stdout)["cases"]
    assert (
        case["clients"],
        case["samples"],
        case["batch"],
        case["epochs"],
        case["model_steps"],
    ) == (2, 4, 2, 3, 12)
    assert [row["way"] for row in case["ways"]] == [cells[0] for cells in rows(table)]


def test_bench_complains_about_unknown_names():
    assert "unknown model 'resnet9'; did you mean 'resnet8'?" in complaint(
        "bench", "engines", "--model", "resnet9"
    )
    assert "unknown device 'cpi'; did you mean 'cpu'?" in complaint(
        "bench", "engines", "--device", "cpi"
    )


# --- scale ---


def test_a_ratio_is_that_of_the_median_rounds_pair_by_pair(monkeypatch):
    """Rounds of 2 and 3 s with few and many clients, then of 4 and 4: 1.5 and 1 times, so 1.25."""
    took = iter([(2.0, 1.0), (3.0, 1.0), (4.0, 2.0), (4.0, 1.0)])
    asked = []

    def played(clients, rounds, cohort):
        asked.append((clients, rounds, cohort))
        wall, cpu = next(took)
        return {
            "clients": clients,
            "setup_s": 1.0,
            "round_s": [wall] * 3,
            "round_cpu_s": [cpu] * 3,
            "peak_mib": wall,
        }

    monkeypatch.setattr(bench, "_run_in_new_process", played)
    result = bench.scale(50_000, rounds=3, cohort=7, repeats=2)
    assert asked == [(1000, 3, 7), (50_000, 3, 7)] * 2
    assert result["round_ratio"] == {"median": 1.25, "low": 1.0, "high": 1.5}
    assert result["round_cpu_ratio"] == {"median": 0.75, "low": 0.5, "high": 1.0}
    few, many = result["federations"]
    assert (few["clients"], middle(few["round_s"]), middle(few["peak_mib"])) == (1000, 3.0, 3.0)
    assert (many["clients"], middle(many["round_s"]), middle(many["round_cpu_s"])) == (
        50_000,
        3.5,
        1.0,
    )


def test_a_fresh_process_plays_the_rounds_it_is_asked_for():
    played = bench._run_in_new_process(clients=1_000_000, rounds=2, cohort=3)
    assert (played["clients"], len(played["round_s"]), len(played["round_cpu_s"])) == (
        1_000_000,
        2,
        2,
    )
    assert min(played["round_s"] + played["round_cpu_s"]) > 0 and played["setup_s"] > 0
    assert 50 < played["peak_mib"] < 4096


def test_bench_scale_prints_a_table(monkeypatch):
    played = {"setup_s": 0.5, "round_s": [2.0], "round_cpu_s": [1.5], "peak_mib": 300.0}
    monkeypatch.setattr(
        bench, "_run_in_new_process", lambda clients, *_: played | {"clients": clients}
    )
    text = done("bench", "scale", "--clients", "2000", "--repeats", "1").stdout
    figures = ["0.5", "2", "1.5", "300"]  # no range where there is none
    assert rows(text) == [["1,000", *figures], ["2,000", *figures]]
    assert "a round with 2,000 clients takes 1 times one with 1,000," in text
    as_json = done("bench", "scale", "--clients", "2000", "--repeats", "1", "--json").stdout
    told = read_printed("bench scale", as_json)
    assert [one["peak_mib"]["median"] for one in told["federations"]] == [300, 300]
    assert (told["repeats"], told["round_ratio"]["median"]) == (1, 1)


def test_a_run_that_fails_is_one_sentence(monkeypatch):
    monkeypatch.setattr(bench, "ALONE", "import sys; sys.exit('no room')")
    with pytest.raises(UserError, match=r"^the run with 1,000 clients ended with code 1: no room$"):
        bench.scale(5000, repeats=1)


@pytest.mark.parametrize("clients, cohort", [(50, 51), (5000, 1001), (5000, 0)])
def test_a_cohort_must_fit_both_federations(clients, cohort):
    with pytest.raises(
        UserError, match=f"a cohort of {cohort} must be drawn from 1000 and from {clients} clients"
    ):
        bench.scale(clients, cohort=cohort)


def test_the_peak_of_memory_only_grows():
    before = bench.peak_memory()
    block = bytearray(64 * 2**20)
    assert bench.peak_memory() >= max(before, len(block))

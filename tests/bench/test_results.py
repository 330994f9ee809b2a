"""Which rows of which runs are shown together."""

import pytest

from bench.config import MethodEntry
from bench.errors import BenchError
from bench.results import read_results
from tests.bench.made_results import PAIR, made_replay, made_run

AR, SD, SVIP = MethodEntry("ar", "ar"), MethodEntry("sd", "sd"), MethodEntry("svip", "svip")


def shown(results) -> dict[str, str]:
    """Label -> run, on gsm8k."""
    return {cell.label: cell.run.id for cell in results.of(PAIR, "gsm8k")}


def test_the_newest_run_is_shown_and_older_ones_add_methods(tmp_path):
    old = made_run(tmp_path, [AR, SD, SVIP], name="a")
    new = made_run(tmp_path, [AR, SD], draws=1, name="b", tasks=["gsm8k"])
    results = read_results([tmp_path])
    assert shown(results) == {"ar": new.run_id, "sd": new.run_id, "svip": old.run_id}
    assert results.tasks == ["gsm8k", "mbpp"] and results.labels() == ["ar", "sd", "svip"]
    (svip,) = results.of(PAIR, "gsm8k", "svip")
    assert set(svip.baseline.method) == {"ar"}
    assert svip.baseline.wall_s.sum() == pytest.approx(
        old.read("samples").query("task == 'gsm8k' & method == 'ar'").wall_s.sum()
    )


@pytest.mark.parametrize("change", ({"max_new_tokens": 64}, {"temperature": 0.5}, {"split": "train"}, {"seed": 3}))
def test_runs_under_other_conditions_are_left_out_and_named(tmp_path, change):
    old = made_run(tmp_path, [AR, SVIP], name="a", **change)
    new = made_run(tmp_path, [AR, SD], name="b")
    results = read_results([tmp_path])
    assert set(shown(results).values()) == {new.run_id}
    assert any(old.run_id in note and "other conditions" in note for note in results.notes)
    assert shown(read_results([old.path])) == {"ar": old.run_id, "svip": old.run_id}


def test_an_unfinished_run_is_shown_and_said_to_be(tmp_path):
    folder = made_run(tmp_path, status="running", samples=2)
    results = read_results([tmp_path])
    assert len(results.cells) == 6 and f"--resume {folder.run_id}" in results.notes[0]


def test_replays_of_other_samples_do_not_mix(tmp_path):
    old = made_replay(tmp_path, [AR, SD, SVIP], samples=4, draws=1, name="a")
    new = made_replay(tmp_path, [AR, SD], name="b")
    frame = read_results([tmp_path]).replays
    assert set(frame.replay) == {new.id} and "svip" not in set(frame.method)
    again = made_replay(tmp_path, [AR, SVIP], name="c")  # the same samples as `new`
    frame = read_results([tmp_path]).replays
    assert {(r.method, r.replay) for r in frame.itertuples() if r.method in ("sd", "svip")} == {
        ("sd", new.id),
        ("svip", again.id),
    }
    assert old.id not in set(frame.replay)


@pytest.mark.parametrize(
    "name, message", (("nothing", "no such folder"), ("empty", "no run in it"), ("unstarted", "no finished sample"))
)
def test_where_there_is_nothing_to_show(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    made_run(tmp_path / "unstarted", samples=0, status="running")
    with pytest.raises(BenchError, match=message):
        read_results([tmp_path / name])


def test_a_finished_run_goes_before_a_newer_one_that_is_not(tmp_path):
    old = made_run(tmp_path, [AR, SD], name="a")
    new = made_run(tmp_path, [AR, SD, SVIP], samples=1, status="running", name="b", draws=3)
    results = read_results([tmp_path])
    assert shown(results)["sd"] == old.run_id and any(new.run_id in note for note in results.notes)


def test_a_foreign_folder_is_left_out_unless_it_is_the_one_named(tmp_path):
    run = made_run(tmp_path, [AR, SD])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "run.json").write_text("{}")
    results = read_results([tmp_path])
    assert shown(results)["sd"] == run.run_id and "foreign is left out" in results.notes[0]
    with pytest.raises(BenchError, match="run.json"):
        read_results([foreign])

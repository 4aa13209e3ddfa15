"""The command line as a person or a script meets it."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from biadam import cli, solvers, tasks
from biadam.comparison import work
from biadam.record import load
from biadam.tasks import Reference

SMALL = ("--train", "120", "--validation", "80", "--steps", "60")


@pytest.fixture
def biadam(monkeypatch, capfd, tmp_path):
    """Call the command line; its status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["biadam", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capfd.readouterr()
        return ended.value.code or 0, told.out, told.err

    return call


def test_a_run_ends_in_a_table_and_a_figure(biadam, tmp_path):
    status, out, err = biadam("run", "hyper-cleaning", *SMALL)
    assert status == 0
    assert err == ""
    for word in ("validation loss", "test accuracy", "auc", "f1", "a second", "outcome", "ok"):
        assert word in out
    assert "residual" in out
    picture = tmp_path / out.strip().splitlines()[-1].removeprefix("figure: ")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_says_what_to_install_where_its_extra_is_missing():
    code = "import sys; sys.modules['typer'] = None; from biadam.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "biadam: the command line needs typer, which is not installed: pip install 'biadam[cli]'\n"
    )


def test_the_package_is_a_command_too():
    words = [sys.executable, "-m", "biadam", "report"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert "biadam: a report needs at least one folder" in done.stderr


def test_json_is_one_object_and_nothing_else(biadam, tmp_path):
    words = ("run", "hyper-cleaning", *SMALL, "--json", "--seed", "3", "--out", "here")
    status, out, _ = biadam(*words)
    told = json.loads(out)
    assert status == 0
    expected = {"task": "hyper-cleaning", "data": "digits", "solver": "biadam_tracked", "seed": 3}
    assert expected.items() <= told.items()
    assert told["steps"] == 60
    assert told["outcome"] == "ok"
    assert set(told["metrics"]) == {"validation_loss", "test_accuracy", "auc", "f1"}
    assert told["oracle_calls"]["hessian_product"] == 61
    for name in ("seconds", "compile_seconds", "steps_per_second"):
        assert told[name] > 0
    record = load(tmp_path / told["directory"])
    assert record.summary == told
    assert record.arrays["weight"].shape == (120,)
    assert record.arrays["wrong"].sum() == 72
    _, again, _ = biadam(*words[:-1], "there")
    same = load(tmp_path / "there").arrays
    np.testing.assert_array_equal(record.arrays["weight"], same["weight"])
    assert json.loads(again)["metrics"] == told["metrics"]


def test_references_stand_beside_a_run(biadam, monkeypatch, tmp_path):
    row = Reference("chance", {"test_accuracy": 0.1234})
    module = sys.modules[tasks.hyper_cleaning.__module__]
    monkeypatch.setattr(module, "references", lambda *words: [row])
    status, out, _ = biadam("run", "hyper-cleaning", *SMALL, "--references")
    assert status == 0
    assert [line.split() for line in out.splitlines() if "chance" in line] == [
        ["chance", "-", "0.1234", "-", "-"]
    ]
    _, out, _ = biadam("run", "hyper-cleaning", *SMALL, "--references", "--json")
    told = json.loads(out)
    assert told["references"] == load(tmp_path / told["directory"]).summary["references"]
    assert told["references"] == [row._asdict()]
    biadam("report", told["directory"])
    assert "chance" in (tmp_path / told["directory"] / "report.html").read_text()


def test_settings_reach_the_method(biadam):
    words = ("run", "hyper-cleaning", *SMALL, "--json", "--solver", "vr_biadam")
    settings = (
        "--set",
        "hypergradient=NeumannSum(terms=5, step_size=0.3)",
        "--set",
        "step_size=0.2,0.05",
        "--set",
        "outer_metric=Adam(floor=0.01, signal=momentum)",
    )
    _, plain, _ = biadam(*words)
    status, out, _ = biadam(*words, *settings)
    assert status == 0
    assert json.loads(out)["oracle_calls"]["hessian_product"] == 61 * 10 - 5
    assert json.loads(out)["metrics"] != json.loads(plain)["metrics"]


def test_a_comparison_ends_in_tables_and_a_page(biadam, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "alone", lambda programs: None)
    beside = [Reference("uniform weights", {"test_accuracy": 0.5})]
    monkeypatch.setattr(sys.modules["biadam.tasks.hyper_cleaning"], "references", lambda *_: beside)
    words = ("compare", "hyper-cleaning", "--train", "60", "--validation", "40", "--workers", "1")
    words += ("--solvers", "soba", "--oracle-calls", "200", "--seeds", "2", "--out", "here")
    words += ("--grid", "soba.step_size=10.0,0.1;1e9,1e9")
    status, out, _ = biadam(*words)
    assert status == 0
    for told in ("mean of 2 seeds", "test accuracy", "steps/s", "1 of 2", "step_size=(10.0, 0.1)"):
        assert told in out
    assert [line.split() for line in out.splitlines() if "uniform weights" in line] == [
        ["uniform", "weights", "-", "0.500", "-", "-"]
    ]
    assert re.search(r"off the clock \d+ s of compiling and \d+ s of evaluating", out)
    assert (tmp_path / out.strip().splitlines()[-1].removeprefix("page: ")).is_file()
    status, out, _ = biadam(*words, "--json")
    told = json.loads(out)
    assert status == 0
    assert told == json.loads((tmp_path / "here" / "comparison.json").read_text())
    assert told["command"] == " ".join(("biadam", *words, "--json")).replace(
        "soba.step_size=10.0,0.1;1e9,1e9", "'soba.step_size=10.0,0.1;1e9,1e9'"
    )
    assert told["options"]["train"] == 60


FIGURES = {
    "figure-2": (
        ("--noise", "0.6", "--noise", "0.2", "--train", "60", "--validation", "40"),
        ["noise-0.6", "noise-0.2"],
    ),
    "figure-3": (
        ("--way", "3", "--way", "2", "--shot", "1", "--channels", "4", "--episodes", "10"),
        ["3-way-1-shot", "2-way-1-shot"],
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_the_paper_has_a_panel_for_each_setting(biadam, tmp_path, monkeypatch, name):
    monkeypatch.setattr(work, "alone", lambda programs: None)
    monkeypatch.setattr(sys.modules["biadam.tasks.hyper_cleaning"], "references", lambda *_: [])
    options, panels = FIGURES[name]
    few = ("--solvers", "biadam_tracked,smb", "--seconds", "0.2", "--seeds", "1", "--settings", "1")
    words = ("--data", "digits", "--workers", "1", *few, "--out", "there")
    status, out, _ = biadam("reproduce", name, *options, *words)
    assert status == 0
    assert out.strip().splitlines()[-1] == "page: there/report.html"
    for panel in panels:
        found = json.loads((tmp_path / "there" / panel / "comparison.json").read_text())
        assert [row["refused"] for row in found["methods"]] == ["", ""]
        assert all(len(row["runs"]) == 1 for row in found["methods"])
        if name == "figure-3":
            ways = int(panel[0])
            assert found["budget"]["amount"] == pytest.approx(0.2 * (ways / 5) ** 0.5)
            assert found["options"]["episodes"] == 10
            run = load(tmp_path / "there" / panel / found["methods"][0]["runs"][0])
            assert 3 <= len(run.arrays["at"]) <= tasks.hyper_representation.EVALUATIONS + 2
    page = (tmp_path / "there" / "report.html").read_text()
    assert page.count('<figure class="panel">') == 2 * len(panels)  # the paper's, and the others
    for axis in ("seconds", "calls"):
        assert (tmp_path / "there" / "report-figures" / f"curves-{axis}.png").stat().st_size > 9_999


def test_a_comparison_of_methods_that_all_diverge_tells_so(biadam, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "alone", lambda programs: None)
    monkeypatch.setattr(sys.modules["biadam.tasks.hyper_cleaning"], "references", lambda *_: [])
    words = ("compare", "hyper-cleaning", "--train", "60", "--validation", "40", "--workers", "1")
    words += ("--solvers", "soba", "--oracle-calls", "200", "--seeds", "1", "--noise", "0.5")
    words += ("--weights", "function", "--grid", "soba.step_size=1e9,1e9;1e8,1e8")
    status, out, _ = biadam(*words)
    assert status == 0
    assert "* soba: every setting diverged" in out
    folder = "compare-hyper-cleaning-digits-noise-0.5-train-60-validation-40-weights-function"
    folder += "-solvers-soba-oracle-calls-200.0-seeds-1-soba.step_size=1e9,1e9_1e8,1e8"
    told = json.loads((tmp_path / "biadam-runs" / folder / "comparison.json").read_text())
    assert told["options"]["weights"] == "WeightFunction()"
    assert (tmp_path / "biadam-runs" / folder / "report.html").is_file()
    assert [*(tmp_path / "biadam-runs" / "cache").glob("*/*.npz")]


def test_a_comparison_that_is_killed_goes_on(tmp_path):
    """The real command, with two processes; the third time it makes no run at all."""
    words = [sys.executable, "-c", "from biadam.cli import main; main()", "compare"]
    words += ["hyper-cleaning", "--train", "60", "--validation", "40", "--solvers", "soba,ma_soba"]
    words += ["--samples", "20000", "--settings", "4", "--seeds", "2", "--workers", "2"]
    words += ["--out", "here"]
    kept = lambda: {p: p.stat().st_mtime_ns for p in (tmp_path / "here/cache").glob("*/*.npz")}
    first = subprocess.Popen(words, cwd=tmp_path, start_new_session=True)
    while not kept():
        assert first.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = kept()
    subprocess.run(words, cwd=tmp_path, check=True)
    after = kept()
    assert len(before) < len(after) == 2 * (4 + 2 + 2) + 2  # the last are the references
    assert before.items() <= after.items()
    subprocess.run(words, cwd=tmp_path, check=True)
    assert kept() == after


def test_a_diverging_run_says_so(biadam):
    words = ("run", "hyper-cleaning", *SMALL, "--steps", "500", "--set", "step_size=1e6,1e6")
    status, out, err = biadam(*words)
    assert status == 3
    assert "diverged" in out
    assert "by step" in err
    assert "try smaller step sizes" in err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("run", "hyper-cleanin"), "Did you mean 'hyper-cleaning'"),
        (("rum",), "Did you mean 'run'?"),
        (("run", "hyper-cleaning", "--nois", "1"), "--noise"),
        (("run", "hyper-cleaning", "--steps", "many"), "--steps"),
        (("run", "hyper-cleaning", "--steps", "-3"), "`steps` must be a whole number"),
        (("run", "hyper-cleaning", "--noise", "2"), "`noise` must be at least 0 and at most 1"),
        (("run", "hyper-cleaning", "--data", "minst"), "did you mean 'mnist'?"),
        (("run", "hyper-cleaning", "--weights", "funktion"), "did you mean 'function'?"),
        (("run", "hyper-cleaning", "--solver", "biadm"), "did you mean 'biadam'?"),
        (("run", "hyper-cleaning", "--set", "step_sze=1"), "did you mean 'step_size'?"),
        (
            ("run", "hyper-cleaning", "--seed", "-1"),
            "'--seed': Input should be greater than or equal to 0",
        ),
        (("run", "hyper-cleaning", "--out", "/dev/null/here"), "`--out` must be a folder that can"),
        (("run", "hyper-cleaning", "--out", "/proc/self"), "`--out` must be a folder that can"),
        (("run", "hyper-cleaning", "--set", "step_size=1e400,1"), "above 0 and finite"),
        (("run", "hyper-cleaning", "--set", "step_size"), "takes KEY=VALUE"),
        (("run", "hyper-cleaning", "--set", "step_size=(1"), "can't be read"),
        (("run", "hyper-cleaning", "--set", "step_size=1+x"), "must be a number"),
        (("compare", "hyper-cleaning", "--solvers", "papr"), "did you mean 'paper'?"),
        (("compare", "hyper-cleaning", "--seconds", "1", "--samples", "9"), "give one of them"),
        (("compare", "hyper-cleaning", "--grid", "step_size"), "`--grid` takes KEY=VALUE"),
        (
            ("compare", "hyper-cleaning", "--grid", "mrbo.rate=1", "--solvers", "soba"),
            "such as soba",
        ),
        (
            ("compare", "hyper-cleaning", "--grid", "step_size=1;("),
            "`--grid step_size` can't be read",
        ),
        (("reproduce", "figure-1"), "figure-2"),
        (
            ("run", "hyper-cleaning", "--set", "hypergradient=NeumanSum()"),
            "did you mean 'NeumannSum'?",
        ),
        (
            ("run", "hyper-cleaning", "--set", "hypergradient=NeumannSum(term=3)"),
            "did you mean 'terms'?",
        ),
        (
            ("run", "hyper-cleaning", "--set", "hypergradient=NeumannSum(1, 2, 3)"),
            "can't build NeumannSum",
        ),
        (("report",), "a report needs at least one folder"),
        (("report", "nowhere"), "there is no folder nowhere"),
        (("report", "."), "holds no run.json and no comparison.json"),
        (("report", "nowhere", "--out", "page.pdf"), "`--out` must name a file that ends in .html"),
    ],
)
def test_mistakes_are_one_line_and_status_2(biadam, words, answer):
    status, out, err = biadam(*words)
    assert status == 2
    assert out == ""
    assert answer in err
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("biadam: ")


def test_a_command_alone_shows_its_help(biadam):
    status, _, err = biadam("run")
    assert status == 2
    assert "hyper-cleaning" in err


def test_the_table_of_methods(biadam, monkeypatch):
    names = ["biadam", "f2sa", "newton_cg", "stable", "vr_biadam_tracked"]
    monkeypatch.setattr(solvers, "__all__", names)
    status, out, _ = biadam("solvers", "--json")
    assert status == 0
    rows = json.loads(out)
    needs = ["HVP JVP", "first order", "HVP JVP (adaptive)", "dense, p = 30", "HVP JVP"]
    assert [(row["name"], row["needs"]) for row in rows] == list(zip(names, needs, strict=True))
    first, second = rows[0], rows[-1]
    assert first["name"] == "biadam"
    assert first["oracle_calls"]["outer_gradient"] == 1
    assert 0.8 < first["oracle_calls"]["hessian_product"] < 1.2  # (K - 1) / 2 with K = 3
    assert set(second["oracle_calls"].values()) == {2}
    _, out, _ = biadam("solvers")
    assert "vr_biadam_tracked" in out


def test_help_does_not_wait_for_jax():
    code = (
        "import sys; sys.argv = ['biadam', '--help']\n"
        "from biadam import cli\n"
        "try: cli.main()\n"
        "except SystemExit: print('jax' in sys.modules or 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("False")


def test_the_core_needs_none_of_the_extras():
    code = (
        "import sys, biadam\n"
        "for name in biadam.__all__: getattr(biadam, name)\n"
        "print([m for m in ('typer', 'rich', 'sklearn', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

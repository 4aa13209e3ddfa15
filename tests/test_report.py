"""What a page and the figures say, from the files of runs and comparisons."""

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import folders
from biadam import Mistake
from biadam.record import Record
from biadam.report import figures, page
from biadam.report.bands import MOST_POINTS, band
from biadam.report.read import read, titles
from biadam.report.style import DARK, LIGHT, styles
from biadam.report.words import decimals, story, told, verdict
from test_cli import biadam as command  # noqa: F401  the fixture


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return folders.runs(tmp_path_factory.mktemp("real") / "runs")


@pytest.fixture
def folder(real, tmp_path):
    return folders.comparison(real, tmp_path / "comparison")


class Reader(HTMLParser):
    """The words of a page, the rows of its tables, and what it refers to."""

    def __init__(self, text):
        super().__init__()
        self.words, self.links, self.rows, self.inside = [], [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "link", "input", "img", "line", "rect"):
            self.inside.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src", "data", "action")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td") and self.rows:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        if tag in self.inside:
            while self.inside.pop() != tag:
                pass

    def handle_data(self, data):
        if {"script", "style"} & set(self.inside):
            return
        self.words.append(data)
        if (
            "table" in self.inside
            and {"th", "td"} & set(self.inside)
            and "small" not in self.inside
        ):
            self.rows[-1][-1] += " ".join(data.split())


def made(directories, out):
    return Reader(page(directories, out).read_text())


def lines(text):
    """The data that the page's script draws."""
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL).group(1))["panels"]


def run(clock, values, pace=10):
    clock, values = np.array(clock, float), np.array(values, float)
    at = (pace * clock).astype(int)
    arrays = {"clock": clock, "at": at, "calls": np.stack([at, 3 * at], 1), "curve_loss": values}
    return Record(Path(), {}, arrays)


def test_a_band_is_the_mean_and_the_extremes_of_straight_lines():
    first, second = run([0, 2, 4], [8, 4, 0]), run([0, 1, 3], [6, 6, 2])
    found = band([first, second], "loss", "seconds")
    np.testing.assert_allclose(found.at, [0, 1, 2, 3])  # no further than the shorter run
    np.testing.assert_allclose(found.mean, [7, 6, 4, 2])
    np.testing.assert_allclose(found.low, [6, 6, 4, 2])
    np.testing.assert_allclose(found.high, [8, 6, 4, 2])
    np.testing.assert_allclose(band([first], "loss", "calls").at, [0, 80, 160])
    np.testing.assert_allclose(band([first], "loss", "steps").at, [0, 20, 40])


def test_a_band_of_what_is_missing():
    nan, inf = np.nan, np.inf
    assert band([], "loss", "steps") is None
    assert band([run([0, 1], [1, 2])], "accuracy", "steps") is None
    assert band([run([0, 1], [nan, nan])], "loss", "steps") is None
    found = band([run([0, 1, 2, 3], [4, nan, 2, inf])], "loss", "seconds")
    np.testing.assert_allclose(found, [[0, 2], [4, 2], [4, 2], [4, 2]])
    many = np.linspace(0, 1, 999)
    found = band([run(many, many)], "loss", "seconds")
    assert len(found.at) == MOST_POINTS
    assert (found.at[0], found.at[-1]) == (0, 1)


def test_the_page_says_what_was_done(folder, tmp_path):
    text = made([folder], tmp_path / "page.html").text
    for sentence in (
        "4 methods ran hyper-cleaning on digits once for each of the seeds 0 and 1.",
        "Each run had 2 seconds of stepping, in which compiling and evaluating do not count.",
        "below a mean in the table stands its 95 % interval",
        "the setting of each method was chosen among 9 to 25 on seeds 100 and 101, by "
        "validation loss alone. Of the 59 settings tried in all, 31 diverged",
        "some diverged: vr_biadam (2)",
        "1 run folder is missing or broken",
        "stable does not take this task: its matrix has no room",
        "judged at y*(x)",
        "biadam compare hyper-cleaning --noise 0.6",
        "step_size=(0.1, 0.1)",
        "cores 2",
    ):
        assert sentence in text
    assert "served for tuning" not in text
    text = made([folders.edit(folder, tuning_seeds=[1, 2])], tmp_path / "page.html").text
    assert "Seeds 1 served for tuning and for reporting, which flatters." in text
    text = made([folders.edit(folder, tuning_seeds=[])], tmp_path / "page.html").text
    assert "Nothing was tuned" in text


def test_a_table_has_methods_and_references_in_one_order(folder, tmp_path):
    rows = made([folder], tmp_path / "page.html").rows
    names = [row[0] for row in rows[1:7]]
    assert names == [
        "the clean set alone",
        "biadam_tracked",
        "f2sa",
        "soba",
        "uniform weights",
        "vr_biadam",
    ]
    assert rows[0][:5] == ["method", "validation loss", "test accuracy", "time to 1", "calls to 1"]
    assert rows[0][7] == "validation loss at 4,000 calls"
    soba = rows[4]
    assert soba[1:] == [
        *("0.510", "0.8810", "0.25 s", "1,000", "-", "-", "0.620"),
        *("12,300", "1.25 s", "7 s", "0 of 2", "3 of 9"),
    ]
    assert rows[6][1:3] == ["-", "-"]
    assert rows[6][-2:] == ["2 of 2", "25 of 25"]


def test_cleaning_is_judged_beside_the_clean_set_alone(folder):
    alone = {"name": "the clean set alone", "metrics": {"test_accuracy": 0.905}}
    (comparison,) = read([folder])
    assert verdict(comparison).startswith("Read this as a benchmark of solvers")
    assert "the 5,000 clean images alone has test accuracy 0.905" in verdict(comparison)
    assert "(the best is 0.901, by biadam_tracked)." in verdict(comparison)
    alone["metrics"]["test_accuracy"] = 0.9001  # within the interval of the best
    (comparison,) = read([folders.edit(folder, references=[alone])])
    assert verdict(comparison).startswith("Read this as a benchmark of solvers")
    alone["metrics"]["test_accuracy"] = 0.89
    (comparison,) = read([folders.edit(folder, references=[alone])])
    assert verdict(comparison).startswith("Cleaning pays here")
    (comparison,) = read([folders.edit(folder, references=[])])
    assert verdict(comparison) == ""
    assert len(story(comparison)) == 3


def test_a_page_needs_no_network(folder, tmp_path):
    text = page([folder], tmp_path / "page.html").read_text()
    assert all(re.match(r"data:|#", link) for link in Reader(text).links)
    assert "default-src 'none'" in text
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}


def test_lines_are_those_of_the_runs(folder, real, tmp_path):
    panels = lines(page([folder], tmp_path / "page.html").read_text())
    assert [panel["group"] for panel in panels] == ["paper", "other"]
    assert [[line["name"] for line in panel["lines"]] for panel in panels] == [
        ["biadam_tracked"],
        ["soba"],
    ]
    at, mean, low, high = panels[1]["lines"][0]["curves"]["validation_loss"]["steps"]
    curves = [
        np.load(real / "soba" / f"seed{seed}" / "arrays.npz")["curve_validation_loss"]
        for seed in folders.SEEDS
    ]
    assert at == [0, 10, 20, 30, 40, 50, 60]
    np.testing.assert_allclose(mean, np.mean(curves, 0), rtol=1e-4)
    np.testing.assert_allclose([low, high], [np.min(curves, 0), np.max(curves, 0)], rtol=1e-4)
    assert panels[0]["references"][1]["values"]["validation_loss"] == 0.3


def test_images_and_weights_are_those_of_the_best_method(folder, tmp_path):
    run = folder / "biadam_tracked" / "seed0"
    folders.alter(run, {}, weight=np.array([0.0, 0.01, 0.99, 1.0]), wrong=np.array([1, 1, 0, 1]))
    text = page([folder], tmp_path / "page.html").read_text()
    assert "Learned weights, by biadam_tracked, seed 0" in text
    assert "3 training examples with a wrong label" in text
    heights = [float(h) for h in re.findall(r'<rect [^>]* height="([\d.]+)"', text)]
    assert [heights[i] for i in (0, 39, 40, 79)] == [0, 50, 100, 50]
    assert text.count("<img ") == 40
    kept = np.load(run / "arrays.npz")
    wrong = int((kept["suspect_given"] != kept["suspect_true"]).sum())
    assert text.count(" → ") == wrong


def test_names_from_files_cannot_become_part_of_the_page(folder, tmp_path):
    evil = '</script><b id="evil">'
    methods = json.loads((folder / "comparison.json").read_text())["methods"]
    methods[0] |= {"solver": evil, "note": evil, "setting": {evil: evil}}
    folders.edit(folder, methods=methods, data=evil, command=evil)
    text = page([folder], tmp_path / "page.html").read_text()
    assert evil not in text
    assert "&lt;/script&gt;" in text
    assert lines(text)[1]["lines"][0]["name"] == evil


def test_a_file_with_hardly_anything_in_it(folder, tmp_path):
    """Fields may be missing or null where runs diverged."""
    bare = [{"solver": "soba", "runs": ["soba/seed0"]}, {"solver": "gone", "metrics": None}]
    nothing = dict.fromkeys(json.loads((folder / "comparison.json").read_text()))
    folders.edit(folder, **{**nothing, "kind": "comparison", "methods": bare})
    text = made([folder], tmp_path / "page.html").text
    assert "2 methods ran a task." in text
    assert len(figures([folder], tmp_path / "figures")) == 6


def test_single_runs_are_laid_side_by_side(real, tmp_path):
    places = [real / name / f"seed{seed}" for name in folders.METHODS for seed in folders.SEEDS]
    folders.alter(places[3], {"settings": {"step_size": "0.3,0.3"}})
    try:
        (comparison,) = read(places)
        one = made(places[:1], tmp_path / "page.html")
        all_of_them = made(places, tmp_path / "page.html")
    finally:
        folders.alter(places[3], {"settings": {}})
    names = {method.name: len(method.runs) for method in comparison.methods}
    assert names == {"biadam_tracked": 2, "soba default": 1, "soba step_size=0.3,0.3": 1}
    assert "4 single runs of hyper-cleaning, laid side by side" in all_of_them.text
    assert "A single run of hyper-cleaning" in one.text
    first = json.loads((places[0] / "run.json").read_text())["metrics"]["validation_loss"]
    assert abs(float(one.rows[1][1]) - first) < 1e-3


def test_more_is_better_for_an_accuracy(real, tmp_path):
    """As in few-shot learning."""
    folder = folders.comparison(real, tmp_path / "few")
    for name, last in (("soba", 0.9), ("biadam_tracked", 0.8)):
        for seed in folders.SEEDS:
            file = folder / name / f"seed{seed}" / "arrays.npz"
            run = dict(np.load(file))
            run["curve_validation_accuracy"] = np.linspace(0.2, last, 7)
            del run["curve_validation_loss"]
            np.savez(file, **run)
    methods = json.loads((folder / "comparison.json").read_text())["methods"][:2]
    for row, accuracy in zip(methods, (0.9, 0.8), strict=True):
        row["metrics"] = {
            "validation_accuracy": folders.spread(accuracy, accuracy),
            "test_accuracy": folders.spread(accuracy - 0.01, accuracy),
            "test_interval": folders.spread(0.004, 0.004),
        }
    given = {"task": "hyper-representation", "data": "omniglot", "methods": methods}
    folders.edit(folder, metric="validation_accuracy", largest=True, references=[], **given)
    text = page([folder], tmp_path / "page.html").read_text()
    rows = Reader(text).rows
    assert [row[0] for row in rows[1:3]] == ["soba", "biadam_tracked"]
    assert rows[0][1:4] == ["validation accuracy", "test accuracy", "test interval"]
    assert all(panel["largest"]["validation_accuracy"] for panel in lines(text)[:1])
    assert re.search(r'name="logY">', text)  # off at first
    assert "validation accuracy" in figures([folder], tmp_path)[0].read_text()


def test_titles_tell_directories_apart(real, tmp_path):
    places = [folders.comparison(real, tmp_path / f"at{n}", noise=n) for n in (0.2, 0.8)]
    assert titles(read(places)) == ["digits, noise 0.2", "digits, noise 0.8"]
    for place, batch in zip(places, (32, 64), strict=True):
        folders.edit(place, options={"noise": 0.2, "batch_size": batch, "train": 60})
    assert titles(read(places)) == [f"digits, noise 0.2, batch size {n}" for n in (32, 64)]
    for place in places:
        folders.edit(place, options={})
    assert titles(read(places)) == ["digits (at0.2)", "digits (at0.8)"]


def test_runs_with_other_options_are_no_seeds_of_one_method(real, tmp_path):
    places = []
    for noise in (0.2, 0.6):
        places.append(tmp_path / str(noise))
        shutil.copytree(real / "soba" / "seed0", places[-1])
        options = json.loads((places[-1] / "run.json").read_text())["options"]
        folders.alter(places[-1], {"options": {**options, "noise": noise}, "seed": int(10 * noise)})
    assert titles(read(places)) == ["digits, noise 0.2", "digits, noise 0.6"]
    assert [len(c.methods[0].runs) for c in read(places)] == [1, 1]


def test_the_rounds_of_the_search_are_told(folder):
    rounds = [{"part": part, "settings": n} for part, n in ((1 / 9, 16), (1 / 3, 6), (1.0, 2))]
    (comparison,) = read([folders.edit(folder, ladder=rounds)])
    assert (
        "by validation loss alone: 16 for a ninth, then the best 6 for a third, then the best 2 "
        "for all of the budget." in story(comparison)[1]
    )


def test_the_best_are_solid_and_no_two_look_alike(folder):
    rows = [
        {"solver": f"m{i}", "metrics": {"validation_loss": {"mean": float(-i)}}, "group": "paper"}
        for i in range(25)
    ]
    runs = {"runs": ["soba/seed0"]}
    folders.edit(folder, methods=[{**row, **runs} for row in rows])
    found = styles(read([folder]), "paper")
    assert list(found) == [f"m{i}" for i in range(24, -1, -1)]
    assert len(set(found.values())) == 25
    assert [bool(style.dash) for style in found.values()] == [False] * 6 + [True] * 19
    assert len(LIGHT) == len(DARK)


def test_figures_for_print(folder, real, tmp_path):
    other = folders.comparison(real, tmp_path / "other", noise=0.2)
    made = figures([folder, other], tmp_path / "figures")
    names = ["curves-seconds", "curves-steps", "curves-calls", "weights", "images-0", "images-1"]
    assert [path.name for path in made] == [
        f"{name}.{kind}" for name in names for kind in ("svg", "png")
    ]
    again = {path: path.read_bytes() for path in made}
    text = made[0].read_text()
    for words in ("digits, noise 0.6", "digits, noise 0.2", "soba", "seconds of stepping"):
        assert f"<!-- {words} -->" in text
    assert "the paper's methods" in text
    assert "oracle calls" in made[4].read_text()
    figures([folder, other], tmp_path / "figures")
    assert all(path.read_bytes() == data for path, data in again.items())


def test_digits_are_sensible():
    assert decimals([0.9051, 0.88], [0.0012, 0.004, 0.0]) == 4
    assert decimals([0.91, 0.88], [0.2, 0.3]) == 3
    assert decimals([123.4, 456.7], [15.0]) == 0
    assert decimals([12.345], []) == 2
    assert decimals([], []) == 0
    assert told(1234.5, 1) == "1,234.5"
    assert told(3.2e9, 3) == "3.20e+09"
    assert told(None, 3) == "-"


def test_a_report_reads_files_and_nothing_else(folder, tmp_path):
    code = (
        "import sys; from pathlib import Path; from biadam import report\n"
        f"report.page([Path({str(folder)!r})], Path({str(tmp_path / 'page.html')!r}))\n"
        "print([m for m in ('jax', 'equinox', 'sklearn', 'biadam.tasks') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_from_the_command_line(command, folder, real, tmp_path):  # noqa: F811
    status, out, err = command("report", str(folder))
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"page: {folder / 'report.html'}"
    assert (folder / "report-figures" / "curves-seconds.svg").is_file()
    places = [str(real / "soba" / f"seed{seed}") for seed in folders.SEEDS]
    status, out, _ = command("report", *places, "--out", "here/two.html")
    assert status == 0
    assert (tmp_path / "here" / "two.html").is_file()
    assert (tmp_path / "here" / "two-figures" / "weights.png").is_file()


@pytest.mark.parametrize(
    ("spoil", "answer"),
    [
        (lambda f: [], "a report needs at least one folder"),
        (lambda f: [f / "nowhere"], r"there is no folder .*nowhere"),
        (lambda f: [f / "soba"], r"holds no run.json and no .*: those inside it do, such as"),
        (lambda f: [folders.edit(f, methods=[])], "holds no finished run"),
        (lambda f: [folders.edit(f, methods=[1])], "is no comparison that can be read"),
        (lambda f: (f / "comparison.json").write_text("{") and [f], "is no comparison that can"),
        (
            lambda f: (f / "soba/seed0/arrays.npz").write_text("x") and [f / "soba/seed0"],
            "the run in .* can't be read: make it again",
        ),
    ],
)
def test_mistakes_are_one_sentence(folder, tmp_path, spoil, answer):
    for make in (lambda given: page(given, tmp_path / "page.html"), lambda given: read(given)):
        with pytest.raises(Mistake, match=answer) as caught:
            make(spoil(folder))
        assert "\n" not in str(caught.value)

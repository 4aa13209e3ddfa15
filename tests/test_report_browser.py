"""The page in a real browser, without a screen: it opens, its switches switch, it fits."""

import math
import shutil

import pytest

import folders
from biadam.report import page

selenium = pytest.importorskip("selenium", reason="selenium drives the browser")
CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver on the path"
)

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESK, PHONE = (1400, 1000), (390, 844)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Two comparisons on one page."""
    home = tmp_path_factory.mktemp("browser")
    real = folders.runs(home / "runs")
    places = [folders.comparison(real, home / f"noise{n}", noise=n) for n in (0.6, 0.2)]
    return page(places, home / "page.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, address):
    """The page on a desk, in the light, just opened."""
    return show(browser, address, DESK, "light")


def show(browser, address, size, scheme):
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(address)
    return browser


def ask(browser, expression):
    return browser.execute_script(f"return {expression}")


def texts(browser, selector):
    return ask(browser, f"[...document.querySelectorAll('{selector}')].map(e => e.textContent)")


def press(browser, selector):
    """As a keyboard does: reach it and press space."""
    from selenium.webdriver.common.by import By

    part = browser.find_element(By.CSS_SELECTOR, selector)
    browser.execute_script("arguments[0].focus()", part)
    part.send_keys(" ")


def paths(browser):
    return ask(browser, "[...document.querySelectorAll('path.line')].map(e => e.getAttribute('d'))")


def heights(path):
    return [float(pair.split()[1]) for pair in path[1:].split("L")]


@pytest.mark.parametrize("size", [DESK, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_and_fits(browser, address, size, scheme):
    show(browser, address, size, scheme)
    assert browser.get_log("browser") == []
    assert ask(browser, "innerWidth") == size[0]
    root = "document.documentElement"
    assert ask(browser, f"{root}.scrollWidth <= {root}.clientWidth")
    assert len(paths(browser)) == 4  # two comparisons, two groups, a line each
    red = ask(browser, "getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]")
    assert (int(red) < 60) == (scheme == "dark")
    boxes = ask(
        browser,
        "[...document.querySelectorAll('.plot')].map(p => [p.clientWidth, "
        "...[...p.querySelectorAll('text')].flatMap(t => { const b = t.getBBox(); "
        "return [b.x, b.x + b.width]; })])",
    )
    for width, *edges in boxes:
        assert min(edges) >= 0
        assert max(edges) <= width
    for tick in ("x", "y"):
        assert ask(browser, f"document.querySelectorAll('.plot .{tick}.tick').length") >= 4 * 2
    inked = "getComputedStyle(document.querySelector('path.line')).stroke"
    assert (
        ask(browser, inked) == {"light": "rgb(36, 151, 254)", "dark": "rgb(165, 204, 254)"}[scheme]
    )


def test_nothing_is_fetched(opened):
    assert ask(opened, "performance.getEntriesByType('resource').length") == 0


def test_the_x_axis_switches(opened):
    labels, ticks = {}, {}
    for axis in ("seconds", "steps", "calls"):
        press(opened, f"input[value={axis}]")
        labels[axis] = set(texts(opened, ".x.label"))
        ticks[axis] = texts(opened, ".plot .x.tick")
    assert labels == {
        "seconds": {"seconds of stepping"},
        "steps": {"steps"},
        "calls": {"oracle calls"},
    }
    assert "60" in ticks["steps"]
    assert len(set(map(tuple, ticks.values()))) == 3


def test_scales_are_logarithmic_where_asked(opened):
    press(opened, "input[value=steps]")
    before = paths(opened)
    press(opened, "[name=logX]")
    ten_times = texts(opened, ".plot .x.tick")
    assert set(ten_times) <= {"10", "15", "20", "30", "50"}
    assert len(heights(paths(opened)[0])) == len(heights(before[0])) - 1  # step 0 has no place
    press(opened, "[name=logX]")
    assert paths(opened) == before
    logarithmic = [heights(path) for path in before]
    press(opened, "[name=logY]")
    linear = [heights(path) for path in paths(opened)]
    assert logarithmic != linear
    values = ask(opened, "panels[0].lines[0].curves.validation_loss.steps[1]")
    for of, told in ((math.log, logarithmic[0]), (float, linear[0])):
        share = lambda a, i: (a[i] - a[0]) / (a[-1] - a[0])
        assert abs(share(told, 3) - share([of(v) for v in values], 3)) < 0.01


def test_bands_and_references_go_and_come(opened):
    for name, part in (("bands", "path.band"), ("references", "line.reference")):
        count = len(texts(opened, part))
        assert count == {"bands": 4, "references": 8}[name]
        press(opened, f"[name={name}]")
        assert texts(opened, part) == []
        press(opened, f"[name={name}]")
        assert len(texts(opened, part)) == count


def test_a_name_of_the_legend_hides_its_line_everywhere(opened):
    drawn = "[...document.querySelectorAll('path.line')].map(e => e.dataset.method)"
    assert ask(opened, drawn) == ["biadam_tracked", "biadam_tracked", "soba", "soba"]
    press(opened, "[data-method=soba]")
    assert ask(opened, drawn) == ["biadam_tracked", "biadam_tracked"]
    pressed = "document.querySelector('[data-method=soba]').getAttribute('aria-pressed')"
    assert ask(opened, pressed) == "false"
    assert "No line to draw" in texts(opened, ".plot")[2]
    press(opened, "[data-method=soba]")
    assert ask(opened, pressed) == "true"
    assert len(ask(opened, drawn)) == 4


def test_all_or_none(browser, tmp_path):
    real = folders.runs(tmp_path / "runs")
    places = [real / name / "seed0" for name in folders.METHODS]
    show(browser, page(places, tmp_path / "page.html").as_uri(), DESK, "light")
    assert len(paths(browser)) == 2
    press(browser, "[data-show=false]")
    assert paths(browser) == []
    press(browser, "[data-show=true]")
    assert len(paths(browser)) == 2
    assert browser.get_log("browser") == []


def test_pointing_reads_out_the_nearest_line(opened):
    press(opened, "input[value=steps]")
    opened.execute_script(
        """const svg = document.querySelector('.plot svg'), box = svg.getBoundingClientRect();
        const [x] = document.querySelector('path.line').getAttribute('d').slice(1).split(/[ L]/);
        const end = document.querySelector('path.line').getPointAtLength(1e9);
        svg.dispatchEvent(new PointerEvent('pointermove',
            {clientX: box.left + end.x - 0.01, clientY: box.top + 40, bubbles: true}));"""
    )
    read = texts(opened, ".readout:not([hidden])")
    assert len(read) == 1
    (mean, low, high) = ask(
        opened, "panels[0].lines[0].curves.validation_loss.steps.slice(1).map(a => a.at(-1))"
    )
    assert read[0].startswith("60 steps1. biadam_tracked")
    assert f"{mean:.4g}"[:4] in read[0]
    assert f"{low:.4g}"[:4] in read[0]
    assert f"{high:.4g}"[:4] in read[0]
    assert ask(opened, "document.querySelector('path.line').classList.contains('near')")
    opened.execute_script(
        "document.querySelector('.plot svg').dispatchEvent(new PointerEvent('pointerleave'))"
    )
    assert texts(opened, ".readout:not([hidden])") == []


def test_arrow_keys_read_a_chart(opened):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    chart = opened.find_element(By.CSS_SELECTOR, ".plot svg")
    opened.execute_script("arguments[0].focus()", chart)
    chart.send_keys(Keys.ARROW_RIGHT)
    (first,) = texts(opened, ".readout:not([hidden])")
    chart.send_keys(Keys.ARROW_RIGHT)
    (second,) = texts(opened, ".readout:not([hidden])")
    assert first != second
    chart.send_keys(Keys.ESCAPE)
    assert texts(opened, ".readout:not([hidden])") == []


def test_a_table_sorts_by_any_column(opened):
    def column(number):
        rows = "[...document.querySelector('.sortable').tBodies[0].rows]"
        return ask(opened, f"{rows}.map(r => r.cells[{number}].firstChild.textContent.trim())")

    def sort(number):
        press(opened, f".sortable th:nth-child({number + 1}) button")

    sort(2)  # test accuracy
    assert column(2) == ["0.7000", "0.8810", "0.9010", "0.9050", "-", "-"]
    sort(2)
    assert column(2) == ["0.9050", "0.9010", "0.8810", "0.7000", "-", "-"]
    heads = "[...document.querySelectorAll('.sortable')[0].tHead.rows[0].cells]"
    assert ask(opened, f"{heads}[2].getAttribute('aria-sort')") == "descending"
    sort(0)
    assert column(0) == sorted(column(0), key=str.lower)
    assert ask(opened, f"{heads}[2].getAttribute('aria-sort')") is None


def test_every_switch_is_reached_by_the_tab_key(opened):
    from selenium.webdriver.common.keys import Keys

    reached = []
    for _ in range(14):
        opened.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(
            ask(opened, "(e => e.name || e.dataset.method || e.tagName)(document.activeElement)")
        )
    for name in ("axis", "logX", "logY", "bands", "references", "biadam_tracked", "svg", "soba"):
        assert name in reached

"""The page of reports in a real browser: what it shows, that it asks for nothing, that no text of a job runs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.browser import DESKTOP, PHONE, Browser
from tests.reports.conftest import END
from worker.reports.comparing import Side, compare
from worker.reports.html.charts import Chart, Series, line_chart, stacked_bars
from worker.reports.html.page import Page, Section, Tile, to_html
from worker.reports.html.report import comparison_page, whole_page
from worker.reports.html.rows import JobBar, PhaseBar, Ranked, ranking, waterfall
from worker.reports.tables import Column, ReportTable, Trend
from worker.reports.timeline import timeline_over
from worker.reports.units import Unit
from worker.sql.reporting import ReportFilter, Reports

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\"'`\x1b[31m=cmd()"
NOW = datetime(2026, 11, 29, 21, 30, tzinfo=UTC)


def sample_page() -> Page:
    """A page with one of everything, hostile text wherever text can be."""
    timeline = timeline_over(NOW - timedelta(hours=30), NOW)
    rising = tuple(None if at % 7 == 3 else float(at + 1) for at in range(timeline.count))
    lines = (Series("p50", "blue", rising), Series(HOSTILE, "amber", tuple(reversed(rising))))
    table = ReportTable(
        "prefix",
        HOSTILE,
        (Column("queue", "queue", Unit.TEXT), Column("ttft_ms", "first token", Unit.MILLISECONDS)),
        ((HOSTILE, 20.0), ("b", 1000.0), ("c", None), ("d", 3.0)),
        trend=Trend("p50", 3600, (rising,) * 4),
        notes=(HOSTILE,),
    )
    phases = (PhaseBar("queued", "slate", 40.0), PhaseBar(HOSTILE, "blue", 60.0))
    charts = (
        line_chart(Chart(HOSTILE, Unit.MILLISECONDS, timeline, lines)),
        stacked_bars(Chart("Jobs", Unit.COUNT, timeline, lines)),
        ranking(HOSTILE, Unit.MONEY, [Ranked(HOSTILE, 2.0, HOSTILE), Ranked("b", 0.0, "")], "violet"),
        waterfall(HOSTILE, [JobBar(HOSTILE, phases, ((HOSTILE, HOSTILE),)), JobBar("b", phases, ())]),
    )
    sections = (
        Section("one", HOSTILE, HOSTILE, "", charts, (table,)),
        Section("two", "Nothing", "Nothing here.", HOSTILE),
    )
    return Page(HOSTILE, (HOSTILE,), NOW, (Tile(HOSTILE, HOSTILE, HOSTILE, "red"),), sections)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(to_html(sample_page()), "utf-8")
    return path


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_everything_is_there_and_has_a_size(browser: Browser, page: Path, size: tuple[int, int]) -> None:
    browser.open(page, size=size)
    sizes = browser.evaluate(
        "[...document.querySelectorAll('.plot, .phases, .tile, nav, .row-bar, .spark, .job.axis svg')]"
        ".map(element => element.getBoundingClientRect()).map(box => [box.width, box.height])"
    )
    assert len(sizes) == 2 + 2 + 1 + 1 + 6 + 4 + 1
    assert all(width > 0 and height > 0 for width, height in sizes)
    assert browser.evaluate("document.querySelectorAll('.plot rect').length") > 20
    assert browser.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_it_asks_for_nothing_and_complains_about_nothing(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.requests() == [page.as_uri()]
    assert browser.complaints() == []


def test_text_stays_text(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.evaluate("window.hacked") is None
    assert browser.evaluate("document.querySelectorAll('img, script').length") == 1
    for place in ("h1", ".ranking th", ".sortable td", "summary.job code"):
        assert browser.evaluate(f"document.querySelector('{place}').textContent") == HOSTILE.replace("\x1b[31m", "")


def test_the_policy_lets_nothing_else_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 1'}))"
    )
    assert browser.evaluate("window.hacked") is None
    assert any("Content Security Policy" in message for message in browser.complaints())


def test_light_and_dark(browser: Browser, page: Path) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    browser.open(page, scheme="light")
    light = browser.evaluate(background)
    browser.open(page, scheme="dark")
    dark = browser.evaluate(background)
    assert light != dark
    theme = browser.driver.find_element(By.ID, "theme")
    assert theme.text == "Light"
    theme.click()
    assert (browser.evaluate(background), theme.text) == (light, "Dark")
    theme.click()
    assert browser.evaluate(background) == dark


def test_arrow_keys_read_a_chart(browser: Browser, page: Path) -> None:
    browser.open(page)
    plot = browser.driver.find_element(By.CSS_SELECTOR, ".plot")
    plot.send_keys(Keys.HOME)
    tip = browser.driver.find_element(By.CSS_SELECTOR, ".tip")
    assert tip.text.splitlines()[:2] == ["Nov 28, 15:00", "p50: 1 ms"]
    plot.send_keys(Keys.ARROW_RIGHT)
    assert tip.text.splitlines()[:2] == ["Nov 28, 16:00", "p50: 2 ms"]
    plot.send_keys(Keys.END, Keys.ARROW_RIGHT)
    assert tip.text.splitlines()[0] == "Nov 29, 21:00"
    plot.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


def test_the_pointer_reads_a_chart_within_its_frame(browser: Browser, page: Path) -> None:
    browser.open(page, size=PHONE)
    for share in (0.01, 0.5, 0.99):
        browser.evaluate(
            "(plot => { const box = plot.getBoundingClientRect(); plot.dispatchEvent(new PointerEvent('pointermove', "
            f"{{clientX: box.left + box.width * {share}}})) }})(document.querySelector('.plot'))"
        )
        left, right = browser.evaluate(
            "(box => [box.left, box.right])(document.querySelector('.tip').getBoundingClientRect())"
        )
        assert 0 <= left < right
    assert browser.evaluate("document.querySelector('.tip').textContent").startswith("Nov 29, 21:00\np50: 31 ms")


def test_a_legend_hides_and_shows_a_line(browser: Browser, page: Path) -> None:
    browser.open(page)
    button = browser.driver.find_element(By.CSS_SELECTOR, ".legend button")
    line = browser.driver.find_element(By.CSS_SELECTOR, ".series")
    assert line.is_displayed()
    button.click()
    assert (line.is_displayed(), button.get_attribute("aria-pressed")) == (False, "false")
    button.click()
    assert line.is_displayed()


def test_a_heading_sorts_its_table(browser: Browser, page: Path) -> None:
    browser.open(page)
    cells = "[...document.querySelectorAll('.sortable tbody td:nth-child(2)')].map(cell => cell.textContent)"
    heading = browser.driver.find_element(By.CSS_SELECTOR, ".sortable th.number button")
    assert browser.evaluate(cells) == ["20 ms", "1 s", "-", "3 ms"]
    heading.click()
    assert browser.evaluate(cells) == ["1 s", "20 ms", "3 ms", "-"]
    heading.click()
    assert browser.evaluate(cells) == ["-", "3 ms", "20 ms", "1 s"]


def test_a_job_opens_by_keyboard_and_closes_the_one_before(browser: Browser, page: Path) -> None:
    browser.open(page)
    first, second = browser.driver.find_elements(By.CSS_SELECTOR, "details[name=job]")
    for job in (first, second):
        job.find_element(By.CSS_SELECTOR, "summary").send_keys(Keys.ENTER)
        assert job.find_element(By.CSS_SELECTOR, ".opened").is_displayed()
    assert first.get_attribute("open") is None
    assert "60 ms" in second.text


def test_without_its_script_nothing_is_missing(browser: Browser, page: Path) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(page)
        shown = [element.is_displayed() for element in browser.driver.find_elements(By.CSS_SELECTOR, ".plot, .table")]
        assert shown == [True] * 3
        assert not browser.driver.find_element(By.ID, "theme").is_displayed()
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


CHOSEN = {
    "everything": (ReportFilter(), 12 + 25),
    "one job": (ReportFilter(since=END - timedelta(minutes=25), queue="urgent"), 10 + 1),
    "a failure": (ReportFilter(since=END - timedelta(minutes=15)), 7 + 1),
    "nothing": (ReportFilter(queue="absent"), 0),
}


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("name", CHOSEN)
def test_whole_reports(browser: Browser, filled: Reports, tmp_path: Path, name: str, size: tuple[int, int]) -> None:
    chosen, charts = CHOSEN[name]
    path = tmp_path / "report.html"
    path.write_text(to_html(whole_page(filled, chosen, NOW)), "utf-8")
    browser.open(path, size=size)
    assert (browser.complaints(), browser.requests()) == ([], [path.as_uri()])
    assert browser.evaluate("document.documentElement.scrollWidth") <= size[0]
    sizes = browser.evaluate(
        "[...document.querySelectorAll('.plot, .phases')].map(drawn => drawn.clientWidth * drawn.clientHeight)"
    )
    assert len(sizes) == charts
    assert all(sizes)
    assert browser.evaluate("document.querySelectorAll('.empty').length") >= (0 if charts else 9)
    assert path.stat().st_size < 400_000


def test_the_slowest_job_opens_to_its_phases(browser: Browser, filled: Reports, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(to_html(whole_page(filled, ReportFilter(), NOW)), "utf-8")
    browser.open(path)
    job = browser.driver.find_element(By.CSS_SELECTOR, "details[name=job]")
    job.find_element(By.CSS_SELECTOR, "summary").click()
    text = job.text
    assert all(
        words in text for words in ("failed", "numerical_error", "in the queue", "first token", "290 ms", "commit")
    )


def test_two_runs_are_told_apart_by_colour_and_side(browser: Browser, filled: Reports, tmp_path: Path) -> None:
    sides = Side("a", ReportFilter(batch="monday")), Side("</script>", ReportFilter(batch="tuesday"))
    path = tmp_path / "two.html"
    path.write_text(to_html(comparison_page(compare(filled, *sides), *sides, NOW)), "utf-8")
    browser.open(path)
    assert (browser.complaints(), browser.requests()) == ([], [path.as_uri()])
    row = browser.driver.find_element(By.XPATH, "//tr[th='e2e p50']")
    assert "+50.0% much worse 110 110" in row.text
    bar, worse = row.find_element(By.CSS_SELECTOR, "rect"), row.find_element(By.CSS_SELECTOR, ".verdict")
    assert bar.get_attribute("x") is not None
    assert (bar.value_of_css_property("fill"), bar.value_of_css_property("x")) == (
        worse.value_of_css_property("color").replace("rgba", "rgb").replace(", 1)", ")"),
        "50%",
    )

"""The page of a run in a real browser: nothing wider than the window, no errors, light and dark."""

import re
from pathlib import Path

import pytest

from rocketbed.chaos.plan.library import load_scenario
from rocketbed.chaos.report.page import write_report
from rocketbed.chaos.search.runner import run_plan
from tests.support.devtools import browser, drawn

pytestmark = pytest.mark.slow
MEASURE = """<script>
addEventListener("error", event => { document.title = "error " + event.message; });
addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body > *")]
    .filter(element => element.getBoundingClientRect().right > innerWidth + 1)
    .map(element => element.tagName + "." + element.className);
  document.title = "measured " + document.documentElement.scrollWidth + " of " + innerWidth
    + " hint " + getComputedStyle(document.querySelector(".hint")).display
    + " wide " + wide.join(",") + " drawings " + document.querySelectorAll("svg").length;
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all its parts, that measures itself."""
    directory = tmp_path_factory.mktemp("run") / "run"
    outcome = run_plan(load_scenario("sync-failover").plan(3, quick=True), directory=directory)
    assert outcome.judgement is not None, outcome.error
    assert outcome.record is not None
    path = write_report(directory, outcome.judgement, outcome.record)
    text = path.read_text(encoding="utf-8").replace("</body>", f"{MEASURE}</body>")
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.ci
@pytest.mark.parametrize("width", [500, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_window(
    page: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    options = ["--blink-settings=preferredColorScheme=0"] if dark else []
    text = drawn(page.as_uri(), tmp_path / "profile", f"--window-size={width},900", *options)
    matched = re.search(r"<title>(.*?)</title>", text)
    assert matched is not None
    title = matched[1]
    measured = re.fullmatch(r"measured (\d+) of (\d+) hint (\w+) wide (\S*) drawings (\d+)", title)
    assert measured is not None, title
    assert int(measured[1]) <= int(measured[2]), title
    assert (measured[3] == "none") == (width > 680), title  # where the timeline has to be scrolled
    assert measured[4] == "", title
    assert int(measured[5]) == 6, title


@pytest.mark.parametrize(("width", "touch"), [(400, True), (1400, False)])
def test_tables_are_cards_on_a_phone(page: Path, tmp_path: Path, width: int, touch: bool) -> None:
    with browser(tmp_path / "profile") as shown:
        shown.window(width, 900, touch=touch)
        shown.open(page.as_uri())
        shown.wait_for("document.querySelector('td[data-head]') !== null")
        row = "getComputedStyle(document.querySelector('td').parentElement).display"
        assert (shown.value(row) == "block") == touch
        head = "getComputedStyle(document.querySelector('td[data-head]'), '::before').content"
        assert (shown.value(head) != "none") == touch
        pointer = "getComputedStyle(document.querySelector('.pointer')).display"
        assert (shown.value(pointer) == "none") == touch

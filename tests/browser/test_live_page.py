"""The live page in a real browser, on real processes: what it shows is so, and its keys work."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from rocketbed.chaos.live.feed import Feed
from rocketbed.chaos.live.server import LiveServer
from rocketbed.world.real import real_world
from tests.support.devtools import Browser, browser
from tests.support.live_page import Live, live, run_live

pytestmark = [pytest.mark.slow, pytest.mark.process]
OVERFLOW = """[...document.querySelectorAll("body *")]
  .filter(element => element.getBoundingClientRect().right > innerWidth + 1
    && !element.closest("svg") && getComputedStyle(element).position !== "fixed")
  .map(element => element.tagName + "." + element.className)"""


class ShownRun:
    """A browser that shows a run."""

    def __init__(self, page: Browser, run: Live) -> None:
        self.page = page
        self.run = run

    def machine(self, name: str) -> str:
        """An expression."""
        return f"live.values.get('machine:{name}')"

    def button(self, name: str, action: str) -> str:
        """An expression: a button of a card, by what it does now."""
        return f"""document.querySelector('[data-name="{name}"] [data-action="{action}"]')"""

    def bands(self, label: str) -> list[dict[str, Any]]:
        """Faults of this text that the page knows."""
        rows: list[dict[str, Any]] = self.page.value(
            f"[...live.span.values()].filter(span => span.label === '{label}')"
        )
        return rows


@pytest.fixture(scope="module")
def live_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownRun]:
    directory = tmp_path_factory.mktemp("page")
    with (
        live(directory / "log", *run_live(directory)) as run,
        browser(directory / "profile") as page,
    ):
        page.window(1400, 900)
        page.open(run.address)
        page.wait_for("live.values.get('phase').name === 'faults'", 60)
        yield ShownRun(page, run)


@pytest.mark.ci
def test_events_before_the_load_have_negative_times(live_page: ShownRun) -> None:
    """Also what this page has shown before anybody knew when the load would begin."""
    rows = """[...document.querySelectorAll('#events li')].reverse().map(
      item => [item.querySelector('time').textContent, item.textContent])"""
    live_page.page.wait_for(f"{rows}.some(([time]) => !time.startsWith('-'))")
    times, words = zip(*live_page.page.value(rows), strict=True)
    assert times[0].startswith("-")
    begun = next(place for place, text in enumerate(words) if text.endswith("faults"))
    assert all(time.startswith("-") for time in times[:begun]), words
    assert not any(time.startswith("-") for time in times[begun:]), words


@pytest.mark.ci
def test_the_token_leaves_the_address_line(live_page: ShownRun) -> None:
    assert live_page.page.value("location.href") == f"http://127.0.0.1:{live_page.run.port}/"
    live_page.page.reload()
    live_page.page.wait_for("live.updates > 1")
    assert live_page.page.value("sessionStorage.getItem('token')") == live_page.run.token


def test_offsets_and_rates_move(live_page: ShownRun) -> None:
    page = live_page.page
    for offset_name in ("written", "flushed", "confirmed", "dispatched"):
        before = page.wait_for(f"live.values.get('at:b1').{offset_name}")
        page.wait_for(f"live.values.get('at:b1').{offset_name} > {before}")
    page.wait_for("Number(document.getElementById('f-ok').textContent) > 10")
    page.wait_for("document.querySelectorAll('.wire.flow').length === 2")
    text = page.value("document.querySelector('[data-name=b1] .value').textContent")
    page.wait_for(f"document.querySelector('[data-name=b1] .value').textContent !== '{text}'")


def test_updates_come_several_times_a_second(live_page: ShownRun) -> None:
    took_ms = live_page.page.value(
        """(async () => {
          const began = performance.now(), first = live.updates;
          while (live.updates < first + 20) await new Promise(requestAnimationFrame);
          return performance.now() - began;
        })()"""
    )
    assert 20 / 10 * 1000 < took_ms < 20 / 2 * 1000


def test_key_kills_and_restarts_the_chosen_node(live_page: ShownRun) -> None:
    page = live_page.page
    pid = Path(live_page.run.log.parent, "report", "by-hand-3-process", "nodes", "b2", "pid")
    first = int(pid.read_text().split()[0])
    page.press("2")
    page.wait_for("live.chosen === 'b2'")
    page.press("k")
    page.wait_for(f"{live_page.machine('b2')}.state === 'down'")
    page.value("dispatchEvent(new KeyboardEvent('keydown', {key: 'k', repeat: true}))")
    assert not Path(f"/proc/{first}").exists()
    page.wait_for("document.querySelector('.box[data-name=b2].down')")
    (band,) = live_page.bands("kill b2")
    assert band["end"] is None
    assert band["hand"]
    page.wait_for("[...document.querySelectorAll('#timeline .over title')].length > 0")
    page.wait_for("document.querySelector('#events li.hand span').textContent.includes('kill b2')")
    page.press("k")
    page.wait_for(f"{live_page.machine('b2')}.state === 'running'")
    (band,) = live_page.bands("kill b2")
    assert band["end"] is not None
    assert int(pid.read_text().split()[0]) != first


def test_buttons_pause_and_cut(live_page: ShownRun) -> None:
    page = live_page.page
    page.wait_for("live.values.get('at:b2').following")
    for action, opposite, state in (
        ("pause", "resume", f"{live_page.machine('b3')}.state === 'paused'"),
        ("cut", "heal", f"{live_page.machine('b3')}.cut"),
    ):
        page.wait_for(live_page.button("b3", action) + ".getAttribute('aria-disabled') === 'false'")
        page.value(live_page.button("b3", action) + ".click()")
        page.wait_for(state)
        page.wait_for(live_page.button("b3", opposite))
        page.value(live_page.button("b3", opposite) + ".click()")
        page.wait_for(f"!({state})")


def test_impossible_actions_are_disabled_with_a_reason(live_page: ShownRun) -> None:
    page = live_page.page
    promote = live_page.button("b1", "promote")
    page.wait_for(f"{promote}.getAttribute('aria-disabled') === 'true'")
    assert page.value(f"{promote}.title") == "make the master b1: it is the master"
    # Clicked until it is seen: a late answer to an earlier button may take the note's place.
    note = "document.getElementById('note').textContent"
    page.wait_for(f"{promote}.click(), {note}.includes('it is the master')")


def test_the_keys_are_explained(live_page: ShownRun) -> None:
    page = live_page.page
    page.press("?")
    assert page.value("document.getElementById('keys').open")
    page.press("k")  # the list is open: nothing is killed
    page.value("document.querySelector('#keys button').click()")
    assert not page.value("document.getElementById('keys').open")
    assert page.value(f"{live_page.machine(page.value('live.chosen'))}.state") == "running"


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_window(live_page: ShownRun, width: int, dark: bool) -> None:
    page = live_page.page
    page.window(width, 900, dark=dark, touch=width < 600)
    drawn = page.value("live.updates")
    page.wait_for(f"live.updates > {drawn + 2}")
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    assert page.value(OVERFLOW) == []
    back = page.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, back[4:-1].split(","))) < 200) == dark
    small = page.value(
        "[...document.querySelectorAll('button')].filter(b => b.offsetParent &&"
        " (b.offsetHeight < 24 || b.scrollWidth > b.offsetWidth + 1)).map(b => b.textContent)"
    )
    assert small == []


def test_buttons_have_names_and_nothing_moves_unprompted(live_page: ShownRun) -> None:
    page = live_page.page
    page.window(1400, 900)
    nameless = page.value(
        "[...document.querySelectorAll('button')].filter(b => !(b.ariaLabel || b.textContent))"
    )
    assert nameless == []
    shift = page.value(
        """new Promise(done => {
          let sum = 0;
          new PerformanceObserver(list => {
            for (const entry of list.getEntries()) if (!entry.hadRecentInput) sum += entry.value;
          }).observe({ type: "layout-shift" });
          const first = live.updates;
          (function wait() {
            if (live.updates > first + 12) done(sum);
            else requestAnimationFrame(wait);
          })();
        })"""
    )
    assert shift < 0.01


def test_outage_banner_has_its_length_and_faults_stay(
    live_page: ShownRun,
) -> None:
    page = live_page.page
    page.wait_for("document.getElementById('health').textContent === '✓ well'")
    assert page.value("document.getElementById('banner').hidden")
    live_page.run.do("kill", "b1")
    page.wait_for("!document.getElementById('banner').hidden")
    words = page.value("document.getElementById('banner').textContent")
    assert words.startswith("NO WRITES for ")
    assert words.endswith(" s: b1 down, no master")
    assert page.value("document.getElementById('health').textContent") == "! no writes"
    assert page.value("document.getElementById('phase').textContent") == "faults"
    card = "document.querySelector('.card[data-name=b1] .badge').textContent"
    assert page.value(card) == "was master"
    page.wait_for("document.querySelector('#rate .outage-name').textContent.includes('no writes')")
    names = "[...document.querySelectorAll('#rate .fault-name')].map(name => name.firstChild.data)"
    page.wait_for(f"{names}.includes('kill b1')")
    live_page.run.do("start", "b1")
    page.wait_for("document.getElementById('banner').hidden")
    (outage,) = page.value("[...live.span.values()].filter(span => span.kind === 'outage')")
    assert outage["end"] - outage["begin"] > 1


def test_timeline_is_above_the_fold(live_page: ShownRun) -> None:
    live_page.page.window(1400, 900)
    bottom = "document.getElementById('timeline').getBoundingClientRect().bottom + scrollY"
    assert 0 < live_page.page.value(bottom) < 900


def test_names_of_outages_do_not_overprint(live_page: ShownRun) -> None:
    page = live_page.page
    outages = "[...live.span.values()].filter(span => span.kind === 'outage' && span.end)"
    before = page.value(f"{outages}.length")
    for count in (1, 2, 3):
        live_page.run.do("kill", "b1")
        page.wait_for("!document.getElementById('banner').hidden")
        live_page.run.do("start", "b1")
        page.wait_for(f"{outages}.length >= {before + count}")
    overlaps = """(() => {
      const names = [...document.querySelectorAll('#rate .outage-name')];
      const boxes = names.map(name => name.getBoundingClientRect());
      return boxes.flatMap((one, place) => boxes.slice(place + 1).filter(
        other => one.left < other.right && other.left < one.right)).length;
    })()"""
    assert page.value(overlaps) == 0


def test_lag_and_disks_are_shown_for_a_chosen_range(live_page: ShownRun) -> None:
    page = live_page.page
    page.wait_for("/^[0-9,]+$/.test(document.getElementById('f-lag').textContent)")
    page.wait_for(
        "document.querySelector('[data-name=b2] .disk + dd').textContent.includes('full')"
    )
    page.value("document.querySelector('#range [data-s=\"30\"]').click()")
    page.wait_for("live.range === 30")
    page.wait_for("document.querySelectorAll('#rate .tick').length > 2")
    ticks = page.value(
        "[...document.querySelectorAll('#rate .tick')].map(tick => tick.textContent)"
    )
    assert all(re.fullmatch(r"-?\d+:\d\d", tick) for tick in ticks), ticks


def test_end_shows_the_verdict_and_the_report(live_page: ShownRun) -> None:
    page, run = live_page.page, live_page.run
    page.wait_for("live.values.get('at:b3').following && live.values.get('at:b2').following")
    page.press("e")
    assert page.value("live.values.get('phase').name") == "faults"
    page.press("e")
    page.wait_for("live.values.get('judging')", 120)
    page.wait_for("document.getElementById('f-ok').textContent === '\\u2013'")
    page.wait_for("live.values.get('verdict')", 120)
    assert page.value("document.getElementById('banner').hidden")
    page.wait_for("!document.getElementById('verdict').hidden")
    assert page.value("document.getElementById('verdict-word').textContent") == "pass", run.output()
    assert page.complaints == []
    for link, words in (("report", "by-hand, seed 3"), ("session", "kill b2 for")):
        address = page.value(f"document.getElementById('link-{link}').href")
        text = page.value(f"fetch('{address}').then(answer => answer.text())")
        assert words in text
    page.open(f"http://127.0.0.1:{run.port}/report")
    page.wait_for("document.querySelector('h1').textContent.includes('by-hand')")
    assert page.complaints == []
    page.open("about:blank")
    assert run.wait() == 0, run.output()  # no page is open any more
    assert "chaos replay" in run.output()


def test_page_reconnects_after_a_dropped_connection(tmp_path: Path) -> None:
    """With a server in this process, whose connections can be dropped."""
    address: list[str] = []
    ready, drop, stop = threading.Event(), threading.Event(), threading.Event()
    feed = Feed()
    feed.put("run", _empty_run())
    feed.put("phase", {"name": "faults", "zero": 0})

    async def serve() -> None:
        server = LiveServer(real_world("test"), feed, _NoDesk())
        address.append(await server.listen(0))
        await serve_until(server, drop)
        feed.put("phase", {"name": "recovery", "zero": 0})
        access = server.access
        await server.listen(access.port)
        server.access = access
        await serve_until(server, stop)

    async def serve_until(server: LiveServer, event: threading.Event) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve)
            ready.set()
            await trio.to_thread.run_sync(event.wait, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        assert ready.wait(20)
        with browser(tmp_path / "profile") as page:
            page.open(address[0])
            page.wait_for("document.getElementById('phase').textContent === 'faults'")
            drop.set()
            page.wait_for("document.getElementById('phase').textContent === 'recovery'", 30)
            page.wait_for("document.getElementById('line').textContent === 'live'")
            stop.set()
            page.wait_for("document.getElementById('line').textContent === 'offline'")
    finally:
        drop.set()
        stop.set()
        thread.join(20)


class _NoDesk:
    async def press(self, action: str, name: str) -> str:
        raise AssertionError(f"{action} {name}")


def _empty_run() -> dict[str, Any]:
    return {
        "mode": "run", "title": "nothing", "seed": 1, "backend": "none", "promise": "none",
        "nodes": ["b1"], "nameservers": ["ns1"], "groups": {"b": ["b1"]},
    }  # fmt: skip

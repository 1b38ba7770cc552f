"""The dashboard in a real Chromium: what is drawn is the world, while processes are killed."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from marshal_py import Marshal
from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import WorldView, read_world
from marshal_py.embedded import EmbeddedKafka
from tests.integration.marshal_py.dashboard.conftest import Served
from tests.support.chromium import Page, find_chromium

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")
pytest.importorskip("uvicorn", reason="the extra `dashboard` is not installed")

pytestmark = pytest.mark.kafka
browser = pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium on PATH")

INTERVAL_MS = 1_000
PARTITIONS = 24

HOLDER = """
import json, sys, time
from marshal_py import Marshal
settings = json.loads(sys.argv[1])
partitions = settings.pop("partitions")
with Marshal(settings.pop("servers"), **settings) as marshal:
    claims = marshal.claim_many([("orders", p) for p in partitions], timeout_s=60)
    print("holds", flush=True)
    for n in range(100000):
        for claim in claims:
            if claim.held:
                claim.commit(n)
        time.sleep(0.2)
"""


class Holder:
    """A process that holds partitions of `orders` until it is killed."""

    def __init__(self, servers: str, topic: str, name: str, partitions: list[int]) -> None:
        self.name, self.partitions = name, partitions
        settings = {
            "servers": servers, "topic": topic, "group_id": "g", "client_id": name,
            "interval_ms": INTERVAL_MS, "partitions": partitions,
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, json.dumps(settings)], stdout=subprocess.PIPE, text=True
        )

    def await_claims(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "holds\n"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def holder(kafka: EmbeddedKafka, made: str) -> Iterator[Callable[..., Holder]]:
    started: list[Holder] = []

    def start(name: str, partitions: list[int]) -> Holder:
        started.append(Holder(kafka.bootstrap_servers, made, name, partitions))
        return started[-1]

    yield start
    for one in started:
        one.kill()


# What is drawn

DRAWN = """(async () => {
    const { theme, clientColour } = await import("/static/colour.js");
    await new Promise(requestAnimationFrame);
    const { heat } = marshal.view(), { clients } = marshal.model();
    const ratio = heat.canvas.width / heat.canvas.clientWidth;
    const context = heat.canvas.getContext("2d");
    const [names, colours] = heat.mode === "holder"
        ? [clients, clients.map((_, index) => clientColour(index))]
        : [["free", "fresh", "unknown", "stale"], theme().live];
    const drawn = {};
    for (const partition of heat.row.partitions) {
        const { x, y, size } = heat.rectOf(partition);
        const [left, top] = [(x + size * 0.2) * ratio, (y + size * 0.2) * ratio];
        const pixel = context.getImageData(left, top, 1, 1).data;
        const index = colours.findIndex((c) => c.every((v, i) => Math.abs(v - pixel[i]) < 3));
        drawn[partition] = names[index] ?? null;
    }
    return drawn;
})()"""


def drawn(page: Page, mode: str) -> dict[int, str | None]:
    """What the pixels of the map say: the holder or the liveness of each partition."""
    page.evaluate(f"marshal.context.setMode({mode!r})")
    page.until(f"marshal.view().heat.mode === {mode!r}")
    return {int(p): what for p, what in page.evaluate(DRAWN).items()}


def world(found: WorldView) -> tuple[dict[int, str], dict[int, str]]:
    """Holders and livenesses of the cells of `orders`, as the log has them."""
    holders: dict[int, str] = {}
    lives: dict[int, str] = {}
    for p, key, cell in found.world.cells("g"):
        if key[1] == "orders":
            silence = found.cell_silence(p, key, cell)
            holders[key[2]] = cell.holder or ""
            lives[key[2]] = "free" if silence is None else silence.liveness
    return holders, lives


def until_drawn(
    page: Page, connection: Connection, stale: set[int], timeout_s: float = 120
) -> None:
    """Wait until the world has these stale partitions, and the map shows it, cell by cell."""
    deadline = time.monotonic() + timeout_s
    while True:
        holders, lives = world(read_world(connection))
        seen, alive = drawn(page, "holder"), drawn(page, "live")
        same = (
            {p for p, live in lives.items() if live == "stale"} == stale
            and {p for p, live in alive.items() if live == "stale"} == stale
            and {p for p, live in alive.items() if live == "free"}
            == {p for p, live in lives.items() if live == "free"}
            and seen == holders
        )
        if same:
            return
        assert time.monotonic() < deadline, (holders, seen, lives, alive)


@browser
def test_what_is_drawn_is_the_world_while_processes_are_killed(
    kafka: EmbeddedKafka,
    made: str,
    holder: Callable[..., Holder],
    serve: Callable[..., Served],
    page: Page,
) -> None:
    connection = Connection.of_servers(kafka.bootstrap_servers, made)
    first, second = holder("one", list(range(14))), holder("two", list(range(14, PARTITIONS)))
    first.await_claims()
    second.await_claims()
    served = serve()
    page.goto(f"{served.url}#/g/g/orders")
    page.until("marshal.live.head.phase === 'live' && marshal.view().heat?.row")
    until_drawn(page, connection, set())

    first.kill()
    until_drawn(page, connection, set(range(14)))
    page.until(
        "marshal.live.openAlerts().some((a) => a.kind === 'stale' && a.text.includes('one'))"
    )
    before_ms = page.evaluate("Math.round(marshal.live.now())")

    third = holder("three", list(range(14)))
    third.await_claims()
    until_drawn(page, connection, set())
    page.until("!marshal.live.openAlerts().some((a) => a.kind === 'stale')")
    taken = "marshal.live.activity.filter((line) => line.kind === 'TakenOver')"
    assert page.evaluate(f"{taken}.length") == 14
    assert page.evaluate(f"{taken}[0].text.includes('three')")

    # A process that is stopped, and wakes, is stale and fresh again under the same epoch.
    second.signal(signal.SIGSTOP)
    until_drawn(page, connection, set(range(14, PARTITIONS)))
    second.signal(signal.SIGCONT)
    until_drawn(page, connection, set())

    # The timeline: one claim ended by a takeover, and one that stands.
    page.until("marshal.view().lanes.data?.lanes[3].bars.length === 2", 30)
    bars = page.evaluate(
        "(({clients, lanes}) => lanes[3].bars.map((b) => [clients[b[0]], b[3]]))"
        "(marshal.view().lanes.data)"
    )
    assert bars == [["one", "taken_over"], ["three", None]]

    # The past: whoever is drawn is who held it then.
    page.evaluate(f"marshal.travel({before_ms})")
    page.until(f"marshal.model().past && marshal.model().now() === {before_ms}")
    holders, lives = world(read_world(connection, at_ms=before_ms))
    assert set(holders.values()) == {"one", "two"}
    assert drawn(page, "holder") == holders
    assert drawn(page, "live") == lives
    page.evaluate("document.querySelector('.to-live').click()")
    page.until("!marshal.model().past")
    until_drawn(page, connection, set())
    assert page.errors == []
    assert served.stop() == 0


@browser
def test_keys_and_tables_reach_what_the_canvas_shows(
    kafka: EmbeddedKafka,
    made: str,
    client: Callable[..., Marshal],
    serve: Callable[..., Served],
    page: Page,
) -> None:
    a, b = client("a/1"), client("b")
    a.claim_many([("orders", p) for p in range(3)], timeout_s=60)
    b.claim("orders", 3, timeout_s=60)
    b.leader("night").campaign(10)
    b.leader("d\u202ek\x07").campaign(10)
    served = serve()
    page.goto(f"{served.url}#/g/g/orders")
    page.until("marshal.view()?.heat?.row?.partitions.length === 4")
    assert "4 partitions" in page.evaluate("marshal.view().map.getAttribute('aria-label')")

    page.evaluate("marshal.view().map.focus()")
    for _ in range(4):
        page.key("ArrowRight", code=39)
    said = page.until("document.getElementById('say').textContent.includes('partition 3') && "
                      "document.getElementById('say').textContent")  # fmt: skip
    assert said.startswith("partition 3: b, ")
    page.until("document.querySelector('#inspector h2')?.textContent.startsWith('orders / 3')")
    assert page.evaluate("location.hash") == "#/g/g/orders/3"

    click = "[...document.querySelectorAll('button')].find((b) => b.textContent === %r).click()"
    page.evaluate(click % "Table")
    rows = page.until(
        "(() => { const rows = [...document.querySelectorAll('main table')[0].rows].slice(1)"
        ".map((r) => [...r.cells].slice(0, 2).map((c) => c.textContent));"
        " return rows.length === 4 && rows; })()"
    )
    assert rows == [["0", "a/1"], ["1", "a/1"], ["2", "a/1"], ["3", "b"]]

    page.evaluate(click % "Tell its whole story")
    page.until("document.getElementById('inspector').textContent.includes('claimed it')")

    page.until("marshal.view().lanes.data?.lanes.length === 4")
    page.evaluate("marshal.view().scroller.focus()")
    # Claims that are a moment old fill two seconds: even that can be looked at more closely.
    page.evaluate("marshal.view().lanes.last(2000)")
    page.key("+", text="+")
    page.until("marshal.view().lanes.span < 2000")
    page.key("ArrowLeft", code=37)
    page.until("/^partition [0-3] at .*: (a.1|b) since/.test(marshal.view().told.textContent)")

    page.evaluate("location.hash = '#/leaders'")
    leaders = page.until(
        "(() => { const found = document.querySelector('main table')?.textContent ?? '';"
        " return found.includes('night') && found.includes('d\\\\u202ek\\\\x07') && found; })()"
    )
    assert leaders.isprintable()  # nothing turns a line around, or hides in it
    page.evaluate("location.hash = '#/members'")
    text = page.until(
        "document.querySelector('main h1')?.textContent.startsWith('Members') "
        "&& document.querySelector('main table').textContent"
    )
    assert "a/1" in text

    # Whatever can be reached has a name that can be read out.
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, a, input, select')].filter((e) => "
        "!(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length))"
        ".map((e) => e.outerHTML)"
    )
    assert nameless == []
    assert page.errors == []


@browser
def test_brokers_that_do_not_answer_are_told_of_and_nothing_else_is_lost(
    kafka: EmbeddedKafka,
    made: str,
    client: Callable[..., Marshal],
    serve: Callable[..., Served],
    page: Page,
) -> None:
    client("a").claim("orders", 0, timeout_s=60)
    served = serve()
    page.goto(f"{served.url}#/g/g/orders")
    page.until("marshal.live.head.phase === 'live' && marshal.view().heat?.row")
    kafka.kill()
    page.until("marshal.live.head.phase === 'lost'")
    page.until("document.getElementById('banner').textContent.includes('no answer')")
    assert page.evaluate("marshal.view().heat.row.partitions.length") == 1, (
        "the page is still there"
    )
    grey = "getComputedStyle(document.querySelector('main')).filter"
    assert page.evaluate(grey) == "grayscale(1)", "it does not know, and does not redden"
    page.evaluate("location.hash = '#/g/g/orders/0'")
    kafka.start()
    page.until("marshal.live.head.phase === 'live'", 60)
    page.until("document.getElementById('banner').hidden")
    assert page.evaluate(grey) == "none"
    until_drawn(page, Connection.of_servers(kafka.bootstrap_servers, made), set())
    assert page.errors == []


def test_questions_are_answered_and_strangers_are_not(
    kafka: EmbeddedKafka, made: str, client: Callable[..., Marshal], serve: Callable[..., Served]
) -> None:
    claim = client("a").claim("orders", 7, timeout_s=60)
    claim.commit(12, wait=True)
    served = serve()
    status, cell = served.ask("/api/cell?group=g&topic=orders&partition=7")
    assert (status, cell["holder"], cell["epoch"], cell["next_offset"]) == (
        200,
        "a",
        claim.epoch,
        12,
    )
    assert [c["client_id"] for c in cell["claims"]] == ["a"]
    now_ms = time.time_ns() // 1_000_000 + 1_000
    status, lanes = served.ask(f"/api/lanes?group=g&topic=orders&from=0&to={now_ms}")
    assert [(lane["partition"], len(lane["bars"])) for lane in lanes["lanes"]] == [(7, 1)]
    status, story = served.ask("/api/story?group=g&topic=orders&partition=7")
    assert status == 200
    assert "a" in story["standing"]
    status, past = served.ask("/api/at?t=1000")
    assert (status, past["rows"]) == (200, []), "nobody held anything in 1970"
    for path in ("/api/cell?group=g", "/api/at?t=x", "/api/at?t=-1", f"/api/at?t={2**70}"):
        status, found = served.ask(path)
        assert status == 400, path
        assert "error" in found
    assert served.ask("/static/../app.py")[0] == 404
    assert served.ask("/", Host="evil.example")[0] == 421
    assert served.ask("/api/stream", Origin="http://evil.example")[0] == 403
    assert served.ask("/", method="POST", Origin=served.url.rstrip("/"))[0] == 405
    assert served.stop() == 0


@browser
def test_an_operator_sees_what_would_happen_before_it_does(
    kafka: EmbeddedKafka,
    made: str,
    client: Callable[..., Marshal],
    serve: Callable[..., Served],
    page: Page,
) -> None:
    a = client("a")
    for p in range(3):
        a.claim("orders", p, timeout_s=60).commit(50 + p, wait=True)
    a.close()
    connection = Connection.of_servers(kafka.bootstrap_servers, made)
    served = serve("--write")
    page.goto(f"{served.url}#/g/g/orders/1")

    previewed = (
        "document.querySelector('dialog p.error')?.textContent "
        "|| !document.querySelector('dialog .danger').hidden"
    )

    def click(where: str, text: str) -> None:
        buttons = f"[...document.querySelectorAll('{where} button')]"
        usable = "!b.disabled && b.checkVisibility()"
        find = f"{buttons}.find((b) => b.textContent === '{text}' && {usable})"
        page.until(find)
        page.evaluate(f"{find}.click()")

    page.until(
        "[...document.querySelectorAll('aside button')].some((b) => b.textContent[0] === 'S')"
    )

    click("aside", "Set position …")
    page.evaluate("document.querySelector('dialog input').value = '7'")
    click("dialog", "Preview")
    page.until("document.querySelector('dialog td')")
    cells = page.evaluate("[...document.querySelectorAll('dialog td')].map((c) => c.textContent)")
    assert cells == ["orders/1", "51", "7", "−44", ""]
    cell = read_world(connection).world.cell("g", "orders", 1)
    assert cell is not None
    assert cell.position == 51, "a preview changes nothing"
    click("dialog", "Do it")
    page.until("document.querySelector('dialog [role=status]').textContent.includes('set.')")
    assert cell.position == 51
    now = read_world(connection).world
    positions = [found.position for _, _, found in sorted(now.cells("g"), key=lambda c: c[1])]
    assert positions == [50, 7, 52]
    assert not now.paused("g"), "it is left as it was found"
    click("dialog", "Close")
    page.until("marshal.live.activity.some((line) => line.kind === 'PositionSet')")

    click("main", "Pause …")
    click("dialog", "Preview")
    assert page.until(previewed) is True
    click("dialog", "Do it")
    page.until("document.querySelector('.crumbs')?.textContent.includes('paused until')")
    assert read_world(connection).world.paused("g")
    click("dialog", "Close")
    click("main", "Resume …")
    assert page.until(previewed) is True
    click("dialog", "Do it")
    page.until("!document.querySelector('.crumbs').textContent.includes('paused until')")
    assert not read_world(connection).world.paused("g")
    assert page.errors == []

    own = {"Origin": served.url.rstrip("/"), "Content_Type": "application/json"}
    body = json.dumps({"what": "pause", "group": "g"})
    status, seen = served.ask("/api/preview", "POST", body, **own)
    assert status == 200
    assert served.ask("/api/preview", "POST", body, Content_Type="application/json")[0] == 403
    assert (
        served.ask("/api/preview", "POST", body, **{**own, "Content_Type": "text/plain"})[0] == 400
    )
    ticket = json.dumps({"ticket": seen["ticket"]})
    assert served.ask("/api/perform", "POST", ticket, **own)[0] == 200
    assert served.ask("/api/perform", "POST", ticket, **own)[0] == 400, "good for once"
    for wrong in ("{", "{}", '{"what": "forget", "group": "g"}', '{"what": "pause", "group": "x"}'):
        assert served.ask("/api/preview", "POST", wrong, **own)[0] == 400, wrong


def test_beyond_this_machine_a_token_is_needed(serve: Callable[..., Served]) -> None:
    served = serve("--host", "0.0.0.0")
    token = re.search(r"token=([\w-]{32,})$", served.url)
    assert token is not None
    assert served.ask("/api/strip?from=0&to=1")[0] == 401
    assert served.ask(f"/?token={token[1]}")[0] == 303
    assert served.ask("/api/strip?from=0&to=1", Authorization=f"Bearer {token[1]}")[0] == 200
    assert served.ask("/api/strip?from=0&to=1", Cookie="marshal_token_0=guess")[0] == 401
    assert served.stop() == 0
    assert served.process.stderr is not None
    assert token[1] not in served.process.stderr.read()


def test_a_token_can_be_given(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = secrets.token_urlsafe()
    monkeypatch.setenv("MARSHAL_DASHBOARD_TOKEN", token)
    served = serve()
    assert "token" not in served.url
    assert served.ask("/api/strip?from=0&to=1")[0] == 401
    assert served.ask("/api/strip?from=0&to=1", Authorization=f"Bearer {token}")[0] == 200
    monkeypatch.setenv("MARSHAL_DASHBOARD_TOKEN", "guess-me")
    with pytest.raises(AssertionError, match="MARSHAL_DASHBOARD_TOKEN has to be 24") as refused:
        serve()
    assert "guess-me" not in str(refused.value)


def test_what_cannot_work_is_one_line(kafka: EmbeddedKafka, topic: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "marshal_py.cli", "dashboard", "--port", "0", *arguments],
            capture_output=True, text=True, timeout=120, env=os.environ,
        )  # fmt: skip

    missing = run("-b", kafka.bootstrap_servers, "--topic", topic)
    assert missing.returncode == 3
    assert "marshal topic create" in missing.stderr
    nowhere = run("-b", kafka.bootstrap_servers, "--topic", topic, "--host", "203.0.113.9")
    assert nowhere.returncode == 2
    assert "--host" in nowhere.stderr
    for found in (missing, nowhere):
        assert len(found.stderr.splitlines()) == 1
        assert found.stdout == ""

"""What axe-core finds wrong with each view, light and dark, wide and narrow: nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import pytest
from confluent_kafka import Producer

from marshal_py import Marshal
from marshal_py.admin.connection import Connection
from marshal_py.dashboard.audit_trail import AuditTrail
from marshal_py.embedded import EmbeddedKafka
from tests.integration.marshal_py.dashboard.conftest import Served
from tests.support.chromium import Page, find_chromium

pytest.importorskip("starlette", reason="the extra `dashboard` is not installed")
pytest.importorskip("axe_playwright_python", reason="pip install axe-playwright-python")

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium on PATH"),
]

FOUND = """axe.run(document, {resultTypes: ["violations"]}).then((found) =>
    found.violations.flatMap(({id, nodes}) =>
        nodes.map((n) => `${id}: ${n.html} ${n.failureSummary}`)))"""

FITS = """(({width, right}) => document.documentElement.scrollWidth <= innerWidth
    && width > 0 && right <= innerWidth
)(document.getElementById("alert-count").getBoundingClientRect())"""

VIEWS = {
    "#/": "document.querySelector('.card')",
    "#/g/g/orders": "marshal.view().heat?.row && marshal.view().lanes.data",
    "#/g/g/orders/1": "document.querySelector('#inspector dl')",
    "#/leaders": "document.querySelector('main table')",
    "#/members": "document.querySelector('main table')",
    "#/activity": "document.querySelector('main .events li')",
    "#/dead-letters": "document.querySelector('main .letter')",
    "#/audit": "document.querySelector('main tbody')",
    "#/alerts": "document.querySelector('main .alert')",
}


def found(page: Page) -> list[str]:
    """What axe-core complains of now."""
    violations: list[str] = page.evaluate(FOUND)
    return violations


def test_nothing_is_wrong_with_any_view(
    kafka: EmbeddedKafka,
    made: str,
    client: Callable[..., Marshal],
    serve: Callable[..., Served],
    page: Page,
) -> None:
    a = client("a")
    a.claim_many([("orders", p) for p in range(3)], timeout_s=60)
    a.leader("night").campaign(60)
    dead = f"orders.{made}.dlq"
    kafka.create_topic(dead)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(dead, b"x", headers={"dlq-error-class": "Broken", "dlq-topic": "orders"})
    assert producer.flush(60) == 0
    connection = Connection.of_servers(kafka.bootstrap_servers, made)
    AuditTrail(connection).begin("anna", "pause for group g")
    served = serve("--write", "--dead-letters", dead)
    axe = (files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
    page.call("Page.addScriptToEvaluateOnNewDocument", source=axe)
    page.goto(served.url)
    page.until("marshal.live.head.phase === 'live' && marshal.live.activity.length")
    # An alert, as the server tells of one; the next state of the world takes it away again.
    page.evaluate(
        """marshal.live.alerts.set("x", {id: "x", kind: "stale", severity: "high", group: "g",
            topic: "orders", partition: 1, since_ms: 0, last_ms: 0, until_ms: null, count: 2,
            text: "a is silent"})"""
    )
    wrong: list[str] = []
    for scheme, width in (("light", 1440), ("dark", 1440), ("light", 390)):
        page.emulate(scheme=scheme, width=width)
        for address, ready in VIEWS.items():
            where = f"{address}, {scheme}, {width}"
            page.evaluate(f"location.hash = {address!r}")
            page.until(ready)
            wrong += [f"{where}: {problem}" for problem in found(page)]
            if not page.evaluate(FITS):
                wrong.append(f"{where}: the page, or its count of alerts, is cut off")
        page.evaluate("location.hash = '#/g/g'")
        button = (
            "[...document.querySelectorAll('main button')].find((b) => b.textContent[0] === 'P')"
        )
        page.until(button)
        page.evaluate(f"{button}.click()")
        page.until("document.querySelector('dialog[open]')")
        wrong += [f"dialog, {scheme}, {width}: {problem}" for problem in found(page)]
        page.evaluate("document.querySelector('dialog').close()")
    assert not wrong, "\n".join(wrong)
    assert page.errors == []

"""What Prometheus would see: targets asked every 15 s, their samples in promtool's notation."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml
from prometheus_client.parser import text_string_to_metric_families

from marshal_py.cli.metrics import telemetry_file

STEP_S: Final = 15.0
TIMEOUT_S: Final = 10.0
"""Prometheus' own default."""

STALE: Final = "stale"
_METRIC: Final = re.compile(r"\b((?:marshal|harvest)_[a-z_]+)\b")


def watched() -> frozenset[str]:
    """Return the names of the metrics that any rule looks at."""
    rules = yaml.safe_load(telemetry_file("alerts.yaml"))
    text = " ".join(rule["expr"] for part in rules["groups"] for rule in part["rules"])
    return frozenset(_METRIC.findall(text))


class Recording:
    """The samples of some targets, from `start` on, in steps of 15 s."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._watched = watched()
        self._series: dict[str, dict[int, str]] = {}
        self._of_target: dict[str, set[str]] = {}
        self.steps = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Scrape from now on."""
        self.began_s = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Scrape no more."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(len(self._urls)) as pool:
            while not self._stop.wait(
                max(0.0, self.began_s + self.steps * STEP_S - time.monotonic())
            ):
                step = self.steps
                for url, found in zip(self._urls, pool.map(self.scrape, self._urls), strict=True):
                    self._note(step, url, found)
                self.steps += 1

    def scrape(self, url: str) -> dict[str, str]:
        """Return the samples of a target; none if it does not answer."""
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        found = {}
        instance = urlsplit(url).netloc  # as Prometheus adds it: two harvesters show the same
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in self._watched:
                    given = {"instance": instance, **sample.labels}
                    labels = ",".join(f'{k}="{v}"' for k, v in sorted(given.items()))
                    found[f"{sample.name}{{{labels}}}"] = f"{sample.value:.10g}"
        return found

    def _note(self, step: int, url: str, found: dict[str, str]) -> None:
        before = self._of_target.get(url, set())
        for name in before - found.keys():
            self._series[name][step] = STALE
        for name, value in found.items():
            self._series.setdefault(name, {})[step] = value
        self._of_target[url] = set(found)

    def write(self, path: Path, first: int = 0, last: int | None = None) -> None:
        """Write the samples of some steps, in promtool's notation."""
        steps = range(first, self.steps if last is None else min(last, self.steps))
        document = [
            {"series": name, "values": notation([samples.get(step, "_") for step in steps])}
            for name, samples in sorted(self._series.items())
            if any(step in samples for step in steps)
        ]
        text = yaml.safe_dump(document, sort_keys=False, width=10_000)
        path.write_text(text)


def notation(samples: list[str]) -> str:
    """Return samples as promtool reads them: ``1x3`` is four times 1, ``_`` none."""
    found: list[str] = []
    at = 0
    while at < len(samples):
        value, count = samples[at], 1
        while at + count < len(samples) and samples[at + count] == value:
            count += 1
        if value == STALE or count == 1:
            found += [value] * count
        else:
            found.append(f"_x{count}" if value == "_" else f"{value}x{count - 1}")
        at += count
    return " ".join(found)

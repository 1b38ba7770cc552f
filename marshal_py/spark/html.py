"""Pages of HTML that load nothing from elsewhere: for the reports of the pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Final

__all__ = ["html_page", "html_table", "html_tiles"]

_STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1080px;padding:0 1rem;
color:#1b1f24;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid #d0d7de}
table{border-collapse:collapse;font-size:.86rem;width:100%}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #eaeef2;vertical-align:top}
th{color:#57606a;font-weight:600}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.tiles{display:flex;flex-wrap:wrap;gap:.8rem}.tile{border:1px solid #d0d7de;border-radius:8px;
padding:.6rem 1rem;min-width:8rem}.tile b{display:block;font-size:1.4rem}
.bad b{color:#b42318}.good b{color:#1a7f37}code,pre{font:12px ui-monospace,monospace}
pre{white-space:pre-wrap;word-break:break-all;background:#f6f8fa;padding:.6rem;border-radius:6px}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#57606a}
.note{color:#57606a;font-size:.86rem}:target{outline:2px solid #bf8700}
@media(prefers-color-scheme:dark){body{background:#0d1117;color:#e6edf3}
th,.note,svg text{color:#9198a1;fill:#9198a1}pre{background:#161b22}
td,th,h2,.tile{border-color:#30363d}.bad b{color:#ff7b72}.good b{color:#3fb950}}
"""


def html_page(title: str, body: str) -> str:
    """Return a document that stands alone."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def html_tiles(tiles: Iterable[tuple[str, int, bool]]) -> str:
    """Return figures side by side: (name, number, whether anything but 0 is bad)."""
    boxes = "".join(
        f'<div class="tile {"" if not counts else "bad" if number else "good"}">'
        f"<b>{number:,}</b>{escape(name)}</div>"
        for name, number, counts in tiles
    )
    return f'<div class="tiles">{boxes}</div>'


def html_table(
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Sequence[str] = (),
    raw: Sequence[str] = (),
) -> str:
    """Return a table; columns in `numbers` are set right, those in `raw` are HTML already."""
    kinds: list[tuple[str, Callable[[str], str]]] = [
        (' class="n"' if name in numbers else "", str if name in raw else escape) for name in names
    ]
    head = "".join(f"<th{k}>{escape(n)}</th>" for n, (k, _) in zip(names, kinds, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{k}>{show('' if value is None else str(value))}</td>"
            for value, (k, show) in zip(row, kinds, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

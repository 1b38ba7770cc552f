"""The API reference as HTML, made from the docstrings: `python docs/api_reference.py FOLDER`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

__all__ = ["MODULES", "write_reference"]

MODULES: Final = (
    "marshal_py",
    "marshal_py.errors",
    "marshal_py.protocol.events",
    "marshal_py.telemetry",
    "marshal_py.testing",
    "marshal_py.testing.broker",
    "marshal_py.embedded.kafka",
    "marshal_py.embedded.postgres",
    "harvest",
    "harvest.runtime.embedding",
    "harvest.errors",
)
"""What users import."""


def write_reference(folder: Path) -> None:
    """Write the reference of all public modules into `folder`. Needs pdoc."""
    try:
        import pdoc.doc
        import pdoc.render
    except ImportError:
        sys.exit("this needs pdoc: run `pip install pdoc`")
    pdoc.render.configure(docformat="restructuredtext", show_source=False, search=False)
    modules = {name: pdoc.doc.Module(_whole(name)) for name in MODULES}
    for name, module in modules.items():
        path = folder / f"{name.replace('.', '/')}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pdoc.render.html_module(module, modules), encoding="utf-8")
    (folder / "index.html").write_text(pdoc.render.html_index(modules), encoding="utf-8")


def _whole(name: str) -> ModuleType:
    """Import a module, and of its public names those, too, that come when they are first used."""
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        setattr(module, public, getattr(module, public))
    return module


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python docs/api_reference.py FOLDER")
    write_reference(Path(sys.argv[1]))

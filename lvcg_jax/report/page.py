"""How a report becomes one HTML file: templates, style and scripts from the folders beside this
file. No network.

Everything that goes through a template is escaped, save what is marked as HTML: the macros of
parts.html (`parts.table(...)`), and drawings. Light and dark follow the reader's setting, print is
always light.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from data_prep.ecg import svg

HERE = Path(__file__).parent
NOT_FOR_DIAGNOSIS = "Research figures, not for diagnosis."


@dataclass(frozen=True)
class Section:
    """A part of a report that the contents link to."""

    name: str
    title: str
    content: Markup


@cache
def asset(name: str) -> Markup:
    """A file of the folder assets, to stand in the page."""
    return Markup((HERE / "assets" / name).read_text(encoding="utf-8"))


def make_templates(*folders: Path) -> Environment:
    """The templates of reports, and those of further folders, which may build on them."""
    made = Environment(
        loader=FileSystemLoader([*folders, HERE / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {
        "allow_nan": False,
        "separators": (",", ":"),
        "ensure_ascii": False,
    }
    made.tests["number_first"] = lambda cell: re.match(r"[-+]?\d", cell) is not None
    made.globals |= {
        "asset": asset,
        "drawing_style": Markup(svg.STYLE),
        "not_for_diagnosis": NOT_FOR_DIAGNOSIS,
    }
    return made


_TEMPLATES = make_templates()


def macros(template: str):
    """The macros of a template, as functions that give HTML."""
    return _TEMPLATES.get_template(template).module


parts = macros("parts.html")


def render(template: str, **values) -> str:
    """A whole page."""
    return _TEMPLATES.get_template(template).render(**values)


def join(pieces: Iterable[Markup]) -> Markup:
    """Pieces of HTML one after the other."""
    return Markup("").join(pieces)


def markdown(text: str) -> Markup:
    """The little Markdown of our own texts as HTML: paragraphs, lists, tables, `code` and
    **bold**."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if lines[0].startswith("|"):
            cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
            blocks.append(parts.table(cells[0], cells[2:]))
        elif re.match(r"(- |\d+\. )", lines[0]):
            kind = "ul" if lines[0].startswith("- ") else "ol"
            items = re.split(r"^(?:- |\d+\. )", block, flags=re.MULTILINE)[1:]
            blocks.append(parts.list([_inline(item.strip()) for item in items], kind))
        else:
            blocks.append(parts.paragraph(_inline(block)))
    return join(blocks)


def _inline(text: str) -> Markup:
    words = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", words))

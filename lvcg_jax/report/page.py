"""One self-contained HTML page for every report: style, sections, figures with captions, tables. No
network.

Light and dark follow the reader's setting, print is always light, and nothing is wider than a
phone: what cannot be narrower (a table) scrolls within itself. Colours are Okabe and Ito's, which
colour-blind readers can tell apart.
"""

import json
import re
from collections.abc import Iterable, Sequence
from html import escape

from data_prep.ecg import svg

NOT_FOR_DIAGNOSIS = "Research figures, not for diagnosis."
STYLE = f"""{svg.STYLE}
* {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; }}
body {{ margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; overflow-wrap: break-word; }}
h1, h2, h3 {{ font-family: "Iowan Old Style", "Palatino Linotype", Palatino, Charter, Georgia, serif; font-weight: 600;
  line-height: 1.2; }}
h1 {{ font-size: 1.9rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.35rem; margin: 2.6rem 0 .6rem; padding-top: .7rem; border-top: 2px solid var(--ink); }}
h3 {{ font-size: 1.05rem; margin: 1.6rem 0 .4rem; }}
p {{ margin: .35rem 0; max-width: 46rem; }} ul, ol {{ margin: .35rem 0; padding-left: 1.3rem; max-width: 46rem; }}
.soft, figcaption {{ color: var(--soft); font-size: .875rem; }}
.note {{ border-left: 4px solid var(--s1); padding-left: .7rem; }}
code {{ font: .82em ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }}
nav {{ margin: .9rem 0 0; display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; font-size: .9rem; }}
nav a {{ color: var(--s0); text-decoration: none; padding: .3rem 0; }} nav a:hover {{ text-decoration: underline; }}
dl.facts {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .2rem 1.5rem;
  margin: 1.1rem 0 .5rem; padding: .7rem 0; border: solid var(--rule); border-width: 1px 0; }}
dl.facts div {{ padding: .25rem 0; }} dt {{ color: var(--soft); font-size: .8rem; }}
dd {{ margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }}
dd small {{ font-size: .8rem; color: var(--soft); }}
figure {{ margin: 1rem 0 1.4rem; break-inside: avoid; min-width: 0; }} figcaption {{ margin-top: .45rem; }}
.made {{ display: block; }} svg {{ display: block; width: 100%; height: auto; }}
.grid {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: .8rem 1.6rem; }}
.grid figure {{ margin: .3rem 0; }} .grid svg {{ max-width: 28rem; }}
.scroll {{ overflow-x: auto; max-width: 100%; }}
table {{ border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .3rem 1.1rem .3rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }}
th {{ font-weight: 600; border-bottom-color: var(--grey); }} td.number {{ white-space: nowrap; }}
details {{ margin: .7rem 0; }} summary {{ cursor: pointer; color: var(--s0); padding: .3rem 0; }}
button, select {{ font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--grey);
  border-radius: 6px; padding: .35rem .7rem; min-height: 2.5rem; max-width: 100%; }} button {{ cursor: pointer; }}
.bar {{ display: flex; flex-wrap: wrap; gap: .5rem; margin: .5rem 0; align-items: center; }}
.key {{ display: inline-block; width: 1.5em; height: .28em; vertical-align: middle; margin: 0 .4em 0 0; }}
.keys {{ display: flex; flex-wrap: wrap; gap: 0 1.1rem; max-width: none; }}
footer {{ margin-top: 3rem; padding-top: .7rem; border-top: 1px solid var(--rule); color: var(--soft);
  font-size: .875rem; }}
svg.ecg.narrow {{ display: none; }}
@media screen and (max-width: 40rem) {{ svg.ecg.wide {{ display: none; }} svg.ecg.narrow {{ display: block; }} }}
@media print {{ svg.ecg.wide {{ width: 265mm; max-width: 100%; }} }}
@media (max-width: 40rem) {{ body {{ padding: 1rem 1rem 2rem; }} h1 {{ font-size: 1.5rem; }}
  dl.facts {{ grid-template-columns: 1fr 1fr; }} }}
@page {{ size: A4 landscape; margin: 9mm 11mm; }}
@media print {{ body {{ max-width: none; padding: 0; font-size: 9pt; }} nav, .bar, .screen {{ display: none; }}
  h1 {{ font-size: 14pt; margin: 0; }} p {{ margin: .2rem 0; }}
  h2 {{ font-size: 13pt; margin-top: .9rem; padding-top: .4rem; break-after: avoid; }}
  h3 {{ break-after: avoid; }} p, ul, ol {{ max-width: none; }} .soft, figcaption, dt {{ font-size: 8pt; }}
  dl.facts {{ grid-template-columns: repeat(auto-fit, minmax(24mm, 1fr)); margin: .3rem 0; padding: .2rem 0;
    gap: 0 .8rem; }} dd {{ font-size: 11pt; line-height: 1.25; }} dd small {{ font-size: 8pt; }}
  figure {{ margin: .5rem 0; }} figure:has(.grid) {{ break-inside: auto; }} .grid > div {{ break-inside: avoid; }}
  figcaption, .keys {{ margin-top: .15rem; break-before: avoid; }} .scroll {{ overflow: visible; }}
  th, td {{ padding: .12rem .9rem .12rem 0; font-size: 8pt; }} tr {{ break-inside: avoid; }}
  details:not([open]) {{ display: none; }} footer {{ margin-top: 1rem; font-size: 8pt; break-inside: avoid; }} }}
"""


def document(
    title: str,
    body: str,
    styles: Iterable[str] = (),
    scripts: Iterable[str] = (),
    subtitle: str = "",
) -> str:
    """The whole page; every script runs in its own scope after the body, once."""
    css = "".join((STYLE, *dict.fromkeys(styles)))
    code = "".join(
        f"<script>(() => {{\n{script}\n}})();</script>\n" for script in dict.fromkeys(scripts)
    )
    under = f'<p class="soft">{escape(subtitle)}</p>\n' if subtitle else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{css}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{under}</header>
{body}
{code}</body>
</html>
"""


def section(name: str, title: str, content: str) -> str:
    """A part of the page that the contents link to."""
    return f'<section id="{escape(name)}">\n<h2>{escape(title)}</h2>\n{content}\n</section>\n'


def contents(parts: Sequence[tuple[str, str]]) -> str:
    """Links to the sections (name, title)."""
    links = "".join(f'<a href="#{escape(name)}">{escape(title)}</a>\n' for name, title in parts)
    return f'<nav aria-label="contents">\n{links}</nav>\n'


def figure(drawing: str, caption: str, command: str, kind: str = "") -> str:
    """A drawing with its caption, which names the command that made what it shows."""
    extra = f' class="{kind}"' if kind else ""
    made = f'<span class="made">Made by <code>{escape(command)}</code></span>'
    return f"<figure{extra}>\n{drawing}\n<figcaption>{escape(caption)} {made}</figcaption>\n</figure>\n"


def keys(colours: Iterable[tuple[str, str]]) -> str:
    """What the colours of a drawing mean: (name of a colour of the page, words)."""
    cells = (
        f'<span><span class="key" style="background: {name}"></span>{escape(words)}</span>'
        for name, words in colours
    )
    return f'<p class="soft keys">{" ".join(cells)}</p>\n'


def grid(drawings: Iterable[str]) -> str:
    """Small drawings side by side, as many as fit."""
    return (
        '<div class="grid">\n'
        + "\n".join(f"<div>{drawing.__html__()}</div>" for drawing in drawings)
        + "\n</div>"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Key numbers (name, value) at a glance; a unit after a no-break space is set smaller."""
    cells = []
    for name, value in pairs:
        number, gap, unit = escape(value).partition("\u00a0")
        cells.append(
            f"<div><dt>{escape(name)}</dt><dd>{number}{f'{gap}<small>{unit}</small>' if gap else ''}</dd></div>"
        )
    return f'<dl class="facts">\n{chr(10).join(cells)}\n</dl>\n'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls within itself where it is too wide; cells that begin with a digit or
    sign do not wrap."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>\n" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>\n" if any(columns) else ""
    return f'<div class="scroll" tabindex="0"><table>{top}<tbody>\n{body}</tbody></table></div>\n'


def _cell(value: str) -> str:
    number = ' class="number"' if re.match(r"[-+]?\d", value) else ""
    return f"<td{number}>{escape(value)}</td>"


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'


def folded(title: str, content: str) -> str:
    """Details that open on a click."""
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>\n"


def data_block(name: str, values: object) -> str:
    """Plain data for a script of the page, as compact JSON that cannot end its own element."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return f'<script type="application/json" id="{name}">{text.replace("<", chr(92) + "u003c")}</script>\n'


def markdown(text: str) -> str:
    """The little Markdown of our own texts as HTML: paragraphs, lists, tables, `code` and
    **bold**."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if lines[0].startswith("|"):
            cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
            blocks.append(table(cells[0], cells[2:]))
        elif re.match(r"(- |\d+\. )", lines[0]):
            kind = "ul" if lines[0].startswith("- ") else "ol"
            items = re.split(r"^(?:- |\d+\. )", block, flags=re.MULTILINE)[1:]
            blocks.append(
                f"<{kind}>"
                + "".join(f"<li>{_inline(item.strip())}</li>" for item in items)
                + f"</{kind}>"
            )
        else:
            blocks.append(f"<p>{_inline(block)}</p>")
    return "\n".join(blocks) + "\n"


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)

"""Hooks of the site's build, named in .mkdocs.yml."""

from pathlib import Path


def on_page_markdown(markdown: str, **_) -> str:
    """Tables within <details> are Markdown too, as elsewhere."""
    return markdown.replace("<details>", '<details markdown="1">')


def on_config(config):
    """The menu without pages that are not there (results are written by a command, and may not be
    yet), and with pages that it does not name at the end."""
    there = {path.name for path in Path(config.docs_dir).glob("*.md")}
    named: set[str] = set()
    config.nav = _keep(config.nav, there, named)
    config.nav += sorted(there - named)
    return config


def _keep(entries: list, there: set[str], named: set[str]) -> list:
    """Entries {title: page} and {title: entries} whose pages are there; `named` hears of each
    page."""
    kept = []
    for entry in entries:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            target = _keep(target, there, named)
        elif target in there:
            named.add(target)
        else:
            continue
        if target:
            kept.append({title: target})
    return kept

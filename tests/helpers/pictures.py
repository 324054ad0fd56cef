"""Reading the SVG files that commands write."""

import xml.etree.ElementTree as ET
from pathlib import Path

NAME = "{http://www.w3.org/2000/svg}"


def read_picture(path) -> ET.Element:
    """The root of an SVG file that stands alone: valid XML with a size, its own style, a background
    and a title, and nothing that is fetched or run."""
    text = Path(path).read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert root.tag == f"{NAME}svg" and {"width", "height", "viewBox"} <= set(root.keys())
    assert "prefers-color-scheme: dark" in root.find(f"{NAME}style").text
    assert root.find(f"{NAME}title").text and root.find(f"{NAME}rect").get("fill")
    assert "<script" not in text and "url(" not in text and text.count("://") == 1  # the namespace
    return root


def of_class(root: ET.Element, kind: str) -> list[ET.Element]:
    """Elements that have all these classes."""
    wanted = set(kind.split())
    return [e for e in root.iter() if wanted <= set(e.get("class", "").split())]


def words_of(root: ET.Element) -> str:
    """All text that is drawn, one line for each piece."""
    return "\n".join(e.text or "" for e in root.iter(f"{NAME}text"))

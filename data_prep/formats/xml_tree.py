"""XML files of strangers: bounded in size, without entities, elements by their plain names."""

import base64
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError

from data_prep.base.errors import InputError
from data_prep.base.words import first_line
from data_prep.formats.content import read_whole


def read_xml(path: str, record_id: str) -> Element:
    """The root of an XML file, its tags and those below without namespaces. Nothing that the file
    refers to is opened, and a file that declares entities is refused."""
    name = Path(path).name
    try:
        from defusedxml import DefusedXmlException, ElementTree
    except ImportError:
        raise InputError(
            f"record {record_id}: {name}: XML needs `pip install lvcg-jax[formats]`"
        ) from None
    try:
        root = ElementTree.fromstring(read_whole(path, record_id))
    except DefusedXmlException:
        raise InputError(
            f"record {record_id}: {name} declares XML entities, which no ECG needs: refused"
        ) from None
    except ParseError as error:
        raise InputError(
            f"record {record_id}: {name} is no whole XML file ({first_line(error, 80)}):"
            " export it again"
        ) from None
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def text_at(element: Element, path: str) -> str:
    """The text of the first element at a path below `element`, or ''."""
    return (element.findtext(path) or "").strip()


def base64_bytes(text: str | None) -> bytes:
    """Base64 text, with line breaks, as bytes; a ValueError if it is something else."""
    return base64.b64decode("".join((text or "").split()), validate=True)

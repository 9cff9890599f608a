"""From the bytes of a file to its title and text. Whatever is wrong with them is one line, and never an exception."""

import io
import logging
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Protocol

from worker.errors import PagemillError
from worker.extras import import_extra

MAX_TITLE_CHARACTERS = 200
CHARSET_BYTES = 2_048  # of an HTML file, in which it has to name its encoding

_CHARSET = re.compile(rb"<meta[^>]+charset\s*=\s*[\"']?([A-Za-z0-9_.:-]+)", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>(.*?)</title\s*>", re.IGNORECASE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", re.MULTILINE)
_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


class Format(StrEnum):
    """What a document was."""

    TEXT = "txt"
    MARKDOWN = "md"
    HTML = "html"
    PDF = "pdf"
    ROW = "row"  # of a query


FORMATS = {
    ".txt": Format.TEXT,
    ".text": Format.TEXT,
    ".md": Format.MARKDOWN,
    ".markdown": Format.MARKDOWN,
    ".html": Format.HTML,
    ".htm": Format.HTML,
    ".xhtml": Format.HTML,
    ".pdf": Format.PDF,
}


class UnreadableDocument(PagemillError):
    """A document that has no text to index; says why."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document's text. Newlines are \\n alone; nothing else of it is changed."""

    title: str
    text: str


class MarkupParser(Protocol):
    """What parses pdf and html; see `parse_markup`."""

    def parse(self, data: bytes, form: Format, encoding: str) -> tuple[str, str]: ...


def read_document(data: bytes, form: Format, name: str, encoding: str, parser: MarkupParser) -> Document:
    """Return the document in `data`. `name` is its title where it has none; `encoding` is that of text.

    Raises UnreadableDocument for what cannot be decoded or parsed, is encrypted, or holds no text.
    """
    if form in (Format.PDF, Format.HTML):
        title, text = parser.parse(data, form, encoding)
    else:
        text = _decode(data, encoding)
        heading = _HEADING.search(text) if form is Format.MARKDOWN else None
        title = heading[1] if heading else ""
    return Document(_short(title) or PurePath(name).stem, checked_text(text))


def parse_markup(data: bytes, form: Format, encoding: str) -> tuple[str, str]:
    """Return the title, which may be empty, and the text of a pdf or html file. Raises as `read_document`."""
    return _read_pdf(data) if form is Format.PDF else _read_html(data, encoding)


def checked_text(text: str) -> str:
    """Return a document's text with newlines as \\n alone. Raises UnreadableDocument for what SQL cannot hold."""
    if not text.strip():
        raise UnreadableDocument("is empty: it holds no text but white space")
    if "\x00" in text:
        raise UnreadableDocument(f"holds a NUL character at position {text.index(chr(0))}, which SQL text cannot store")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnreadableDocument(f"holds a lone surrogate at position {error.start}; it is not valid Unicode") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _short(title: str) -> str:
    """Return a title on one line, of bounded length; what cannot be stored is left out."""
    printable = "".join(character if character.isprintable() else " " for character in title)
    return " ".join(printable.split())[:MAX_TITLE_CHARACTERS]


def _decode(data: bytes, encoding: str) -> str:
    for mark, marked in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            encoding = marked
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        where = f"byte {data[error.start]:#04x} at position {error.start}"
        raise UnreadableDocument(f"is not {encoding}: {where}; name its encoding with --encoding") from None
    except LookupError:
        raise UnreadableDocument(f"names the encoding {encoding!r}, which does not exist") from None


def _read_html(data: bytes, encoding: str) -> tuple[str, str]:
    """Return the title and the text that a reader sees: no scripts, no styles."""
    named = _CHARSET.search(data[:CHARSET_BYTES])
    source = _decode(data, named[1].decode("ascii") if named else encoding)
    html = import_extra("lxml.html", "reading HTML", extra="rag")
    inscriptis = import_extra("inscriptis", "reading HTML", extra="rag")
    try:
        # As bytes: lxml refuses text that has an encoding declaration of its own.
        tree = html.fromstring(source.encode(), parser=html.HTMLParser(encoding="utf-8"))
        text: str = inscriptis.Inscriptis(tree).get_text()
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # of several packages and classes: whatever they make of what is no HTML
        raise UnreadableDocument(f"cannot be read as HTML: {_first_line(error)}") from None
    title = _TITLE.search(source)
    plain = html.fromstring(f"<p>{title[1]}</p>").text_content() if title and title[1].strip() else ""
    return plain, text


def _read_pdf(data: bytes) -> tuple[str, str]:
    pypdf = import_extra("pypdf", "reading PDF", extra="rag")
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it tells of every small fault that it gets over
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        is_locked = reader.is_encrypted and not reader.decrypt("")
        pages = [] if is_locked else [page.extract_text() for page in reader.pages]
        title = "" if is_locked else _pdf_title(reader)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # of many classes: a broken PDF breaks whatever reads it first
        raise UnreadableDocument(f"cannot be read as PDF: {_first_line(error)}") from None
    if is_locked:
        raise UnreadableDocument("is an encrypted PDF: it needs a password")
    text = "\n\n".join(pages)
    if not text.strip():
        raise UnreadableDocument(f"is a PDF of {len(pages)} pages without text: scanned pages need OCR first")
    # A font without a map to Unicode gives characters that are none.
    return title, text.replace("\x00", "").encode("utf-8", "replace").decode()


def _pdf_title(reader: Any) -> str:
    metadata = reader.metadata
    title = metadata.title if metadata is not None else None
    return title if isinstance(title, str) else ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

"""Reading a folder: what becomes text, and what is refused with its reason."""

import io
import os
from pathlib import Path

import pypdf
import pytest

from worker.errors import PagemillError
from worker.rag.folder import FolderSource
from worker.rag.reading import Document, UnreadableDocument

PAGE = b"BT /F1 12 Tf 20 100 Td (Bees on paper.) Tj ET"
PDF_OBJECTS = (
    b"<</Type /Catalog /Pages 2 0 R>>",
    b"<</Type /Pages /Kids [3 0 R] /Count 1>>",
    b"<</Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R /Resources <</Font <</F1 5 0 R>>>>>>",
    b"<</Length %d>> stream\n%s\nendstream" % (len(PAGE), PAGE),
    b"<</Type /Font /Subtype /Type1 /BaseFont /Helvetica>>",
)
HTML = """<!doctype html><html><head><title>Bees &amp; more</title><style>p {color: red}</style></head>
<body><script>alert("never")</script><h1>Bees</h1><p>They <b>fl</b>y.</p><p>&lt;b&gt;</p></body></html>"""


def read(folder: Path, source: FolderSource | None = None) -> dict[str, Document | str]:
    """Return the document, or the reason why there is none, of each file."""
    found: dict[str, Document | str] = {}
    for item in (source or FolderSource(folder)).items():
        try:
            found[item.source] = item.read()
        except UnreadableDocument as error:
            found[item.source] = str(error)
    return found


def text_of(found: dict[str, Document | str], name: str) -> str:
    document = found[name]
    assert isinstance(document, Document)
    return document.text


def test_each_format_gives_its_text_and_title(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo")
    (tmp_path / "deep" / "b.md").write_text("Intro\n\n## The title ##\ntext")
    (tmp_path / "deep" / "er" / "c.HTML").write_text(HTML)
    (tmp_path / "d.htm").write_bytes('<meta charset="latin-1"><p>caf\u00e9'.encode("latin-1"))
    (tmp_path / "e.pdf").write_bytes(one_page())
    (tmp_path / "f.txt").write_bytes("caf\u00e9".encode("utf-16"))
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / "image.png").write_text("no")
    found = read(tmp_path)
    assert list(found) == ["a.txt", "d.htm", "e.pdf", "f.txt", "deep/b.md", "deep/er/c.HTML"]
    assert found["a.txt"] == Document("a", "one\ntwo")
    assert found["deep/b.md"] == Document("The title", "Intro\n\n## The title ##\ntext")
    html = found["deep/er/c.HTML"]
    assert isinstance(html, Document)
    assert html.title == "Bees & more"
    assert "They fly." in html.text
    assert "<b>" in html.text
    assert "alert" not in html.text
    assert "color" not in html.text
    assert "caf\u00e9" in text_of(found, "d.htm")
    assert text_of(found, "e.pdf").strip() == "Bees on paper."
    assert text_of(found, "f.txt") == "caf\u00e9"


def test_what_cannot_be_read_says_why_and_harms_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "good.txt").write_text("good")
    (folder / "empty.txt").write_text(" \n\t")
    (folder / "latin.txt").write_bytes(b"caf\xe9 au lait")
    (folder / "nul.txt").write_bytes(b"a\x00b")
    (folder / "wrong.html").write_bytes(b'<meta charset="no-such"><p>x')
    (folder / "scripts.html").write_text("<script>only()</script>")
    (folder / "broken.pdf").write_bytes(one_page()[:120])
    (folder / "locked.pdf").write_bytes(locked_pdf())
    (folder / "large.txt").write_bytes(b"x" * 2001)
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "gone.txt").symlink_to(folder / "nowhere")
    (folder / "within.txt").symlink_to(folder / "good.txt")
    (folder / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.txt")
    source = FolderSource(folder, max_file_bytes=2000)
    found = read(folder, source)
    assert text_of(found, "good.txt") == text_of(found, "within.txt") == "good"
    reasons = {name: reason for name, reason in found.items() if isinstance(reason, str)}
    assert reasons.pop("broken.pdf").startswith("cannot be read as PDF: ")
    assert reasons == {
        "empty.txt": "is empty: it holds no text but white space",
        "gone.txt": "cannot be read: No such file or directory",
        "large.txt": "has 2001 bytes; at most 2000 are read (--max-file-size raises that)",
        "latin.txt": "is not utf-8: byte 0xe9 at position 3; name its encoding with --encoding",
        "locked.pdf": "is an encrypted PDF: it needs a password",
        "nul.txt": "holds a NUL character at position 1, which SQL text cannot store",
        "out.txt": "is a link that leads out of the folder",
        "pipe.txt": "is not a regular file",
        "scripts.html": "is empty: it holds no text but white space",
        "wrong.html": "names the encoding 'no-such', which does not exist",
    }
    assert source.skipped() == ("elsewhere is a link to a folder; links are not followed",)


def one_page() -> bytes:
    """Return a PDF of one page."""
    data, places = b"%PDF-1.4\n", []
    for number, content in enumerate(PDF_OBJECTS, start=1):
        places.append(len(data))
        data += b"%d 0 obj %s endobj\n" % (number, content)
    entries = b"".join(b"%010d 00000 n \n" % place for place in places)
    table = b"xref\n0 6\n0000000000 65535 f \n" + entries
    return data + table + b"trailer <</Root 1 0 R /Size 6>>\nstartxref\n%d\n%%%%EOF\n" % len(data)


def locked_pdf() -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(one_page()))
    writer.encrypt("password", algorithm="AES-256")
    data = io.BytesIO()
    writer.write(data)
    return data.getvalue()


def test_encoding_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert read(tmp_path, FolderSource(tmp_path, encoding="latin-1"))["a.txt"] == Document("a", "caf\u00e9")


def test_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PagemillError, match=r"^folder: .*nowhere is not a folder$"):
        list(FolderSource(tmp_path / "nowhere").items())

"""Rows of a query as documents, on both databases; whatever writes is refused."""

import pytest
from sqlalchemy import Engine, text

from worker.errors import PagemillError, ServiceUnavailable
from worker.rag.reading import UnreadableDocument
from worker.rag.rows import QuerySource, checked_query
from worker.sql.database import reading, writing


@pytest.fixture
def articles_url(database: Engine, database_url: str) -> str:
    """A database with a table of articles."""
    with writing(database) as connection:
        connection.execute(text("DROP TABLE IF EXISTS articles"))
        connection.execute(text("CREATE TABLE articles (id INTEGER, body TEXT, title TEXT)"))
        for row in ((1, "One.", "First"), (2, None, None), (3, " ", None), (4, "x" * 101, None)):
            statement = text("INSERT INTO articles VALUES (:id, :body, :title)")
            connection.execute(statement, dict(zip(("id", "body", "title"), row, strict=True)))
    return database_url


def num_articles(database: Engine) -> int:
    with reading(database) as connection:
        return int(connection.scalar(text("SELECT count(*) FROM articles")) or 0)


def test_rows_are_documents(articles_url: str) -> None:
    query = "-- all of them\nSELECT id, body, title FROM articles ORDER BY id;\n"
    found: dict[str, object] = {}
    for item in QuerySource(query, articles_url, max_row_bytes=100).items():
        try:
            found[item.source] = item.read()
        except UnreadableDocument as error:
            found[item.source] = str(error)
    first = found.pop("1")
    assert (getattr(first, "title", None), getattr(first, "text", None)) == ("First", "One.")
    assert found == {
        "2": "its text is NULL",
        "3": "is empty: it holds no text but white space",
        "4": "has 101 bytes; at most 100 are read (--max-file-size raises that)",
    }


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM articles",
        "/* SELECT */ UPDATE articles SET body = 'x'",
        "SELECT id, body FROM articles; DELETE FROM articles",
        "",
        "PRAGMA query_only=OFF",
    ],
)
def test_query_that_does_not_only_read_is_refused(articles_url: str, database: Engine, query: str) -> None:
    with pytest.raises(PagemillError, match=r"^sql: "):
        list(QuerySource(query, articles_url).items())
    assert num_articles(database) == 4


def test_database_refuses_what_writes_behind_a_query_that_seems_to_read(articles_url: str, database: Engine) -> None:
    if articles_url.startswith("sqlite"):
        query = "WITH x AS (SELECT 1) INSERT INTO articles SELECT 9, 'x', 'y' FROM x"
    else:
        query = "WITH gone AS (DELETE FROM articles RETURNING id, body) SELECT * FROM gone"
    with pytest.raises(PagemillError, match=r"^sql: .* refuses the query: "):
        list(QuerySource(query, articles_url).items())
    assert num_articles(database) == 4


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT id FROM articles", "the query has 1 columns"),
        ("SELECT 7, body FROM articles", "the id '7' was there before; ids must be unique"),
        ("SELECT id, nothing FROM articles", "refuses the query: "),
    ],
)
def test_query_that_gives_no_documents_is_refused(articles_url: str, query: str, message: str) -> None:
    with pytest.raises(PagemillError, match=message):
        list(QuerySource(query, articles_url).items())


def test_semicolon_at_the_end_is_no_second_statement() -> None:
    assert checked_query(" SELECT 1, 'a' ; ") == "SELECT 1, 'a'"


def test_database_that_is_not_there_is_not_made(tmp_path: object) -> None:
    with pytest.raises(PagemillError, match=r"^sql_url: there is no file "):
        list(QuerySource("SELECT 1, 'a'", f"sqlite:///{tmp_path}/none.db").items())
    with pytest.raises(ServiceUnavailable, match=r"cannot read from postgresql://me@127\.0\.0\.1:1/x: ") as caught:
        list(QuerySource("SELECT 1, 'a'", "postgresql://me:secret@127.0.0.1:1/x").items())
    assert "secret" not in str(caught.value)

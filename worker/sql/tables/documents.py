"""Collections of documents, their chunks, and the summaries made of them.

A document's text is that of its chunks, each without what it repeats of the one before. Every time is UTC.
"""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import ForeignKey, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from worker.sql.tables.base import AutoId, Base, text_enum


class SummaryState(StrEnum):
    """How far a summary is. PENDING: its jobs have not all ended, or are not all submitted."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


class CollectionRow(Base):
    """Documents that are searched and summarised together."""

    __tablename__ = "collections"

    id: Mapped[AutoId]
    name: Mapped[str] = mapped_column(unique=True)
    key: Mapped[str] = mapped_column(unique=True)  # random: names its files on any machine, whatever database it is in
    source_kind: Mapped[str]  # folder or sql
    source: Mapped[str]  # the folder's path, or the query
    model: Mapped[str]  # whose tokenizer split the documents
    tokenizer_hash: Mapped[str]
    chunk_tokens: Mapped[int]  # most tokens of a chunk
    overlap_tokens: Mapped[int]  # most tokens that a chunk repeats of the one before
    revision: Mapped[int]  # rises with every change of its chunks
    created_at: Mapped[datetime]
    indexed_at: Mapped[datetime]  # when its source was last read to the end
    source_options: Mapped[str | None]  # JSON: how its source is read; None where an earlier version indexed it


class DocumentRow(Base):
    """One file, or one row of a query."""

    __tablename__ = "documents"
    __table_args__ = (UniqueConstraint("collection_id", "source"),)

    id: Mapped[AutoId]
    collection_id: Mapped[int] = mapped_column(ForeignKey("collections.id", ondelete="CASCADE"))
    source: Mapped[str]  # the path below the folder, or the row's id
    title: Mapped[str]
    format: Mapped[str]  # txt, md, html, pdf or row
    source_hash: Mapped[str | None]  # SHA-256 of what was read, so that it is not parsed again; None: never readable
    content_hash: Mapped[str | None]  # SHA-256 of the text; None where it never had any
    num_characters: Mapped[int]
    num_tokens: Mapped[int]
    problem: Mapped[str | None]  # why it could not be read the last time; the text is that of the time before
    changed_at: Mapped[datetime]  # when its text was last found to be another
    deleted_at: Mapped[datetime | None]  # when it was first missing in its source


class ChunkRow(Base):
    """A part of a document, as it is found and quoted. The first characters of it may repeat the chunk before."""

    __tablename__ = "chunks"
    __table_args__ = (UniqueConstraint("document_id", "position"),)

    id: Mapped[AutoId]
    document_id: Mapped[int] = mapped_column(ForeignKey("documents.id", ondelete="CASCADE"))
    position: Mapped[int]  # from 0
    start: Mapped[int]  # characters before it in the document
    text: Mapped[str]
    num_tokens: Mapped[int]
    overlap_characters: Mapped[int]
    overlap_tokens: Mapped[int]


class SummaryRow(Base):
    """A summary of one version of a document by one prompt and one model. Older versions' summaries stay."""

    __tablename__ = "summaries"
    __table_args__ = (
        UniqueConstraint("document_id", "content_hash", "prompt_hash", "model_hash"),
        Index(None, "state"),
    )

    id: Mapped[AutoId]
    document_id: Mapped[int] = mapped_column(ForeignKey("documents.id", ondelete="CASCADE"))
    content_hash: Mapped[str]  # of the text that was summarised
    prompt_hash: Mapped[str]
    model_hash: Mapped[str]
    prompt: Mapped[str]  # JSON: instructions, parameters and the version of the template
    model: Mapped[str]
    state: Mapped[SummaryState] = mapped_column(text_enum(SummaryState))
    attempt_count: Mapped[int]  # times that its jobs were submitted anew
    batch_id: Mapped[str]
    job_id: Mapped[str]  # the job whose output is the summary
    num_jobs: Mapped[int]  # 1, or all of map and reduce
    text: Mapped[str | None]
    completion_tokens: Mapped[int | None]
    finish_reason: Mapped[str | None]
    error_message: Mapped[str | None]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class SummaryJobRow(Base):
    """A job that a summary is made with. Its row in `jobs` may have been purged."""

    __tablename__ = "summary_jobs"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    summary_id: Mapped[int] = mapped_column(ForeignKey("summaries.id", ondelete="CASCADE"), index=True)
    level: Mapped[int]  # 0 reads the document; each higher one reads the outputs of the one below
    position: Mapped[int]  # from 0, within its level

"""Collections of documents, their chunks and summaries."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

SUMMARY_STATES = ("pending", "done", "failed")


def upgrade() -> None:
    auto_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "collections",
        sa.Column("id", auto_id, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("source_kind", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("tokenizer_hash", sa.Text(), nullable=False),
        sa.Column("chunk_tokens", sa.BigInteger(), nullable=False),
        sa.Column("overlap_tokens", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("indexed_at", moment, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_collections")),
        sa.UniqueConstraint("name", name=op.f("uq_collections_name")),
        sa.UniqueConstraint("key", name=op.f("uq_collections_key")),
    )
    op.create_table(
        "documents",
        sa.Column("id", auto_id, nullable=False),
        sa.Column("collection_id", auto_id, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("source_hash", sa.Text(), nullable=True),
        sa.Column("content_hash", sa.Text(), nullable=True),
        sa.Column("num_characters", sa.BigInteger(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("changed_at", moment, nullable=False),
        sa.Column("deleted_at", moment, nullable=True),
        sa.ForeignKeyConstraint(
            ["collection_id"],
            ["collections.id"],
            name=op.f("fk_documents_collection_id_collections"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_documents")),
        sa.UniqueConstraint("collection_id", "source", name=op.f("uq_documents_collection_id_source")),
    )
    op.create_table(
        "chunks",
        sa.Column("id", auto_id, nullable=False),
        sa.Column("document_id", auto_id, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("overlap_characters", sa.BigInteger(), nullable=False),
        sa.Column("overlap_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["document_id"], ["documents.id"], name=op.f("fk_chunks_document_id_documents"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_chunks")),
        sa.UniqueConstraint("document_id", "position", name=op.f("uq_chunks_document_id_position")),
    )
    op.create_table(
        "summaries",
        sa.Column("id", auto_id, nullable=False),
        sa.Column("document_id", auto_id, nullable=False),
        sa.Column("content_hash", sa.Text(), nullable=False),
        sa.Column("prompt_hash", sa.Text(), nullable=False),
        sa.Column("model_hash", sa.Text(), nullable=False),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column(
            "state",
            sa.Enum(*SUMMARY_STATES, name="state", native_enum=False, create_constraint=True, length=16),
            nullable=False,
        ),
        sa.Column("attempt_count", sa.BigInteger(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("num_jobs", sa.BigInteger(), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("ended_at", moment, nullable=True),
        sa.ForeignKeyConstraint(
            ["document_id"], ["documents.id"], name=op.f("fk_summaries_document_id_documents"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_summaries")),
        sa.UniqueConstraint(
            "document_id",
            "content_hash",
            "prompt_hash",
            "model_hash",
            name=op.f("uq_summaries_document_id_content_hash_prompt_hash_model_hash"),
        ),
    )
    op.create_index(op.f("ix_summaries_state"), "summaries", ["state"])
    op.create_table(
        "summary_jobs",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("summary_id", auto_id, nullable=False),
        sa.Column("level", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["summary_id"], ["summaries.id"], name=op.f("fk_summary_jobs_summary_id_summaries"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_summary_jobs")),
    )
    op.create_index(op.f("ix_summary_jobs_summary_id"), "summary_jobs", ["summary_id"])


def downgrade() -> None:
    for name in ("summary_jobs", "summaries", "chunks", "documents", "collections"):
        op.drop_table(name)

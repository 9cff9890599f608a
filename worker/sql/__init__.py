"""The database: tables, what is written to them and what is read from them, the same on SQLite and PostgreSQL."""

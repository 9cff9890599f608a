"""Documents: indexed into SQL, searched, asked and summarised. Nothing here imports torch."""

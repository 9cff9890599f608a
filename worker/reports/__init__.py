"""What `pagemill report` shows: tables with units, in every format, and the page with charts. The SQL is elsewhere."""

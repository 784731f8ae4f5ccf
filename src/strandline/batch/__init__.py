"""One batch of one node up to its judged change set. Asks an engine, writes to no table."""

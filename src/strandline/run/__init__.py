"""The only place where effects are ordered: a batch is prepared, committed and recorded here."""

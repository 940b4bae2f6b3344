"""Steps that are computed with other engines: what is sent, awaited and merged."""

"""How KV is named: chained hashes of token prefixes, and the identity of a region."""

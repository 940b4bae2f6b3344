"""Links of a modelled cluster and the bytes on them: no engine, no core, no world."""

"""The papers' experiments again, in the twin: what they print beside what comes of it here."""

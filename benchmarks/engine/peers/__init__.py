"""The whole stack beside other servers of language models."""

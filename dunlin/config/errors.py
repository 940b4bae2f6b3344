"""What is wrong with settings."""


class ConfigError(ValueError):
    """Settings that cannot be taken; the text says which, where they were given and what would do."""

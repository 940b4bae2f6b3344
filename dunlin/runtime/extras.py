"""What to say where a package of an extra is not installed."""

# Elsewhere pip takes PyTorch's build for CUDA, several gigabytes that nothing here uses.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def missing_package_text(*packages: str | None, extra: str = "server") -> str:
    """What is missing, and the command that installs it."""
    names = ", ".join(str(name) for name in packages)
    return f"this installation lacks {names}: pip install 'dunlin[{extra}]' --extra-index-url {CPU_INDEX}"

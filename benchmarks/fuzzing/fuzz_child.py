"""One fuzzer on one parser: `python -m benchmarks.fuzzing.fuzz_child PARSER SECONDS FOLDER`. Ends the process by
itself."""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dunlin", "services", "benchmarks.fuzzing.parsers"]):
    from benchmarks.fuzzing.parsers import PARSERS


def main() -> None:
    """Write the seeds, then let libFuzzer go on from them."""
    name, seconds, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    corpus = folder / "corpus"
    corpus.mkdir()
    for index, seed in enumerate(PARSERS[name].seeds):
        (corpus / f"seed-{index}").write_bytes(seed)
    options = ["-rss_limit_mb=4096", "-max_len=4096", "-print_final_stats=1", f"-artifact_prefix={folder}/"]
    atheris.Setup([sys.argv[0], *options, f"-max_total_time={seconds}", str(corpus)], PARSERS[name].parse)
    atheris.Fuzz()


main()

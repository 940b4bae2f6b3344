"""vLLM's `LLM` as a process of its own, by an interpreter that has vLLM; `whole_stack` starts it.

    PYTHON vllm_offline.py CHECKPOINT VOCABULARY LONGEST

Answers each line `REQUESTS PROMPT OUTPUT` on its standard input with the seconds that so many requests of so many
prompt tokens (random ids) take for so many tokens each, all submitted at once, greedy, without text. Imports nothing of
dunlin's.
"""

import os
import random
import sys
import time
from typing import Any


def load(checkpoint: str, longest: int) -> Any:
    """bf16, at most 64 sequences, no prefix cache: prompts are random."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM  # type: ignore[import-not-found]  # the other interpreter's

    return LLM(
        checkpoint,
        dtype="bfloat16",
        max_num_seqs=64,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        max_model_len=longest,
    )


def seconds(engine: Any, vocabulary: int, requests: int, prompt: int, output: int) -> float:
    """Of one case."""
    from vllm import SamplingParams

    given = [{"prompt_token_ids": [random.randrange(vocabulary) for _ in range(prompt)]} for _ in range(requests)]
    sampling = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
    began = time.perf_counter()
    answers = engine.generate(given, sampling, use_tqdm=False)
    took = time.perf_counter() - began
    if any(len(answer.outputs[0].token_ids) != output for answer in answers):
        raise RuntimeError("vLLM ended some answers early")
    return took


def main() -> None:
    """The command."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no answer
    checkpoint, vocabulary, longest = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine = load(checkpoint, longest)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(seconds(engine, vocabulary, *map(int, line.split())), file=answers, flush=True)


if __name__ == "__main__":
    main()

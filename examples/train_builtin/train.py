"""The training: AdamW on packed texts, for a number of minutes, on the CPU in bfloat16."""

import json
import math
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

POSITIONS = 16384
LENGTH = 512
"""Tokens of a row; texts are packed, so rows hold several and the model learns to read over their bounds."""
ROWS = 4
PEAK = 3e-3
WARM_UP = 0.04
HELD_OUT = 0.01


def make_model(vocabulary: int, seed: int) -> LlamaForCausalLM:
    """Llama's shape with tied embeddings, about 4 million parameters."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def train(model: LlamaForCausalLM, stream: torch.Tensor, minutes: float, seed: int) -> dict[str, float]:
    """Train until the time is up; the figures of the run. The learning rate follows the clock, not the steps."""
    cut = int(len(stream) * (1 - HELD_OUT))
    rows, held_out = stream[:cut], stream[cut:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.05, fused=True)
    pick = torch.Generator().manual_seed(seed)
    began_s, steps, done = time.monotonic(), 0, 0.0
    while done < 1:
        done = min((time.monotonic() - began_s) / (60 * minutes), 1.0)
        rate = PEAK * (min(done / WARM_UP, 1.0) if done < WARM_UP else 0.5 + 0.5 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(rows) - LENGTH, (ROWS,), generator=pick)
        batch = torch.stack([rows[at : at + LENGTH] for at in starts.tolist()])
        loss = _loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps % 50 == 0:
            print(f"{done:4.0%}  step {steps}  loss {loss.item():.3f}", flush=True)
    model.eval()  # type: ignore[no-untyped-call]
    whole = held_out[: len(held_out) // LENGTH * LENGTH].view(-1, LENGTH)[:64]
    with torch.no_grad():
        measured = _loss(model, whole).item()
    return {"steps": steps, "tokens": steps * ROWS * LENGTH, "minutes": minutes, "held_out_loss": round(measured, 4)}


def _loss(model: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=batch).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def write_model(model: LlamaForCausalLM, folder: Path) -> None:
    """The checkpoint, in bfloat16."""
    model.bfloat16().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("transformers_version", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    written = {"eos_token_id": [2, 0], "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")

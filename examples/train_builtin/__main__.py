"""Make the model: text, tokenizer, training, checkpoint. Everything but the number of steps follows from the seed.

apt-get download wordnet-base && dpkg-deb --extract wordnet-base_*.deb extracted
python -m examples.train_builtin --wordnet extracted/usr/share/wordnet --out made --minutes 15 --texts 60000
python -m examples.train_builtin --wordnet extracted/usr/share/wordnet --out made --minutes 5 --texts 30000 \\
    --resume dialogs --seed 1
python -m examples.train_builtin --wordnet extracted/usr/share/wordnet --out made --minutes 9 --texts 30000 \\
    --resume tools --seed 2
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from examples.train_builtin.corpus import SHARES, TEMPLATE, documents
from examples.train_builtin.tokens import train_tokenizer, write_tokenizer
from examples.train_builtin.train import POSITIONS, make_model, train, write_model


def main() -> None:
    """Do it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=Path, required=True, help="the folder with data.noun and its like")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the checkpoint")
    parser.add_argument("--minutes", type=float, default=8, help="of training")
    parser.add_argument("--texts", type=int, default=40_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", choices=[*SHARES][1:], default="", help="train what is in --out further, on those")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = documents(arguments.wordnet, arguments.texts, arguments.seed, SHARES[arguments.resume or "all"])
    if arguments.resume:
        tokenizer = Tokenizer.from_file(str(arguments.out / "tokenizer.json"))
        model = LlamaForCausalLM.from_pretrained(arguments.out, dtype=torch.float32)
    else:
        tokenizer = train_tokenizer(texts[:20_000])
        arguments.out.mkdir(parents=True, exist_ok=True)
        write_tokenizer(tokenizer, TEMPLATE.read_text(encoding="utf-8"), POSITIONS, arguments.out)
        model = make_model(tokenizer.get_vocab_size(), arguments.seed)
    rows = tokenizer.encode_batch(["<|endoftext|>" + text for text in texts])
    stream = torch.tensor([token for row in rows for token in row.ids])
    print(f"{len(stream)} tokens, vocabulary {tokenizer.get_vocab_size()}", flush=True)
    print(f"{sum(one.numel() for one in model.parameters())} parameters", flush=True)
    print(json.dumps(train(model, stream, arguments.minutes, arguments.seed)))
    write_model(model, arguments.out)


if __name__ == "__main__":
    main()

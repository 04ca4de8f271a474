#!/usr/bin/env python3
"""Train the tokenizer and turn the corpus into arrays of token ids.

The corpus has one folder a domain with three files: train.txt, calib.txt and eval.txt. In train.txt the documents
are separated by a line that says <|endoftext|>. Written to the output folder: tokenizer.json, unless it is there
already (another corpus can then be cut with the same vocabulary), and for each domain three uint16 arrays,
DOMAIN.train.npy (each document preceded by the id of <|endoftext|>), DOMAIN.calib.npy and DOMAIN.eval.npy.
"""
import argparse
import os
import time

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

DOMAINS = ["english", "german", "spanish", "code", "math"]
END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = [END_OF_TEXT, "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 16384

# Characters of each domain that the vocabulary is learnt from.
TOKENIZER_SHARE = {"english": 26e6, "german": 17e6, "spanish": 17e6, "code": 22e6, "math": 10e6}

# Documents handed to the tokenizer at a time.
ENCODE_BATCH = 20000

# Qwen2's pre-tokenizer: contractions, words, single digits, punctuation, line ends, white space.
PRE_TOKENIZER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


def read_documents(path):
    """Return the documents of one training file, without the line ends around them."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return [document.strip("\n") for document in text.split("\n" + END_OF_TEXT + "\n")]


def characters(documents):
    """Return the number of characters in all documents."""
    return sum(map(len, documents))


def sample(train):
    """Yield documents of every domain in a fixed random order until the domain's share is reached."""
    generator = np.random.default_rng(7)
    for domain in DOMAINS:
        documents = train[domain]
        taken = 0
        for index in generator.permutation(len(documents)):
            yield documents[index]
            taken += len(documents[index])
            if taken > TOKENIZER_SHARE[domain]:
                break


def train_tokenizer(train, path):
    """Learn a byte-level BPE vocabulary from the sample and save it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PRE_TOKENIZER), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample(train), trainer)
    tokenizer.save(path)
    return tokenizer


def encode_training(tokenizer, documents):
    """Return the ids of all documents in one array, <|endoftext|> before each."""
    start = tokenizer.token_to_id(END_OF_TEXT)
    parts = []
    for first in range(0, len(documents), ENCODE_BATCH):
        batch = documents[first:first + ENCODE_BATCH]
        for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
            parts.append(np.array([start] + encoding.ids, dtype=np.uint16))
    return np.concatenate(parts)


def encode_held_out(tokenizer, path):
    """Return the ids of a held-out file, read as one text."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint16)


def encode_domain(tokenizer, documents, corpus, out, domain):
    """Write the three arrays of one domain and return their sizes for the log."""
    ids = encode_training(tokenizer, documents)
    np.save(f"{out}/{domain}.train.npy", ids)
    sizes = {"train": len(ids), "chars/token": round(characters(documents) / len(ids), 2)}
    for part in ("calib", "eval"):
        held_out = encode_held_out(tokenizer, f"{corpus}/{domain}/{part}.txt")
        np.save(f"{out}/{domain}.{part}.npy", held_out)
        sizes[part] = len(held_out)
    return sizes


def main():
    """Read the corpus, make or load the tokenizer, write the arrays."""
    parser = argparse.ArgumentParser(description="Train the tokenizer and turn the corpus into arrays of token ids.")
    parser.add_argument("corpus", help="folder with DOMAIN/train.txt, DOMAIN/calib.txt and DOMAIN/eval.txt")
    parser.add_argument("out", help="folder for tokenizer.json and the arrays")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)

    begin = time.time()
    train = {domain: read_documents(f"{options.corpus}/{domain}/train.txt") for domain in DOMAINS}
    sizes = {domain: characters(documents) for domain, documents in train.items()}
    print("read", sizes, f"{time.time() - begin:.0f} s", flush=True)

    tokenizer_path = f"{options.out}/tokenizer.json"
    if not os.path.exists(tokenizer_path):
        tokenizer = train_tokenizer(train, tokenizer_path)
        print("tokenizer", tokenizer.get_vocab_size(), f"{time.time() - begin:.0f} s", flush=True)
    tokenizer = Tokenizer.from_file(tokenizer_path)

    for domain in DOMAINS:
        sizes = encode_domain(tokenizer, train[domain], options.corpus, options.out, domain)
        print(domain, sizes, f"{time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Train a model of model.py on the arrays that prep.py wrote, for a given number of seconds.

One process drives one GPU; started by torchrun, several share the work. Each step takes random windows of n_ctx
tokens; a domain is drawn with a probability proportional to (its tokens) ** 0.75. AdamW with a linear warm-up of
300 steps and a cosine down to 2 % of the rate, measured on the clock: the run ends when its seconds are over.
At the end the weights are rounded to bfloat16, evaluated in float32 and written as a Qwen2ForCausalLM checkpoint.
"""
import argparse
import json
import math
import os
import shutil
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file

from model import CONFIGS, Model, checkpoint_config, checkpoint_name

DOMAINS = ["english", "german", "spanish", "code", "math"]
WARMUP_STEPS = 300
LAST_RATE = 0.02
FIRST_TIMED_STEP = 5  # compilation falls into the steps before


def parse_options():
    """Return the command's options."""
    parser = argparse.ArgumentParser(description="Train a model on the arrays that prep.py wrote.")
    parser.add_argument("name", choices=CONFIGS, help="which shape")
    parser.add_argument("data", help="folder that prep.py wrote")
    parser.add_argument("out", help="folder for the checkpoint")
    parser.add_argument("seconds", type=float, help="length of the run")
    parser.add_argument("batch", type=int, help="windows a step and a process")
    parser.add_argument("rate", type=float, help="learning rate after the warm-up")
    parser.add_argument("--dropout", type=float, default=0.0, help="residual dropout (default: 0)")
    parser.add_argument("--weight-decay", type=float, default=0.1, help="of the matrices (default: 0.1)")
    parser.add_argument("--gpu", type=int, default=0, help="which GPU, without torchrun (default: 0)")
    return parser.parse_args()


class Workers:
    """This process among those that torchrun started; alone without it."""

    def __init__(self, gpu):
        self.rank = int(os.environ.get("RANK", 0))
        self.count = int(os.environ.get("WORLD_SIZE", 1))
        self.device = int(os.environ.get("LOCAL_RANK", gpu))
        self.first = self.rank == 0
        torch.cuda.set_device(self.device)
        if self.count > 1:
            dist.init_process_group("nccl", device_id=torch.device("cuda", self.device))

    def share(self, net):
        """Return the net with its gradients averaged over the processes."""
        if self.count == 1:
            return net
        return torch.nn.parallel.DistributedDataParallel(
            net, device_ids=[self.device], gradient_as_bucket_view=True
        )

    def agree(self, value):
        """Give every process the first one's value, a tensor, so that all stop at the same step."""
        if self.count > 1:
            dist.broadcast(value, 0)
        return value.item()

    def close(self):
        """Leave the group."""
        if self.count > 1:
            dist.destroy_process_group()


class Batches:
    """Random windows of the training arrays."""

    def __init__(self, data, n_ctx, batch, rank):
        self.arrays = []
        for domain in DOMAINS:
            ids = np.load(f"{data}/{domain}.train.npy").astype(np.int16)  # ids are below 16384
            self.arrays.append(torch.from_numpy(ids).cuda())
        weights = torch.tensor([float(len(array)) ** 0.75 for array in self.arrays])
        self.weights = weights / weights.sum()
        self.batch = batch
        self.positions = torch.arange(n_ctx + 1, device="cuda")
        self.generator = torch.Generator(device="cuda").manual_seed(1000 + rank)
        self.domain_generator = torch.Generator().manual_seed(1000 + rank)

    def describe(self):
        """Return tokens and weights for the log."""
        tokens = [len(array) for array in self.arrays]
        return f"tokens {tokens} weights {[round(weight, 3) for weight in self.weights.tolist()]}"

    def next(self):
        """Return ids and targets, (batch, n_ctx) each."""
        domains = torch.multinomial(self.weights, self.batch, True, generator=self.domain_generator)
        counts = torch.bincount(domains, minlength=len(DOMAINS)).tolist()
        rows = []
        for array, count in zip(self.arrays, counts):
            if count == 0:
                continue
            last_start = len(array) - len(self.positions)
            starts = torch.randint(0, last_start, (count, 1), device="cuda", generator=self.generator)
            rows.append(array[starts + self.positions].long())
        windows = torch.cat(rows)
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def load_held_out(data):
    """Return the evaluation arrays on the GPU, by domain."""
    arrays = {}
    for domain in DOMAINS:
        ids = np.load(f"{data}/{domain}.eval.npy").astype(np.int64)
        arrays[domain] = torch.from_numpy(ids).cuda()
    return arrays


@torch.no_grad()
def evaluate(model, held_out, dtype=torch.bfloat16, window=512, most=64):
    """Return each domain's mean loss over the second half of its first windows."""
    losses = {}
    model.eval()
    for domain, array in held_out.items():
        count = min(most, (len(array) - 1) // window)
        ids = array[:count * window].view(count, window)
        targets = array[1:count * window + 1].view(count, window)
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            logits = model.logits(model.hidden(ids))
        second_half = logits[:, window // 2:].flatten(0, 1)
        losses[domain] = F.cross_entropy(second_half, targets[:, window // 2:].flatten()).item()
    model.train()
    return losses


def mean(losses):
    """Return the mean over the domains."""
    return sum(losses.values()) / len(losses)


def make_optimizer(model, rate, weight_decay):
    """Return AdamW that decays matrices, not norms and biases."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-9, fused=True)


def schedule(step, progress):
    """Return the factor of the learning rate: warm-up by steps, cosine by the share of time used."""
    warmup = min(1, (step + 1) / WARMUP_STEPS)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1, progress)))
    return warmup * (LAST_RATE + (1 - LAST_RATE) * cosine)


def train_step(net, model, optimizer, ids, targets):
    """Take one step and return the loss."""
    with torch.autocast("cuda", torch.bfloat16):
        loss = net(ids, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def train(options, model, batches, held_out, workers):
    """Train until the time is over; return the log and the tokens seen since the clock started."""
    optimizer = make_optimizer(model, options.rate, options.weight_decay)
    net = workers.share(torch.compile(model))
    tokens_a_step = len(batches.positions[:-1]) * options.batch * workers.count
    shared_progress = torch.zeros(1, device="cuda")
    begin = None
    step = 0
    tokens = 0
    logged = 0.0
    log = []
    while True:
        ids, targets = batches.next()
        if step == FIRST_TIMED_STEP:
            torch.cuda.synchronize()
            begin = time.time()
            tokens = 0
        if step % 10 == 0:
            shared_progress[0] = 0 if begin is None else (time.time() - begin) / options.seconds
            progress = workers.agree(shared_progress)
        if progress >= 1:
            return log, tokens
        for group in optimizer.param_groups:
            group["lr"] = options.rate * schedule(step, progress)
        loss = train_step(net, model, optimizer, ids, targets)
        step += 1
        tokens += tokens_a_step
        if workers.first and (progress - logged > 0.05 or step in (20, 200)):
            logged = progress
            losses = evaluate(model, held_out)
            line = {
                "step": step,
                "p": round(progress, 3),
                "loss": round(loss.item(), 4),
                "tok_s": round(tokens / max(1e-9, time.time() - begin)) if begin else 0,
                "tokens": tokens,
                "ev": {domain: round(value, 3) for domain, value in losses.items()},
                "mean": round(mean(losses), 4),
            }
            log.append(line)
            print(json.dumps(line), flush=True)


def write_json(path, value, indent=None):
    """Write one JSON file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=indent)


def round_weights(model):
    """Round every weight to the nearest bfloat16."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())


def save_checkpoint(model, config, data, out):
    """Write weights, configuration and tokenizer as a Qwen2ForCausalLM folder."""
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[checkpoint_name(name)] = parameter.detach().bfloat16().contiguous()
    save_file(tensors, f"{out}/model.safetensors", metadata={"format": "pt"})
    write_json(f"{out}/config.json", checkpoint_config(config), indent=2)
    write_json(f"{out}/generation_config.json", {"bos_token_id": 0, "eos_token_id": 0})
    shutil.copy(f"{data}/tokenizer.json", f"{out}/tokenizer.json")
    tokenizer_config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "model_max_length": config["n_ctx"],
        "clean_up_tokenization_spaces": False,
    }
    write_json(f"{out}/tokenizer_config.json", tokenizer_config, indent=1)


def main():
    """Train, evaluate, save."""
    options = parse_options()
    workers = Workers(options.gpu)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    config = CONFIGS[options.name]
    batches = Batches(options.data, config["n_ctx"], options.batch, workers.rank)
    held_out = load_held_out(options.data)
    if workers.first:
        print(batches.describe(), flush=True)
    model = Model(config, options.dropout).cuda()
    log, tokens = train(options, model, batches, held_out, workers)
    if workers.first:
        os.makedirs(options.out, exist_ok=True)
        round_weights(model)
        losses = evaluate(model, held_out, torch.float32)
        print("final, bfloat16 weights, float32 arithmetic", losses, mean(losses), "tokens", tokens, flush=True)
        save_checkpoint(model, config, options.data, options.out)
        report = {
            "log": log,
            "final": losses,
            "tokens": tokens,
            "seconds": options.seconds,
            "batch": options.batch * workers.count,
            "lr": options.rate,
        }
        write_json(f"{options.out}/training.json", report, indent=1)
    workers.close()


if __name__ == "__main__":
    main()

"""Train a DFlash drafter for a Llama- or Qwen3-shaped target: `python train.py TARGET OUT`, see README.md beside it.

The target writes the data; `speculators` has the drafter, its loss and its optimizer. The result is a checkpoint in
z-lab's layout, which vLLM reads: weights of 8 bits with a scale a row, or of bf16 with `--bf16`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from checkpoint import select_trained, write_checkpoint
from evaluation import evaluate
from sampling import Rows, sample_rows
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators.train.optimizers import build_optimizers
from target_states import TargetStates
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen3Config


def build_drafter(target: PreTrainedModel, folder: Path, options: argparse.Namespace) -> DFlashDraftModel:
    """Return a drafter of the target's width with random layers, the target's embedding and its head."""
    own = target.config
    layers = Qwen3Config(
        vocab_size=own.vocab_size, hidden_size=own.hidden_size, intermediate_size=own.intermediate_size,
        num_hidden_layers=options.layers, num_attention_heads=own.num_attention_heads,
        num_key_value_heads=own.num_key_value_heads, head_dim=own.head_dim,
        max_position_embeddings=own.max_position_embeddings, rms_norm_eps=own.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": own.rope_parameters["rope_theta"]},
        tie_word_embeddings=False, layer_types=["full_attention"] * options.layers, initializer_range=0.02,
    )  # fmt: skip
    layers._attn_implementation = options.attention  # noqa: SLF001
    proposal = GreedyTokenProposalConfig(speculative_tokens=options.block - 1)
    config = DFlashSpeculatorConfig(
        transformer_layer_config=layers,
        draft_vocab_size=own.vocab_size,
        block_size=options.block,
        aux_hidden_state_layer_ids=[layer + 1 for layer in options.taps],  # speculators counts from the embedding
        mask_token_id=options.mask_token,
        speculators_config=SpeculatorsConfig(
            algorithm="dflash",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=str(folder), architectures=own.architectures),
        ),
    )
    drafter = DFlashDraftModel(config=config)
    drafter.load_verifier_weights()
    return drafter


def write_data(target: PreTrainedModel, folder: Path, options: argparse.Namespace) -> Rows:
    """Return the conversations, which are kept in `OUT/data.pt`; a second call reads them there."""
    path = options.out / "data.pt"
    if path.exists():
        return Rows(**torch.load(path))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    parts = []
    begin = time.monotonic()
    for index in range(options.batches):
        start = time.monotonic()
        if start - begin > 60 * options.data_minutes:
            break
        parts.append(sample_rows(target, tokenizer, options.rows, options.length, options.seed + index))
        say(f"data {index + 1} of {options.batches}: {options.rows} rows of {options.length} tokens, "
            f"{parts[-1].answered.float().mean():.0%} answers, {time.monotonic() - start:.0f} s")  # fmt: skip
        if index == 0:
            (options.out / "sample.txt").write_text("\n\n".join(map(tokenizer.decode, parts[0].tokens[:8].tolist())))
    rows = Rows(torch.cat([part.tokens for part in parts]), torch.cat([part.answered for part in parts]))
    torch.save({"tokens": rows.tokens, "answered": rows.answered}, path)
    return rows


def train(drafter: DFlashDraftModel, states: TargetStates, rows: Rows, options: argparse.Namespace) -> None:
    """Train until the time is up; the learning rate rises for 3 % of it and falls to 0 as a cosine."""
    settings = SimpleNamespace(
        optimizer=options.optimizer, lr=options.rate, weight_decay=0.01, muon_lr=options.muon_rate, muon_momentum=0.95,
        muon_weight_decay=0.1, muon_ns_steps=5, muon_adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    optimizers = build_optimizers(drafter, settings)
    full_rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    loss = resolve_loss_config(options.loss, options.losses)
    weights = "dpace" if options.loss == "ce" else "fixed-exp-decay"
    pack, length = options.pack, rows.tokens.shape[1]
    documents = torch.arange(pack, device=rows.tokens.device).repeat_interleave(length)[None]
    positions = torch.arange(length, device=rows.tokens.device).repeat(pack)[None]
    generator = torch.Generator().manual_seed(options.seed)
    order, start, step, sums = iter(()), None, 0, {}
    while True:
        batch = [row for _, row in zip(range(pack), order, strict=False)]
        if len(batch) < pack:
            order = iter(torch.randperm(len(rows.tokens), generator=generator).tolist())
            continue
        tokens, answered = rows.tokens[batch].long(), rows.answered[batch]
        if start is None and step == 3:  # what was compiled before is not training time
            start = time.monotonic()
        share = 0.0 if start is None else (time.monotonic() - start) / (60 * options.minutes)
        if share >= 1 or step == options.steps:
            break
        rate = min(share / 0.03, 1.0) * (1 + math.cos(math.pi * share)) / 2
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, full in zip(groups, full_rates, strict=True):
            group["lr"] = full * max(rate, 1e-3)
        tapped, last = states.read(tokens)
        with torch.autocast(rows.tokens.device.type, torch.bfloat16):
            _, value, metrics = drafter(
                hidden_states=tapped.flatten(0, 1)[None], input_ids=tokens.flatten()[None],
                loss_mask=answered.flatten()[None].float(), verifier_last_hidden_states=last.flatten(0, 1)[None],
                document_ids=documents, position_ids=positions, loss_config=loss, gamma=options.gamma,
                max_anchors=options.anchors, per_position_loss_weight=weights,
            )  # fmt: skip
        value.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        for name, figure in metrics.items():
            sums[name] = sums.get(name, 0) + figure.detach()
        if step in (1, 3) or step % 200 == 0:
            say(f"step {step}, {share:.0%}: loss {sums['loss_sum'] / sums['loss_total']:.3f}, "
                f"acceptance length in blocks {sums['eal_sum'] / sums['eal_total']:.3f}")  # fmt: skip
            sums = {}
        if step % 1000 == 0:
            save(drafter, options)
    say(f"trained: {step} steps of {options.anchors} blocks")


def save(drafter: DFlashDraftModel, options: argparse.Namespace) -> None:
    """Write the weights that were trained: whole to `OUT/drafter.pt`, as a checkpoint to `OUT/drafter`."""
    body = select_trained(drafter)
    torch.save(body, options.out / "drafter.pt")
    write_checkpoint(options.out / "drafter", drafter.config, body, options)


def say(text: str) -> None:
    """Print a line with the time since the start."""
    print(f"{time.monotonic() - START:6.0f} s  {text}", flush=True)


def main() -> None:
    """Make the data, train, evaluate and write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--taps", type=int, nargs="+", default=[1, 8, 14, 21, 27])
    parser.add_argument("--mask-token", type=int, default=16)
    parser.add_argument("--rows", type=int, default=2048, help="conversations that are written at a time")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a conversation")
    parser.add_argument("--batches", type=int, default=64, help="times that many conversations are written, at most")
    parser.add_argument("--data-minutes", type=float, default=2.5, help="after which no further ones are begun")
    parser.add_argument("--pack", type=int, default=8, help="conversations of a training step")
    parser.add_argument("--anchors", type=int, default=1024, help="blocks of a training step")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training, without the data")
    parser.add_argument(
        "--steps", type=int, default=-1, help="end after this number of steps at the latest; -1: by --minutes alone"
    )
    parser.add_argument("--optimizer", choices=["adamw", "muon"], default="muon")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--muon-rate", type=float, default=2e-3)
    parser.add_argument("--loss", default="ce")
    parser.add_argument(
        "--losses", choices=["eager", "fused"], default="eager", help="fused: torch 2.11 cannot compile them"
    )
    parser.add_argument("--gamma", type=float, default=4.0)
    parser.add_argument("--attention", default="simple_flex_attention", choices=["simple_flex_attention", "sdpa"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=Path, help="weights of an earlier run to go on with: OUT/drafter.pt")
    parser.add_argument("--bf16", action="store_true", help="write bf16 weights instead of 8 bits")
    parser.add_argument("--answer-tokens", type=int, default=256, help="of an answer of the evaluation")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    target = AutoModelForCausalLM.from_pretrained(options.target, dtype=torch.bfloat16).to(device).eval()
    rows = write_data(target, options.target, options)
    drafter = build_drafter(target, options.target, options).to(device).float()
    if options.start:
        drafter.load_state_dict(torch.load(options.start), strict=False)
    trained = sum(weight.numel() for weight in select_trained(drafter).values())
    say(f"drafter: {options.layers} layers, {trained / 1e6:.2f} M weights, block {options.block}")
    states = TargetStates(target, options.taps)
    train(drafter, states, rows, options)
    save(drafter, options)
    figures = evaluate(target, drafter, states, AutoTokenizer.from_pretrained(options.target), options)
    (options.out / "figures.json").write_text(json.dumps(figures, indent=1))
    for line in figures["lines"]:
        say(line)


START = time.monotonic()
if __name__ == "__main__":
    main()

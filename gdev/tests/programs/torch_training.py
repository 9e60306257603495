"""Trains a transformer, deterministically: torch_training.py [--hidden N] [--layers N] [--steps N]

Prints a line of JSON when it has ended: seconds of the steps, memory, and the losses in hexadecimal
so that runs can be compared bit by bit. `--start TIME` waits until then, so that programs begin
together.
"""

from __future__ import annotations

import json
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import training_options


class Block(torch.nn.Module):
    """Attention and two layers, with what goes around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.project = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)
        self.heads = width // 64

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        count, length, width = values.shape
        shape = (count, length, 3, self.heads, width // self.heads)
        query, key, value = self.project(self.norms[0](values)).view(shape).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(count, length, width)
        values = values + self.out(mixed)
        return values + self.down(torch.nn.functional.gelu(self.up(self.norms[1](values))))


def main() -> None:
    chosen = training_options.parse(__doc__, hidden=2048, batch=8)
    torch.manual_seed(chosen.seed)
    torch.use_deterministic_algorithms(True)
    vocabulary, length = 8192, 512
    model = torch.nn.Sequential(
        torch.nn.Embedding(vocabulary, chosen.hidden),
        *(Block(chosen.hidden) for _ in range(chosen.layers)),
        torch.nn.Linear(chosen.hidden, vocabulary),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randint(vocabulary, (chosen.batch, length + 1), device="cuda")
    torch.cuda.synchronize()
    time.sleep(max(0.0, chosen.start - time.time()))
    begin = time.time()
    losses = []
    for _ in range(chosen.steps):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            guessed = model(data[:, :-1])
        loss = torch.nn.functional.cross_entropy(
            guessed.float().view(-1, vocabulary), data[:, 1:].reshape(-1)
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    said = {
        "losses": [float(one).hex() for one in losses],
        "begin": begin,
        "end": time.time(),
        "reserved_mib": torch.cuda.max_memory_reserved() >> 20,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()

"""Trains a network with JAX, deterministically: jax_training.py [--hidden N] [--layers N]
[--steps N] [--batch N] [--seed N] [--start TIME]

Prints what torch_training.py prints, so trainings.py can run it. JAX takes memory as it needs it,
unless XLA_PYTHON_CLIENT_PREALLOCATE says otherwise.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial

# Kernels are not chosen by their time, which neighbours change.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import training_options

Layers = list[dict[str, jax.Array]]


def make(seed: int, hidden: int, layers: int) -> Layers:
    """Returns the weights, with their first and second moments."""
    keys = jax.random.split(jax.random.key(seed), layers)
    weights = [jax.random.normal(key, (hidden, hidden)) * hidden**-0.5 for key in keys]
    return [{"w": w, "m": jnp.zeros_like(w), "v": jnp.zeros_like(w)} for w in weights]


def loss_of(weights: list[jax.Array], data: jax.Array) -> jax.Array:
    values = data
    for w in weights:
        values = values + jax.nn.gelu(values @ w)
    return jnp.mean(jnp.square(values - jnp.roll(data, 1, axis=0)))


@partial(jax.jit, donate_argnums=0)
def step(layers: Layers, data: jax.Array) -> tuple[Layers, jax.Array]:
    loss, gradients = jax.value_and_grad(loss_of)([one["w"] for one in layers], data)
    changed = []
    for one, gradient in zip(layers, gradients, strict=True):
        m = 0.9 * one["m"] + 0.1 * gradient
        v = 0.99 * one["v"] + 0.01 * jnp.square(gradient)
        changed.append({"w": one["w"] - 1e-4 * m / (jnp.sqrt(v) + 1e-8), "m": m, "v": v})
    return changed, loss


def main() -> None:
    chosen = training_options.parse(__doc__, hidden=8192, batch=4096)
    layers = make(chosen.seed, chosen.hidden, chosen.layers)
    data = jax.random.normal(jax.random.key(chosen.seed + 1), (chosen.batch, chosen.hidden))
    layers, loss = step(layers, data)  # compiles
    losses = [jax.block_until_ready(loss)]
    time.sleep(max(0.0, chosen.start - time.time()))
    begin = time.time()
    for _ in range(chosen.steps):
        layers, loss = step(layers, data)
        losses.append(loss)
    said = {
        "losses": [float(one).hex() for one in losses],
        "begin": begin,
        "end": time.time(),
        "reserved_mib": reserved_bytes() >> 20,
        "platform": jax.devices()[0].platform,
    }
    print(json.dumps(said))


def reserved_bytes() -> int:
    """Returns what JAX has taken of the GPU at most."""
    found = jax.devices()[0].memory_stats() or {}
    return int(found.get("peak_pool_bytes", found.get("peak_bytes_in_use", 0)))


if __name__ == "__main__":
    main()

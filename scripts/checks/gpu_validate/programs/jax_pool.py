"""Allocates with JAX and reports its pool's statistics."""

from witness import *  # noqa: F403
try:
    import jax
    device = jax.devices("gpu")[0]
except Exception as error:
    give_up("JAX has no GPU here: %s" % error)
import numpy
kept = []
for size in (1000, 5 << 20, 100 << 20):
    kept.append(jax.device_put(numpy.zeros(size, numpy.uint8), device))
kept[-1].block_until_ready()
emit(label="arrays", at=now(), stats=device.memory_stats())
x = jax.numpy.ones((1024, 1024))
(x @ x).block_until_ready()
emit(label="matrix product", at=now(), stats=device.memory_stats())
exit_now()

"""Allocates with CuPy and reports its pool's total bytes."""

from witness import *  # noqa: F403
try:
    import cupy
except Exception as error:
    give_up("CuPy cannot be imported: %s" % error)
pool, kept = cupy.get_default_memory_pool(), []
def sample(label):
    emit(label=label, at=now(), pool=pool.total_bytes())
for size in (1000, 1 << 20, 5 << 20, 100 << 20):
    kept.append(cupy.empty(size, dtype=cupy.uint8))
    sample("cupy.empty of %d" % size)
kept = kept[:2]
sample("two freed")
pool.free_all_blocks()
sample("free_all_blocks")
exit_now()

"""Every sloppiness is an error here: double precision, strict types, no implicit broadcasting."""

import gc
from collections.abc import Iterator
from pathlib import Path

import equinox as eqx
import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Programs here are tiny and many: compiling them costs more than running them.
jax.config.update("jax_disable_most_optimizations", True)


MAPS = Path("/proc/self/maps")
MOST = 20_000  # memory maps; Linux allows a process 65,530 by default


@pytest.fixture(autouse=True)
def few_maps() -> Iterator[None]:
    """Compiled programs go before there are too many.

    Thousands of them fill a process's table of memory maps, and the next compilation aborts it.
    """
    yield
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST:
        eqx.clear_caches()
        jax.clear_caches()
        gc.collect()

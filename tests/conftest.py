"""Every sloppiness is an error here: double precision, strict types, no implicit broadcasting."""

import gc
from collections.abc import Iterator

import equinox as eqx
import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Programs here are tiny and many: compiling them costs more than running them.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True, scope="module")
def fresh_programs() -> Iterator[None]:
    """A file's compiled programs go with it.

    Thousands of them fill a process's table of memory maps, and the next compilation aborts it.
    """
    yield
    eqx.clear_caches()
    jax.clear_caches()
    gc.collect()

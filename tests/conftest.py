"""Every sloppiness is an error here: double precision, strict types, no implicit broadcasting."""

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Programs here are tiny and many: compiling them costs more than running them.
jax.config.update("jax_disable_most_optimizations", True)

"""The encoder against the compiler's own convolution, its norms, and other libraries' networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from biadam.models import (
    BatchNorm,
    Convolutional,
    GroupNorm,
    NoNorm,
    Raw,
    Sphere,
    from_equinox,
    from_nnx,
)
from biadam.models.encoder import convolve

KEY = jax.random.key(5)
IMAGE = jax.random.uniform(KEY, (6, 14, 14))


@pytest.mark.parametrize("shape", [(1, 28, 28, 2), (3, 7, 7, 2), (2, 4, 5, 3)])
def test_the_product_of_patches_is_the_convolution(shape):
    """In value and in both gradients, for even, odd and oblong images."""
    x, kernel = jax.random.normal(KEY, shape), jax.random.normal(KEY, (3, 3, shape[0], 4))

    def own(x, kernel):
        layout = lax.conv_dimension_numbers(x.shape, kernel.shape, ("CHWN", "HWIO", "CHWN"))
        return lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=layout)

    @jax.jit
    def everything(x, kernel):
        pairs = [jax.vjp(function, x, kernel) for function in (convolve, own)]
        return [(value, *pull(jnp.sin(value))) for value, pull in pairs]

    for mine, other in zip(*everything(x, kernel), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-11)


def test_features_and_parameters_have_the_shapes_told():
    encoder = Convolutional(channels=8)
    z = jax.jit(lambda: encoder.init(KEY, (14, 14)))()
    assert [block.kernel.shape for block in z] == [(3, 3, 1, 8)] + 3 * [(3, 3, 8, 8)]
    feature = jax.jit(lambda: encoder.apply(z, IMAGE))()
    assert feature.shape == (6, 8 + 1)  # 14 -> 7 -> 4 -> 2 -> 1, and the bias
    np.testing.assert_array_equal(feature[:, -1], 1)
    np.testing.assert_allclose(jnp.sum(feature[:, :-1] ** 2, axis=1), 10, rtol=1e-6)
    raw = Convolutional(channels=8, blocks=2, scaling=Raw())
    assert jax.eval_shape(raw.apply, z[:2], IMAGE).shape == (6, 8 * 4 * 4)
    wide = Convolutional(channels=8, scaling=Sphere(2.0))
    shorter = jax.jit(lambda: wide.apply(z, IMAGE))()
    np.testing.assert_allclose(shorter[:, :-1], feature[:, :-1] * (4 / 10) ** 0.5)


def test_the_start_keeps_the_scale():
    """Without a norm, the mean square of the features is of the order of that of the image."""
    encoder = Convolutional(channels=64, norm=NoNorm(), scaling=Raw())
    signal = jax.random.normal(KEY, (20, 28, 28))
    feature = jax.jit(lambda: encoder.apply(encoder.init(KEY, (28, 28)), signal))()
    assert 0.2 < float(jnp.mean(feature**2)) < 2  # zeros beyond the border take some


def moments(x, axis):
    return np.asarray(x).mean(axis=axis), np.asarray(x).var(axis=axis)


def test_norms_normalise_what_they_say():
    x = 3 + 2 * jax.random.normal(KEY, (4, 5, 5, 6))
    normal, used = BatchNorm()(x, None)
    mean, variance = moments(normal, (1, 2, 3))
    np.testing.assert_allclose(mean, 0, atol=1e-12)
    np.testing.assert_allclose(variance, 1, rtol=1e-4)
    np.testing.assert_allclose(used.mean, x.mean(axis=(1, 2, 3)))
    np.testing.assert_allclose(used.variance, x.var(axis=(1, 2, 3)))
    normal, used = GroupNorm(2)(x, None)
    mean, variance = moments(normal.reshape(2, 2, 5, 5, 6), (1, 2, 3))
    np.testing.assert_allclose(mean, 0, atol=1e-12)
    np.testing.assert_allclose(variance, 1, rtol=1e-4)
    assert used is None
    np.testing.assert_array_equal(NoNorm()(x, None)[0], x)


def alone_and_together(encoder, statistics_of):
    """The features of the first image, by itself and among others."""
    z = encoder.init(KEY, (14, 14))

    @jax.jit
    def both(z):
        known = None if statistics_of is None else encoder.statistics(z, statistics_of)
        return [encoder.apply(z, image, known)[0] for image in (IMAGE[:1], IMAGE)]

    return tuple(map(np.asarray, both(z)))


@pytest.mark.parametrize(
    ("norm", "statistics_of"),
    [(BatchNorm(), 1 - IMAGE), (GroupNorm(1), None), (GroupNorm(4), 1 - IMAGE), (NoNorm(), None)],
)
def test_features_of_an_image_depend_on_no_other(norm, statistics_of):
    alone, together = alone_and_together(Convolutional(channels=8, norm=norm), statistics_of)
    np.testing.assert_allclose(alone, together, rtol=1e-9)


def test_unless_the_batch_gives_the_statistics():
    alone, together = alone_and_together(Convolutional(channels=8), None)
    assert np.abs(alone - together).max() > 0.01


def test_statistics_of_the_same_images_change_nothing():
    encoder = Convolutional(channels=8)
    z = encoder.init(KEY, (14, 14))
    known, given = jax.jit(
        lambda: (encoder.apply(z, IMAGE, encoder.statistics(z, IMAGE)), encoder.apply(z, IMAGE))
    )()
    np.testing.assert_allclose(known, given, rtol=1e-9)


def slope(encoder, z):
    """The gradient of some loss by the parameters."""
    return jax.jit(jax.grad(lambda z: jnp.sum(encoder.apply(z, IMAGE) ** 3)))(z)


def test_an_equinox_module_is_an_encoder():
    class Net(eqx.Module):
        convolution: eqx.nn.Conv2d
        activation: object
        count: int

        def __call__(self, image):
            return self.activation(self.convolution(image[None])) / self.count

    net = Net(eqx.nn.Conv2d(1, 4, 3, 2, key=KEY), jax.nn.relu, 2)
    encoder = from_equinox(net, scaling=Raw())
    z = encoder.init(KEY, (14, 14))
    assert len(jax.tree.leaves(z)) == 2  # kernel and bias; the activation and the count are not
    want = jax.vmap(net)(IMAGE).reshape(6, -1)
    np.testing.assert_allclose(encoder.apply(z, IMAGE), want, rtol=1e-12)
    half = jax.tree.map(lambda a: a / 2, z)
    assert np.abs(encoder.apply(half, IMAGE) - want).max() > 0.01
    wanted = eqx.filter_grad(lambda net: jnp.sum(jax.vmap(net)(IMAGE) ** 3))(net)
    np.testing.assert_allclose(
        slope(encoder, z).convolution.weight, wanted.convolution.weight, rtol=1e-9
    )


def test_an_nnx_module_is_an_encoder():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.convolution = nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs)
            self.norm = nnx.BatchNorm(4, use_running_average=True, rngs=rngs)
            self.head = nnx.Linear(4, 5, rngs=rngs)

        def __call__(self, image):
            x = nnx.relu(self.norm(self.convolution(image)))
            return self.head(x.mean(axis=(1, 2)))

    net = Net(nnx.Rngs(0))
    net.norm.mean[...] = jnp.full(4, 0.3, jnp.float32)
    encoder = from_nnx(net)
    z = encoder.init(KEY, (14, 14))
    assert set(z) == {"convolution", "norm", "head"}
    assert set(z["norm"]) == {"scale", "bias"}  # the moving averages are no parameters
    image = IMAGE.astype(jnp.float32)
    want = Sphere()(net(image[..., None]))
    np.testing.assert_allclose(jax.jit(lambda z: encoder.apply(z, image))(z), want, rtol=1e-5)
    half = jax.tree.map(lambda a: a / 2, z)
    assert np.abs(encoder.apply(half, image) - want).max() > 0.01
    gradient = jax.jit(jax.grad(lambda z: jnp.sum(encoder.apply(z, image) ** 3)))(z)
    assert float(jnp.abs(gradient["convolution"]["kernel"]).max()) > 0
    np.testing.assert_allclose(Sphere()(net(image[..., None])), want)  # the module is untouched

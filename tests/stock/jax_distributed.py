"""JAX's tutorial of multi-process programs, by jax.distributed, on the digits of scikit-learn."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

coordinator_address = sys.argv[1]
num_processes = int(sys.argv[2])
process_id = int(sys.argv[3])
jax.distributed.initialize(coordinator_address, num_processes, process_id)

mesh = Mesh(np.array(jax.devices()), ("data",))
by_rows, replicated = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype("float32"), labels.astype("int32")
local = slice(jax.process_index(), 1500, jax.process_count())
local_images, local_labels = images[local], labels[local]


def predict(params, x):
    w1, b1, w2, b2 = params
    return jax.nn.relu(x @ w1 + b1) @ w2 + b2


def loss_fn(params, x, y):
    log_probs = jax.nn.log_softmax(predict(params, x))
    return -jnp.take_along_axis(log_probs, y[:, None], axis=1).mean()


@jax.jit
def update(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return [param - 0.3 * grad for param, grad in zip(params, grads, strict=True)], loss


rng = np.random.default_rng(0)
params = [rng.normal(0, 0.1, (64, 64)), np.zeros(64), rng.normal(0, 0.1, (64, 10)), np.zeros(10)]
params = [jax.device_put(param.astype("float32"), replicated) for param in params]
for _ in range(8):
    for start in range(0, len(local_images), 50):
        x = jax.make_array_from_process_local_data(by_rows, local_images[start : start + 50])
        y = jax.make_array_from_process_local_data(by_rows, local_labels[start : start + 50])
        params, loss = update(params, x, y)

accuracy = (predict([np.asarray(param) for param in params], images[1500:]).argmax(1) == labels[1500:]).mean()
print(f"process {jax.process_index()}: loss {float(loss):.4f}, accuracy {float(accuracy):.4f}")

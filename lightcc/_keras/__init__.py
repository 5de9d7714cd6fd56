"""What the frontends for Keras share; nothing here imports Keras, or a framework below it.

- `Settings`: the arguments of DistributedOptimizer.
- `distribute`: an optimizer whose gradients are those of all ranks, for Keras 3 and Keras 2.
- `load_model`: a saved model, whose optimizer is such a one.
- `callbacks`: the arithmetic of the callbacks; a frontend adds Keras' own class.

A frontend brings Keras, and a `Backend`: the operations on the tensors below it.
"""

from lightcc._keras.backend import Aggregation, Backend, Exchange, Settings
from lightcc._keras.layers import local_variables
from lightcc._keras.optimizer import distribute, is_distributed, is_of_keras_3
from lightcc._keras.saving import load_model

__all__ = [
    "Aggregation",
    "Backend",
    "Exchange",
    "Settings",
    "distribute",
    "is_distributed",
    "is_of_keras_3",
    "load_model",
    "local_variables",
]

"""Recipes that take seconds: a small network sampled, and the same one trained."""

RECIPE = """
name = "tiny"
seed = 1

[data]
name = "digits"
batch_size = 100
validation = 97

[model]
name = "resnetpp"
depth = 8
width = 2

[sampler]
name = "atmc"
lr = 1e-3
speed = 3e-3
momentum = 0.9
temperature = 0.1

[schedule]
epochs = 4
cycle_epochs = 1
burn_in_epochs = 1

[run]
device = "cpu"
evaluate = ["test", "validation"]
"""
SGD = RECIPE.replace('"tiny"', '"tiny-sgd"').replace("speed = 3e-3\n", "").replace("temperature = 0.1\n", "")
SGD = SGD.replace('name = "atmc"', 'name = "sgd"').replace("lr = 1e-3", "lr = 0.05")
SGD = SGD.replace("cycle_epochs = 1\nburn_in_epochs = 1\n", 'kind = "cosine"\n')

"""A chain as a run makes it, and the same steps recorded in a CUDA graph and one by one."""

from typing import Any

import torch

from atmc.engine.batches import make_feed
from atmc.engine.chain import Chain
from atmc.engine.processes import World
from atmc.engine.run_data import load_data
from atmc.engine.schedule import make_schedule
from atmc.recipe.build import build_model


def chain_of(recipe: Any, device: str) -> Chain:
    place, world = torch.device(device), World()
    data = load_data(recipe)
    model = build_model(recipe, data.train.shape, data.classes)
    feed = make_feed(recipe, data, model, place, world, 5)
    chain = Chain(0, recipe, make_schedule(recipe, len(data.train)), data, model, feed, place, world)
    chain.start()
    return chain


def check_same_steps(recorded: Chain, eager: Chain, **tolerance: float) -> None:
    """24 steps of each from the same start, the first as a run makes them: the weights are alike."""
    while recorded.done < 24:
        recorded.advance(7)
    assert recorded.finish() is None
    for step in range(24):
        eager.feed.ensure(step)
        eager._step()
    recorded.synchronize()
    eager.synchronize()
    for (name, a), b in zip(recorded.model.state_dict().items(), eager.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, **tolerance, msg=name)

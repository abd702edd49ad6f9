"""Layers that people's networks have: norms of one example, embeddings, attention and recurrent ones are sampled."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atmc
from atmc.nn import check

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS, WIDTH = 6, 8


class Net(nn.Module):
    """A layer for sequences [batch, steps, width] between an embedding and a head."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(20, WIDTH), layer, nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        if isinstance(self.layer, nn.MultiheadAttention):
            x = self.layer(x, x, x, need_weights=False)[0]
        elif isinstance(self.layer, nn.RNNBase):
            x = self.layer(x)[0]
        elif isinstance(self.layer, nn.GroupNorm | nn.Conv1d):
            x = self.layer(x.transpose(1, 2)).transpose(1, 2)
        else:
            x = self.layer(x)
        out: Tensor = self.head(x.mean(1))
        return out


LAYERS: dict[str, Any] = {
    "LayerNorm": lambda: nn.LayerNorm(WIDTH),
    "GroupNorm": lambda: nn.GroupNorm(2, WIDTH),
    "RMSNorm": lambda: nn.RMSNorm(WIDTH),
    "attention": lambda: nn.MultiheadAttention(WIDTH, 2, batch_first=True),
    "transformer": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True),
    "LSTM": lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
    "GRU": lambda: nn.GRU(WIDTH, WIDTH, batch_first=True),
    "Conv1d": lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_sampled_and_predicts(name: str) -> None:
    torch.manual_seed(0)
    model = Net(LAYERS[name]())
    tokens = torch.randint(0, 20, (120, STEPS))
    labels = (tokens[:, 0] > 9).long()
    assert check(model, tokens[:4]) == []
    posterior = atmc.sample(model, (tokens, labels), epochs=10, batch_size=30, progress=None)
    before = dict(model.named_parameters())
    first, last = posterior.state(0), posterior.state(len(posterior) - 1)
    for key, parameter in before.items():
        assert bool((first[key] != parameter).any()), key
        assert bool((last[key] != first[key]).any()), key
    expected = torch.stack([torch.softmax(net(tokens), 1).double() for net in posterior]).mean(0)
    torch.testing.assert_close(posterior.predict(tokens).probs, expected, atol=1e-5, rtol=1e-4)
    assert all(bool(torch.isfinite(net(tokens)).all()) for net in posterior)


def test_dropout_is_refused_with_the_way_out_and_that_works() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    data = (x, (x[:, 0] > 0).long())
    with pytest.raises(atmc.InputError, match=r"Dropout\(p=0\.3\) adds its own noise; pass atmc\.nn\.convert\(model\)"):
        atmc.sample(model, data, epochs=2, progress=None)
    converted = atmc.nn.convert(model)
    torch.testing.assert_close(converted.eval()(x), model.eval()(x), atol=1e-5, rtol=1e-4)
    assert len(atmc.sample(converted, data, epochs=2, progress=None)) > 0

"""Tasks on characters of a real text: an LSTM, a small causal transformer, an embedding with sparse gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from amp_checks.reference.datasets import TEXT_HELD_OUT, Batches, characters
from amp_checks.reference.loop import Learner, Task, Turn, Validation

WIDTH = 32
LENGTH = 32


class Lstm(nn.Module):
    """Character numbers, (batch, length), to logits of the next character, (batch, length, alphabet)."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, alphabet)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(x))
        out: torch.Tensor = self.head(hidden)
        return out


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each after a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.feed(self.norm2(x))
        return out


class Transformer(nn.Module):
    """Character numbers, (batch, length), to logits of the next character, (batch, length, alphabet)."""

    def __init__(self, alphabet: int, *, width: int = WIDTH, depth: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, width)
        self.position = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, alphabet)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1], device=x.device)
        hidden = self.blocks(self.embedding(x) + self.position(place))
        out: torch.Tensor = self.head(self.norm(hidden))
        return out


class Window(nn.Module):
    """Logits of the next character from the four before it: one wide embedding, whose gradients are sparse."""

    SEEN = 4

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet * self.SEEN, WIDTH, sparse=True)
        self.hidden = nn.Linear(self.SEEN * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, alphabet)
        self.alphabet = alphabet

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        windows = functional.pad(x, (self.SEEN - 1, 0)).unfold(1, self.SEEN, 1)
        windows = windows + self.alphabet * torch.arange(self.SEEN, device=x.device)
        out: torch.Tensor = self.head(functional.relu(self.hidden(self.embedding(windows).flatten(2))))
        return out


def _next_character(
    device: str,
    *,
    model: Callable[[int], nn.Module],
    optimizer: Callable[..., torch.optim.Optimizer],
    batch: int = 16,
) -> Learner:
    """Cross-entropy of the next character; the metric is the share of characters that are guessed right."""
    text, alphabet = characters()
    text = text.to(device)
    # Overlapping pieces of the text, each with its next character.
    pieces = text[:-TEXT_HELD_OUT].unfold(0, LENGTH + 1, 7)
    held_out = text[-TEXT_HELD_OUT:].unfold(0, LENGTH + 1, LENGTH + 1)
    net = model(alphabet).to(device)
    batches = Batches(len(pieces), batch)

    def cross_entropy(outputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), rows[:, 1:].flatten())

    def loss(step: int, _micro: int) -> torch.Tensor:
        rows = pieces[batches(step).to(device)]
        return cross_entropy(net(rows[:, :-1]), rows)

    def validate() -> Validation:
        outputs = net(held_out[:, :-1])
        right = (outputs.argmax(2) == held_out[:, 1:]).float().mean()
        return Validation(loss=cross_entropy(outputs, held_out).item(), metric=right.item())

    return Learner(model=net, turns=(Turn(optimizer=optimizer(net.parameters()), loss=loss),), validate=validate)


LSTM = Task(
    id="characters-lstm",
    build=functools.partial(_next_character, model=Lstm, optimizer=functools.partial(torch.optim.Adam, lr=1e-2)),
    steps=30,
)
TRANSFORMER = Task(
    id="characters-transformer",
    build=functools.partial(
        _next_character, model=Transformer, optimizer=functools.partial(torch.optim.AdamW, lr=5e-3)
    ),
    steps=25,
)
SPARSE = Task(
    id="characters-sparse-embedding",
    build=functools.partial(_next_character, model=Window, optimizer=functools.partial(torch.optim.SGD, lr=0.5)),
    steps=40,
)

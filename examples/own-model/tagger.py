"""The project: a small tagger of sequences, and one step of its training."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, TAGS, LENGTH = 24, 4, 12


class Tagger(nn.Module):
    """A tag for each token: tokens (batch, length) int64 -> logits (batch, length, TAGS)."""

    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.attend = nn.MultiheadAttention(width, num_heads=4, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, TAGS)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = self.norm(x + self.attend(x, x, x, need_weights=False)[0])
        return self.head(x)


def loss_of(logits, tags):
    """Mean cross-entropy over all tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), tags.flatten())


def sequences(number, seed):
    """Random tokens; a token's tag is its remainder, or that of the first token where it is among the rare ones."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (number, LENGTH), generator=generator)
    return tokens, torch.where(tokens < 4, tokens[:, :1], tokens) % TAGS

"""Word pieces: text as numbers, of which frequent words have one and rare ones several.

Byte-pair encoding (Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units",
2016): pieces begin as characters, and the pair of neighbours that is most frequent within words
becomes a piece of its own, until there are enough. The package tokenizers does that as well, but
breaks ties otherwise, and the runs that are kept are of these pieces.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import pairwise

#: A word with the blank before it, a run of other characters, or white space.
_WORD = re.compile(r" ?\w+| ?[^\w\s]+|\s+")

Pair = tuple[str, str]


class WordPieces:
    """The pieces of a text.

    Attributes:
        pieces: All of them; a piece's number is its position.
    """

    def __init__(self, text: str, count: int) -> None:
        """Learns from `text` up to `count` pieces; more where it has more characters."""
        self.pieces = sorted(set(text))
        self._ranks: dict[Pair, int] = {}  # Pairs that became a piece, in that order.
        self._spelled: dict[str, list[int]] = {}
        words = Counter(_WORD.findall(text))
        spelled = {word: list(word) for word in words}
        counts: Counter[Pair] = Counter()
        holders: dict[Pair, set[str]] = defaultdict(set)
        for word, symbols in spelled.items():
            for pair in pairwise(symbols):
                counts[pair] += words[word]
                holders[pair].add(word)
        while len(self.pieces) < count and counts:
            # The first of equally frequent pairs by its letters: all ranks find the same.
            highest = max(counts.values())
            best = min(pair for pair, times in counts.items() if times == highest)
            self._ranks[best] = len(self._ranks)
            self.pieces.append("".join(best))
            for word in holders.pop(best):
                symbols = spelled[word]
                for pair in pairwise(symbols):
                    counts[pair] -= words[word]
                spelled[word] = symbols = _merge(symbols, best)
                for pair in pairwise(symbols):
                    counts[pair] += words[word]
                    holders[pair].add(word)
            del counts[best]
        self._numbers = {piece: number for number, piece in enumerate(self.pieces)}

    def numbers(self, text: str) -> list[int]:
        """Returns the numbers of the pieces of `text`, without characters that no piece has."""
        found: list[int] = []
        for word in _WORD.findall(text):
            if word not in self._spelled:
                self._spelled[word] = self._spell(word)
            found += self._spelled[word]
        return found

    def _spell(self, word: str) -> list[int]:
        symbols = [letter for letter in word if letter in self._numbers]
        while len(symbols) > 1:
            pairs = pairwise(symbols)
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            symbols = _merge(symbols, best)
        return [self._numbers[symbol] for symbol in symbols]


def _merge(symbols: list[str], pair: Pair) -> list[str]:
    """Returns symbols in which each occurrence of a pair is one symbol."""
    merged: list[str] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] += symbol
        else:
            merged.append(symbol)
    return merged

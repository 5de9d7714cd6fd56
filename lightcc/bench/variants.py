"""What is measured beside one another: a library, and the variables that its ranks are given.

A variant is written `NAME` or `NAME:VARIABLE=VALUE:...`, such as `2d:LIGHT_NUM_STREAMS=2` or
`2d:LIGHT_NET=harp`, so that one run can compare any two settings of the engine. Variants with the
same library and variables share ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from lightcc.bench.peers import LIGHTCC, PEERS

_RATIO = "LIGHT_TOPK_RATIO"
_TWO_LEVEL = "LIGHT_2D_ALLREDUCE"
_TOPK = "LIGHT_TOPK_ALLREDUCE"
_NET = "LIGHT_NET"


class VariantError(ValueError):
    """No variant is called so; the text says which there are."""


@dataclass(frozen=True)
class Variant:
    """One line of a table for each case."""

    label: str
    library: str = LIGHTCC  # Or a peer's name.
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def ratio(self) -> float | None:
        """The share of the elements that it sends; None: its results are the exact sums."""
        variables = dict(self.environment)
        return float(variables[_RATIO]) if variables.get(_TOPK) == "1" else None

    @property
    def uses_tcp(self) -> bool:
        """Whether lightcc's own TCP carries its data between hosts."""
        return self.library == LIGHTCC and dict(self.environment).get(_NET, "tcp") == "tcp"


V = TypeVar("V", bound=Variant)


def _lightcc(label: str, *, two_level: bool, topk: bool = False) -> Variant:
    environment = [(_TWO_LEVEL, str(int(two_level)))]
    if topk:
        environment += [(_TOPK, "1"), (_RATIO, "0.01")]
    return Variant(label, environment=tuple(environment))


#: lightcc's own ways.
ALGORITHMS = {
    variant.label: variant
    for variant in (
        _lightcc("2d", two_level=True),
        _lightcc("flat", two_level=False),
        _lightcc("2d+topk", two_level=True, topk=True),
    )
}

#: The variants of collectives, where a peer is one without variables.
COLLECTIVES = {
    LIGHTCC: Variant(LIGHTCC),
    "harp": Variant("harp", environment=((_NET, "harp"),)),
    **ALGORITHMS,
    **{name: Variant(name, name) for name in PEERS},
}


def parse_variants(text: str, known: dict[str, V]) -> list[V]:
    """Returns the variants of "2d,flat:LIGHT_NUM_STREAMS=2", each once.

    Raises:
        VariantError: A name is not in `known`, or what follows it is no `VARIABLE=VALUE`.
    """
    found = []
    for words in dict.fromkeys(text.split(",")):
        name, *settings = words.split(":")
        if name not in known:
            msg = f"unknown variant '{name}': choose from {', '.join(known)}"
            raise VariantError(msg)
        variant = known[name]
        pairs = [setting.partition("=") for setting in settings]
        for variable, equals, _ in pairs:
            if not variable or not equals:
                msg = f"'{words}' is not NAME:VARIABLE=VALUE:..."
                raise VariantError(msg)
        merged = dict(variant.environment) | {variable: value for variable, _, value in pairs}
        found.append(replace(variant, label=words, environment=tuple(sorted(merged.items()))))
    return found

"""`Recipe`: what training holds of every parameter, by component and dtype.

The field names recipes by their bytes per parameter: 10, 16, 18. What is left out of one is either
not there or assumed to live only a moment, and `used_by` says who counts so.
"""

from dataclasses import dataclass

from rooflight.dtypes import DTYPES, Dtype
from rooflight.errors import UnknownNameError

_BF16, _F32 = DTYPES["bf16"], DTYPES["f32"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Dtypes of what is stored; None is not stored. Adam has two moments.

    >>> {name: recipe.weights.name for name, recipe in RECIPES.items()}
    {'10': 'bf16', '16': 'bf16', '18': 'bf16', 'f32': 'f32'}
    """

    name: str
    weights: Dtype
    gradients: Dtype | None
    master: Dtype | None
    moments: tuple[Dtype, ...]
    used_by: str
    compute: Dtype = _BF16  # of activations, of gathered weights and of their gradients


RECIPES = {
    r.name: r
    for r in (
        Recipe(
            "10",
            _BF16,
            None,
            None,
            (_F32, _F32),
            "chapters 5 and 6 of the book: gradients are used up as they come, no master weights",
        ),
        Recipe(
            "16",
            _BF16,
            _BF16,
            _F32,
            (_F32, _F32),
            "mixed precision of the ZeRO paper (arXiv 1910.02054): 2 + 2 + K, K = 12",
        ),
        Recipe(
            "18",
            _BF16,
            _F32,
            _F32,
            (_F32, _F32),
            "Megatron-LM's distributed optimizer, which adds up gradients in fp32",
        ),
        Recipe(
            "f32",
            _F32,
            _F32,
            None,
            (_F32, _F32),
            "fp32 weights cast to bf16 for each matmul: torchtitan's FSDP, MaxText's default",
        ),
    )
}


def parse_recipe(text: str) -> Recipe:
    """Finds a recipe by name; unknown names get a did-you-mean."""
    if text not in RECIPES:
        raise UnknownNameError("recipe", text, RECIPES)
    return RECIPES[text]

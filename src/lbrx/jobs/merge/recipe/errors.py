"""Where a recipe is wrong, and why."""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a recipe; ``str`` gives ``recipe.yml:12``.

    >>> str(Place("recipe.yml", 12))
    'recipe.yml:12'
    """

    source: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"

    def error(self, problem: str) -> RecipeError:
        """An error about this line, to be raised by the caller.

        >>> str(Place("recipe.yml", 3).error("the document is empty"))
        'recipe.yml:3: the document is empty'
        """
        return RecipeError(problem, self)


class RecipeError(UsageError):
    """A recipe says something that cannot be done; the message begins with its file and line.

    >>> RecipeError("unknown key 'dtpye'", Place("recipe.yml", 4)).place.line
    4
    """

    def __init__(self, problem: str, place: Place) -> None:
        super().__init__(problem, place)
        self.problem = problem
        self.place = place

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"

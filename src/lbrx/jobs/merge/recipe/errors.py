"""Where a recipe is wrong, and why."""

from __future__ import annotations

from lbrx.base.fast_dataclass import dataclass
from lbrx.errors import UsageError


@dataclass(frozen=True, slots=True)
class RecipeLine:
    """A line of a recipe; ``str`` gives ``recipe.yml:12``.

    >>> str(RecipeLine("recipe.yml", 12))
    'recipe.yml:12'
    """

    source: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"

    def error(self, problem: str) -> RecipeError:
        """An error about this line, to be raised by the caller.

        >>> str(RecipeLine("recipe.yml", 3).error("the document is empty"))
        'recipe.yml:3: the document is empty'
        """
        return RecipeError(problem, self)


class RecipeError(UsageError):
    """A recipe says something that cannot be done; the message begins with its file and line.

    >>> RecipeError("unknown key 'dtpye'", RecipeLine("recipe.yml", 4)).location.line
    4
    """

    def __init__(self, problem: str, location: RecipeLine) -> None:
        super().__init__(problem, location)
        self.problem = problem
        self.location = location

    def __str__(self) -> str:
        return f"{self.location}: {self.problem}"

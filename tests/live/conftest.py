"""The live tests read the same built book in the same browser as the tests of the pages."""

from tests.book.conftest import browser, built_book

__all__ = ["browser", "built_book"]

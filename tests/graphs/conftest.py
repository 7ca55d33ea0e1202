"""Comparisons made in the helper show their difference."""

import pytest

pytest.register_assert_rewrite("tests.graphs.compare")

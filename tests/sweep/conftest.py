import pytest
from synthetic import ClockedBackend, FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def backend(clock):
    return ClockedBackend(clock)

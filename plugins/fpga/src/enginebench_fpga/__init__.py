"""An INT8 network as gateware, its integer reference, simulation, host driver, and the latency budget of a link."""

__version__ = "0.1.0"
# There is no other place to install it from.
INSTALL = "pip install ./plugins/fpga (in a checkout of EngineBench)"

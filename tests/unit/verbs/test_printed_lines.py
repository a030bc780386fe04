"""Lines that verbs print beside their tables, of what no session can know."""

from pathlib import Path

from enginebench.config import tomllib
from enginebench.core.records import Availability, Gpu
from enginebench.report.terminal import format_text
from enginebench.verbs.doctor import EXTRAS, DoctorDocument, choose_install, list_doctor, list_machine_facts
from processes import ROOT, Cli
from samples import make_implausible, make_machine
from stored_run import make_results, write_run


def test_doctor_names_what_the_machine_has_in_its_units() -> None:
    assert dict(list_machine_facts(make_machine(cpu_quota_cores=1.5, cpu_max_mhz=3500.0))) == {
        "CPU": "Xeon",
        "cores": "2 cores, 2 threads, 2 allowed, quota 1.5; default: 1 thread",
        "flags": "avx2 avx512_vnni",
        "clock": "2500 MHz now, 3500 MHz at most, governor performance, load 0.10",
        "memory": "24576 MiB",
        "system": "Linux 6.1, x86_64, kvm",
        "GPU": "none visible to NVML",
        "versions": "torch 2.13.0",
    }


def test_doctor_names_the_extras_that_a_machine_lacks() -> None:
    there = [Availability(engine=name, available=True, version="1") for name in ("pytorch", "ort")]
    lacks = [*there, Availability(engine="openvino", available=False)]
    broken = [*there, Availability(engine="openvino", available=False, version="1", reason="no such CPU")]
    cpu, gpu = make_machine(), make_machine(gpus=(Gpu(index=0, name="H200", driver="", memory_bytes=1),))
    assert choose_install(cpu, lacks) == 'pip install "enginebench[cpu]"'
    assert (
        choose_install(gpu, [*there, Availability(engine="ort-cuda", available=False)])
        == 'pip install "enginebench[torch,cuda,openvino,tensorrt]"'
    )
    assert choose_install(cpu, there) is None and choose_install(cpu, broken) is None
    assert choose_install(make_machine(jetson={"model": "Orin"}), lacks) is None, "JetPack brings its engines"
    document = DoctorDocument(machine=cpu, engines=tuple(lacks), install=choose_install(cpu, lacks))
    shown = " ".join(format_text(list_doctor(document)).split())
    assert 'to add pip install "enginebench[cpu]" brings the engines for this machine' in shown


def test_the_extras_that_doctor_names_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert {name for names in EXTRAS.values() for name in names.split(",")} <= set(extras)


def test_a_baseline_names_what_it_leaves_out(cli: Cli, tmp_path: Path) -> None:
    rows = make_results()
    write_run(tmp_path / "r", [*rows[:2], make_implausible(rows[2]), *rows[3:]])
    done = cli("baseline", "save", "main", "r")
    saved = "saved 3 configurations of resnet18 in results/baselines/main"
    assert done.stdout == f"{saved}; not ort-int8@cpu-b1, whose times are implausible\n"

"""Lines that verbs print beside their tables, of what no session can know."""

from pathlib import Path

from enginebench.verbs.doctor import list_machine_facts
from processes import Cli
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


def test_a_baseline_names_what_it_leaves_out(cli: Cli, tmp_path: Path) -> None:
    rows = make_results()
    write_run(tmp_path / "r", [*rows[:2], make_implausible(rows[2]), *rows[3:]])
    done = cli("baseline", "save", "main", "r")
    saved = "saved 3 configurations of resnet18 in results/baselines/main"
    assert done.stdout == f"{saved}; not ort-int8@cpu-b1, whose times are implausible\n"

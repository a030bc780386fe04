"""File trees of machines that exist, shortened to what is read."""

from collections.abc import Callable, Mapping
from pathlib import Path

LayOut = Callable[[Mapping[str, str]], Path]

CPU = "sys/devices/system/cpu"


def make_topology(siblings: dict[int, str]) -> dict[str, str]:
    return {f"{CPU}/cpu{cpu}/topology/core_cpus_list": f"{text}\n" for cpu, text in siblings.items()}


def make_cpuinfo(processors: int, lines: str) -> str:
    return "\n".join(f"processor\t: {i}\n{lines}\n" for i in range(processors))


# A laptop: two large cores with two threads each (CPUs 0 to 3) and two small ones (4, 5).
INTEL_HYBRID = {
    "proc/cpuinfo": make_cpuinfo(
        6,
        "vendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Core(TM) Ultra 5\ncpu MHz\t\t: 800.000\n"
        "flags\t\t: fpu sse2 avx2 f16c fma avx_vnni",
    ),
    **make_topology({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4", 5: "5"}),
    **{f"{CPU}/cpu{i}/cpufreq/cpuinfo_max_freq": "5000000\n" if i < 4 else "3600000\n" for i in range(6)},
    **{f"{CPU}/cpu{i}/cpufreq/scaling_governor": "powersave\n" for i in range(6)},
    **{f"{CPU}/cpu{i}/cpufreq/scaling_cur_freq": f"{(i + 1) * 1000000}\n" for i in range(6)},
    f"{CPU}/cpu0/cache/index0/level": "1\n",
    f"{CPU}/cpu0/cache/index0/size": "48K\n",
    f"{CPU}/cpu0/cache/index3/level": "3\n",
    f"{CPU}/cpu0/cache/index3/size": "12M\n",
    "proc/meminfo": "MemTotal:       16000000 kB\nMemFree: 1 kB\n",
    "proc/loadavg": "0.25 0.10 0.05 1/200 4000\n",
    "proc/stat": "cpu  1 2 3 4 5 6 7 8 9 10\n",
    "proc/sys/kernel/osrelease": "6.8.0-generic\n",
    "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04 LTS"\n',
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "proc/self/cgroup": "0::/user.slice\n",
}

# A virtual server in a container with cgroup v2: four CPUs, two cores, 1.5 cores and 2 GiB granted.
AMD_V2 = {
    "proc/cpuinfo": make_cpuinfo(
        4, "model name\t: AMD EPYC 9B14\nflags\t\t: hypervisor avx2 avx512f avx512_vnni avx512_bf16"
    ),
    **make_topology({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}),
    "proc/meminfo": "MemTotal:        8388608 kB\n",
    "proc/stat": "cpu  1 2 3 4 5 6 7 8 9 10\n",
    "proc/self/cgroup": "0::/kubepods/pod1/abc\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory cpuset\n",
    "sys/fs/cgroup/kubepods/cpu.max": "150000 100000\n",
    "sys/fs/cgroup/kubepods/pod1/abc/cpu.max": "max 100000\n",
    "sys/fs/cgroup/kubepods/pod1/abc/memory.max": "2147483648\n",
    "sys/fs/cgroup/kubepods/pod1/abc/cpuset.cpus.effective": "0-2\n",
    "sys/class/dmi/id/sys_vendor": "QEMU\n",
}

# cgroup v1, where the container sees its own folder as the mount and the host's path leads nowhere.
INTEL_V1 = {
    "proc/cpuinfo": make_cpuinfo(2, "model name\t: Xeon(R)\nflags\t\t: avx2 avx512f amx_tile amx_int8 amx_bf16"),
    "proc/meminfo": "MemTotal:        8388608 kB\n",
    "proc/stat": "cpu  1 2 3 4 5 6 7 8 9 10\n",
    "proc/self/cgroup": "4:memory:/docker/abc\n3:cpuset:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/cpuset/cpuset.cpus": "0-1\n",
    ".dockerenv": "",
}

JETSON = {
    "proc/cpuinfo": make_cpuinfo(
        2, "BogoMIPS\t: 62.50\nFeatures\t: fp asimd fphp asimdhp asimddp\nCPU implementer\t: 0x41\nCPU part\t: 0xd42"
    ),
    "proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
    "proc/meminfo": "MemTotal:       31000000 kB\n",
    "proc/stat": "cpu  1 2 3 4 5 6 7 8 9 10\n",
    "var/lib/nvpmodel/status": "pmode:0002 fmode:quiet\n",
    "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=2 NAME=MODE_30W >\n",
    "etc/nv_tegra_release": "# R36 (release), REVISION: 4.0, GCID: 37537400, BOARD: generic, DATE: Fri\n",
    f"{CPU}/cpu0/cpufreq/scaling_governor": "schedutil\n",
    f"{CPU}/cpu1/cpufreq/scaling_governor": "performance\n",
}

"""Names of devices, as people type them and systems report them, and the devices that they mean."""

import pytest
from macs import Mac

from pomology.articles import devices, published
from pomology.articles.devices import Catalogue
from pomology.errors import PomologyError
from pomology.machine import snapshot

GB = 2**30


def taken(name, own=(), catalogue=None):
    return devices.resolve(name, catalogue or devices.with_data_sheet(), own)


# What people type -> the device with a data sheet, and the one with published results.
TYPED = {
    "RTX 4090": ("RTX 4090", "RTX 4090"),
    "rtx 4090": ("RTX 4090", "RTX 4090"),
    "RTX4090": ("RTX 4090", "RTX 4090"),
    "4090": ("RTX 4090", "RTX 4090"),
    "GeForce RTX 2070 SUPER": ("RTX 2070 Super", "RTX 2070 Super"),
    "A6000": ("RTX A6000", "RTX A6000"),
    "RTX 6000 Ada": ("RTX 6000 Ada", "RTX 6000 Ada"),
    "RTX 8000": ("Quadro RTX 8000", "Quadro RTX 8000"),
    "2080Ti": ("RTX 2080 Ti", "RTX 2080 Ti"),
    "1080ti": ("GTX 1080 Ti", "GTX 1080 Ti"),
    "T4": ("T4", "T4"),
    "DGX Spark": ("GB10", "GB10"),
    "h100 pcie": ("H100 80 GB PCIe", "H100 80 GB PCIe"),
    "H100 SXM": ("H100 80 GB SXM", "H100 80 GB SXM"),
    "RX 7900 XTX": ("Radeon RX 7900 XTX", "Radeon RX 7900 XTX"),
    "M4 Max (40-core GPU)": ("M4 Max GPU (40 cores)", "M4 Max GPU"),
    "M1 Ultra, 64 GPU cores": ("M1 Ultra GPU (64 cores)", "M1 Ultra GPU"),
    "M1 Ultra (20-core CPU, 64-core GPU, 128 GB)": ("M1 Ultra GPU (64 cores)", "M1 Ultra GPU"),
    "Quadro 8000": ("Quadro RTX 8000", "Quadro RTX 8000"),
    "RTX 4090 24GB": ("RTX 4090", "RTX 4090"),
    "m3-pro 14 cores": ("M3 Pro GPU (14 cores)", "M3 Pro GPU (14 cores)"),
    # Names of several sizes: the smallest, or the one with most results.
    "M3 Max": ("M3 Max GPU (30 cores)", "M3 Max GPU"),
    "M3Max": ("M3 Max GPU (30 cores)", "M3 Max GPU"),
    "M3 Max GPU": ("M3 Max GPU (30 cores)", "M3 Max GPU"),
    "Apple M4 Max": ("M4 Max GPU (32 cores)", "M4 Max GPU"),
    "m2 max": ("M2 Max GPU (30 cores)", "M2 Max GPU"),
    "M1": ("M1 GPU (7 cores)", "M1 GPU"),
    "M1 Max": ("M1 Max GPU (24 cores)", "M1 Max GPU (32 cores)"),
    "A100": ("A100 40 GB PCIe", "A100"),
    "A100 80GB": ("A100 80 GB PCIe", "A100 80 GB SXM"),
    "V100": ("V100 16 GB", "V100"),
    "Titan X": ("Titan X (Maxwell)", "Titan X (Maxwell)"),
}
# What CUDA, NVML, ROCm and macOS report -> the device with a data sheet.
REPORTED = {
    "NVIDIA GeForce RTX 4090": "RTX 4090",
    "NVIDIA GeForce RTX 2080 Ti": "RTX 2080 Ti",
    "NVIDIA GeForce GTX TITAN X": "Titan X (Maxwell)",
    "NVIDIA TITAN X (Pascal)": "Titan X (Pascal)",
    "NVIDIA TITAN V": "Titan V",
    "Tesla T4": "T4",
    "Tesla K80": "K80",
    "Tesla M60": "M60",
    "Tesla P100-PCIE-16GB": "P100",
    "Tesla V100-SXM2-16GB": "V100 16 GB",
    "Tesla V100-PCIE-32GB": "V100 32 GB",
    "NVIDIA A10G": "A10G",
    "NVIDIA A10": "A10",
    "NVIDIA L4": "L4",
    "NVIDIA A100-SXM4-80GB": "A100 80 GB SXM",
    "NVIDIA A100-SXM4-40GB": "A100 40 GB SXM",
    "NVIDIA A100 80GB PCIe": "A100 80 GB PCIe",
    "NVIDIA A100-PCIE-40GB": "A100 40 GB PCIe",
    "NVIDIA H100 80GB HBM3": "H100 80 GB SXM",
    "NVIDIA H100 PCIe": "H100 80 GB PCIe",
    "NVIDIA H200": "H200 141 GB SXM",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA RTX A6000": "RTX A6000",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 Blackwell",
    "NVIDIA GeForce RTX 3060": "RTX 3060 12 GB",
    "NVIDIA GeForce RTX 5070 Ti": "RTX 5070 Ti",
    "NVIDIA L40S": "L40S",
    "NVIDIA GB10": "GB10",
    "Quadro RTX 8000": "Quadro RTX 8000",
    "AMD Radeon RX 6800": "Radeon RX 6800",
    "AMD Instinct MI250": "MI250 (one of two dies)",
    "Apple M4 Max": "M4 Max GPU (32 cores)",
    "Apple M3 Ultra": "M3 Ultra GPU (60 cores)",
}
# What is no device with a data sheet -> words of the error.
REFUSED = {
    "NVIDIA GeForce RTX 3080 Laptop GPU": "RTX 3080 Laptop has no data sheet",
    "RTX 3080 Mobile": "RTX 3080 Laptop has no data sheet",
    "NVIDIA GeForce RTX 2070 with Max-Q Design": "RTX 2070 Max-Q has no data sheet",
    "NVIDIA GeForce RTX 4090 Laptop GPU": "unknown device; similar names: RTX 4090, ",
    "NVIDIA GeForce RTX 4090 D": "unknown device; similar names: RTX 4090, ",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": "unknown device",  # a part of an A100
    "NVIDIA H100 NVL": "unknown device; similar names: H100 80 GB PCIe; ",
    "RTX 3080 12GB": "only RTX 3080 has a data sheet",
    "RTX 4060 Ti 8 GB": "only RTX 4060 Ti 16 GB has a data sheet",
    "RTX PRO 6000 Blackwell Max-Q": "unknown device; similar names: RTX PRO 6000 Blackwell",
    "NVIDIA L40": "unknown device; similar names: L4",
    "V100 64 GB": "only V100 16 GB and V100 32 GB have a data sheet",
    "M3 Max (20 cores)": "only M3 Max GPU (30 cores) and M3 Max GPU (40 cores) have a data sheet",
    "M5 (8 cores)": "only M5 GPU (10 cores) has a data sheet",
    "M1 Ultra CPU": "no CPU has a data sheet; the GPU of this chip is M1 Ultra GPU (48 cores) or ",
    "M3 Max CPU": "no CPU has a data sheet; the GPU of this chip is M3 Max GPU (30 cores) or ",
    "M5 CPU": "no CPU has a data sheet; the GPU of this chip is M5 GPU (10 cores); ",
    "M5 Pro CPU": "no CPU has a data sheet; `",
    "CPU": "no CPU has a data sheet; `",
    "Intel(R) Xeon(R) CPU @ 2.20GHz": "no CPU has a data sheet; `",
    "Intel(R) Core(TM) i7-8700": "no CPU has a data sheet; `",
    "AMD Ryzen 9 5950X 16-Core Processor": "no CPU has a data sheet; `",
    "GPU": "GPU: names no device; expected a model, such as 'RTX 4090'",
    "NVIDIA": "NVIDIA: names no device; expected a model",
    "GPU 8 GB": "names no device",
    "M5 Pro": "M5 Pro GPU has no data sheet",
    "Jetson Nano": "Jetson Nano has no data sheet",
    "Apple M1 (Virtual)": "unknown device",
    "VirtualApple @ 2.50GHz processor": "unknown device",
    "AMD EPYC 7B13": "no CPU has a data sheet; `",
    "AMD Ryzen 7 with Radeon Graphics": "unknown device; similar names: Radeon",
    "Apple M9": "unknown device; `",  # one of two letters is no similarity
    "banana": "unknown device; `",
    "GTX 4090": "unknown device; similar names: RTX 4090, ",
    "": "unknown device",
}


@pytest.mark.parametrize("name", TYPED)
def test_a_typed_name_means_a_device(name):
    assert taken(name).name == TYPED[name][0]
    assert taken(name, catalogue=devices.with_results()).name == TYPED[name][1]


@pytest.mark.parametrize("name", REPORTED)
def test_a_name_that_a_system_reports_means_a_device(name):
    assert taken(name).name == REPORTED[name]


@pytest.mark.parametrize("name", REFUSED)
def test_another_name_is_refused_in_one_line_that_says_how_to_list_all(name):
    with pytest.raises(PomologyError) as error:
        taken(name)
    said = str(error.value)
    assert REFUSED[name] in said and "\n" not in said and len(said) < 250
    assert said.endswith("; `pomology devices` lists all")


def test_a_cpu_has_published_results():
    results = devices.with_results()
    assert taken("M1 Ultra CPU", catalogue=results) == ("M1 Ultra CPU", "")
    assert taken("AMD Ryzen 9 5950X 16-Core Processor", catalogue=results) == ("Ryzen 9 5950X", "")
    with pytest.raises(PomologyError, match=r"^AMD EPYC: unknown device; `"):
        taken("AMD EPYC", catalogue=results)


# A name -> all devices of its model in any size, in the order of their names.
SIZES = {
    "H200": ["H200 141 GB SXM"],
    "NVIDIA GH200 480GB": ["GH200"],
    "RTX 4000": ["Quadro RTX 4000"],
    "A4000": ["RTX A4000"],
    "M4": ["M4 GPU (10 cores)"],
    "Apple M4 Max": ["M4 Max CPU", "M4 Max GPU", "M4 Max GPU (32 cores)", "M4 Max GPU (40 cores)"],
    "M3 MAX (30-core)": ["M3 Max GPU", "M3 Max GPU (30 cores)", "M3 Max GPU (40 cores)"],
    "m1 pro cpu": ["M1 Pro CPU"],
    "Tesla V100-SXM2-16GB": ["V100", "V100 16 GB", "V100 32 GB"],
    "rtx 3080 mobile": ["RTX 3080 Laptop"],
    "rtx": [],
}


@pytest.mark.parametrize("name", SIZES)
def test_a_name_has_the_sizes_of_its_own_model_only(name):
    assert sorted(devices.sizes(name)) == SIZES[name]


def test_the_stated_size_is_told_from_the_others():
    assert devices.of_size("V100 32GB", devices.sizes("V100")) == ["V100 32 GB"]
    assert devices.of_size("V100-SXM2-32GB", devices.sizes("V100")) == ["V100 32 GB"]
    assert devices.of_size("M3 Max 20 cores", devices.sizes("M3 Max")) == []
    assert devices.of_size("V100 64GB", devices.sizes("V100")) == []
    assert devices.of_size("M2 Max", ["M2 Max GPU (30 cores)"]) == ["M2 Max GPU (30 cores)"]


def test_a_laptop_has_published_results_of_its_own():
    name = "NVIDIA GeForce RTX 3080 Laptop GPU"
    assert taken(name, catalogue=devices.with_results()) == ("RTX 3080 Laptop", "")


def test_the_answer_says_which_size_was_taken_and_how_to_say_another():
    assert taken("rtx 4090").note == taken("NVIDIA A100-SXM4-80GB").note == ""
    only = "M3: taken as M3 GPU (10 cores), the only size with a data sheet"
    assert taken("M3").note == only
    said = "m2 max: taken as M2 Max GPU (30 cores), the smallest with a data sheet; say "
    assert taken("m2 max").note == f"{said}'M2 Max GPU (38 cores)' for the other"
    said = "m2 max 96 GB: taken as M2 Max GPU (38 cores), the size that Macs with 96 GB have"
    assert taken("m2 max 96 GB").note == said
    # Both sizes have 64 GB, and none has 17.
    for memory in ("64 GB", "17 GB"):
        assert "M2 Max GPU (30 cores), the smallest" in taken(f"m2 max {memory}").note
    said = "A100: taken as A100 40 GB PCIe, the smallest with a data sheet; say 'A100 40 GB SXM', "
    assert taken("A100").note == f"{said}'A100 80 GB PCIe' or 'A100 80 GB SXM' for another"
    assert taken("8000").note == "8000: taken as Quadro RTX 8000"
    said = "M4 Max, 40 cores: taken as M4 Max GPU, whose number of cores is not stated"
    assert taken("M4 Max, 40 cores", catalogue=devices.with_results()).note == said


def test_it_is_the_smallest_by_peak_then_bandwidth_then_memory():
    peaks = [
        (float(sheet["fp32_tflops"]), float(sheet["bandwidth_gb_s"]))
        for sheet in devices.sheets().values()
    ]
    assert peaks == sorted(peaks)


# A folder of tests/fixtures/macos -> its device; those of None have no data sheet.
MACS = {"m1": "M1 GPU (7 cores)", "m2-ultra": "M2 Ultra GPU (76 cores)"}
MACS |= {"m4-max": "M4 Max GPU (40 cores)", "m5-max": ""}  # no data sheet
MACS |= {"m5-pro": None, "vm": None}


@pytest.mark.parametrize("mac", MACS)
def test_a_mac_finds_its_own_size(mac, monkeypatch):
    """Names and cores are those of sysctl and system_profiler."""
    name = MACS[mac]
    monkeypatch.setattr(snapshot, "run_command", Mac(mac))
    monkeypatch.setattr(snapshot.sys, "platform", "darwin")
    chip, own = snapshot.chip(), snapshot.gpus()
    if name:
        assert taken(chip, own) == (name, f"{chip}: taken as {name}, this machine's")
        return
    with pytest.raises(PomologyError, match=r"unknown device|has no data sheet"):
        taken(chip, own)


def apple(name, cores):
    return [{"name": name, "memory_bytes": None, "cores": cores}]


def nvidia(name, memory_gb):
    return [{"name": name, "memory_bytes": int(memory_gb * GB), "cores": None}]


def test_a_typed_name_means_this_machines_size_if_it_is_this_machine():
    assert taken("m2 max", apple("Apple M2 Max", 38)).name == "M2 Max GPU (38 cores)"
    assert taken("m2 max", apple("Apple M1 Max", 32)).name == "M2 Max GPU (30 cores)"
    assert taken("m2 max", apple("Apple M2 Max", None)).name == "M2 Max GPU (30 cores)"
    assert taken("M2 Max GPU (30 cores)", apple("Apple M2 Max", 38)).name == "M2 Max GPU (30 cores)"
    assert taken("A100", nvidia("NVIDIA A100-SXM4-80GB", 80)).name == "A100 80 GB SXM"
    assert taken("V100", nvidia("Tesla V100-SXM2-32GB", 31.7)).name == "V100 32 GB"
    both = nvidia("Tesla T4", 14.6) + nvidia("NVIDIA A100-SXM4-80GB", 80)
    assert taken("A100", both).name == "A100 80 GB SXM"
    results = devices.with_results()
    assert taken("M1", apple("Apple M1", 7), results).name == "M1 GPU (7 cores)"
    said = "M3 Max: taken as M3 Max GPU, whose number of cores is not stated"
    assert taken("M3 Max", apple("Apple M3 Max", 30), results) == ("M3 Max GPU", said)


def test_another_size_than_this_machines_is_not_taken_silently():
    said = "Apple M5: this machine has 8 GPU cores; only M5 GPU (10 cores) has a data sheet; "
    said += "`pomology devices` lists all"
    with pytest.raises(PomologyError) as error:
        taken("Apple M5", apple("Apple M5", 8))
    assert str(error.value) == said
    with pytest.raises(
        PomologyError, match="this machine has 12 GB; only RTX 3080 has a data sheet"
    ):
        taken("NVIDIA GeForce RTX 3080", nvidia("NVIDIA GeForce RTX 3080", 12))


# GiB that nvidia-smi reports; ECC takes a part of some.
MEMORY_GB = {"Tesla T4": 15.0, "NVIDIA A10G": 22.5, "NVIDIA L4": 22.5, "Tesla K80": 11.17}
MEMORY_GB |= {"NVIDIA A100-SXM4-80GB": 80.0, "NVIDIA H100 80GB HBM3": 79.6, "NVIDIA A40": 45.0}
MEMORY_GB |= {"NVIDIA H200": 140.4, "NVIDIA RTX A6000": 48.0, "NVIDIA GeForce RTX 4090": 23.99}


@pytest.mark.parametrize("name", MEMORY_GB)
def test_the_memory_that_a_card_reports_is_that_of_its_data_sheet(name):
    assert taken(name, nvidia(name, MEMORY_GB[name])).name == taken(name).name


@pytest.mark.parametrize("catalogue", [devices.with_data_sheet(), devices.with_results()])
def test_each_listed_name_means_itself(catalogue: Catalogue):
    for name in catalogue.names:
        assert taken(name, catalogue=catalogue) == (name, "")
        assert taken(name.upper(), catalogue=catalogue) == (name, "")


def test_each_apple_data_sheet_states_its_cores():
    for line in published.read("datasheets.csv"):
        assert (line["maker"] == "apple") == bool(line["cores"]) == (not line["memory_gb"]), line
        if "cores)" in line["device"]:
            assert f"({line['cores']} cores)" in line["device"]
    # A chip's cores are alike: peaks of one generation are proportional to their number.
    for name, line in devices.sheets().items():
        if line["maker"] == "apple":
            per_core = float(line["fp32_tflops"]) / int(line["cores"])
            assert per_core == pytest.approx(
                {"1": 0.33, "2": 0.358, "3": 0.354, "4": 0.45, "5": 0.425}[name[1]],
                rel=0.06 if name[1] == "5" else 0.05,  # M5: at a measured clock
            )


def test_published_values_are_counted_by_device():
    rows = [*published.rows(), *published.elsewhere()]
    others = [row["device"] for row in rows if not devices.canonical(row["device"], row["role"])]
    assert sum(devices.counts().values()) + len(others) == len(rows)
    assert {"", "NVIDIA GPUs", "M2 Max GPU against P100", "M2 Max; M1"} <= set(others)
    for name in devices.counts():
        assert not any(word in name for word in (";", " and ", " against ")), name
    # By hand, of elsewhere.csv: 25 of RTX 4090; 6 values of article 001 print its full name.
    assert devices.counts()["RTX 4090"] == 25 + 6
    assert devices.counts()["M60"] == 18 and "M60 GPU" not in devices.counts()


def test_a_printed_name_has_one_name_and_a_role_tells_the_cpu_of_a_chip():
    assert devices.canonical("2070 Super CUDA", "rival") == "RTX 2070 Super"
    assert devices.canonical("M2 Max (30 GPU cores)", "gpu") == "M2 Max GPU (30 cores)"
    assert devices.canonical("M2 Max", "gpu") == devices.canonical("M2 MAX") == "M2 Max GPU"
    assert devices.canonical("M2 Max", "cpu") == "M2 Max CPU"
    assert devices.canonical("M1 Pro", "cpu") == "M1 Pro CPU"


def test_two_names_are_of_one_model_in_any_size():
    assert devices.same_model("Apple M1 Pro", "M1 Pro")
    assert devices.same_model("NVIDIA RTX A6000", "A6000")
    assert devices.same_model("NVIDIA A100-SXM4-80GB", "A100 40 GB PCIe")
    assert not devices.same_model("Apple M2 Max", "M2")
    assert not devices.same_model("NVIDIA GeForce RTX 3080 Laptop GPU", "RTX 3080")

"""The pages of devices: who measured what, what is predicted, and how devices compare."""

import base64
import hashlib
import html
import json
import re
import shutil
import zipfile
from collections import Counter

import pytest
from shared_runs import copied, every, honest, zipped

from pomology.__main__ import main
from pomology.articles import devices as names
from pomology.extras.collection import check, evidence, page, shared
from pomology.extras.versus import pairs, predicted
from pomology.measure.estimate import Estimate
from pomology.paths import root
from pomology.results.record import checked

JOURNALS = ("instrument_check", "peaks", "vae", "mlp_cnn_lstm")
GIB = 2**30
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def files():
    """Return the files of a run of the collection: name -> parsed lines."""
    zips = sorted((root() / "collection").glob("amd-epyc-*.zip"))
    with zipfile.ZipFile(max(zips, key=lambda place: place.stat().st_size)) as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    machine = json.loads(texts.pop("machine.json"))
    lines = {name: [json.loads(line) for line in text.splitlines()] for name, text in texts.items()}
    return copied({"machine.json": machine} | lines, JOURNALS)


def m4_max(files, cores, memory_gb, number):
    """Return the run of an M4 Max: its GPU's cases."""
    files = honest(files, number, gpu=True)
    gpu = {"name": "Apple M4 Max", "memory_bytes": None, "cores": cores}
    files["machine.json"] |= {
        "chip": "Apple M4 Max",
        "cpu_cores": 16 if cores == 40 else 14,
        "memory_bytes": memory_gb * GIB,
        "gpus": [gpu],
        "os": "macOS",
        "architecture": "arm64",
    }
    for each in every(files, ok=False):
        each["chip"] = "Apple M4 Max"
        each["backend"] = "mps"
        each["case"] = each["case"].replace("-cuda", "-mps", 1)
        if "flops_per_step" in each:
            each["proof"] = {"rule": 1, "samples": 8, "unseen_weights": 0.02, "steps_after": 4}
    return files


@pytest.fixture(scope="module")
def pages(files, tmp_path_factory):
    """Return the folder of pages of a CPU, two sizes of an M4 Max, and this machine's run."""
    folder = tmp_path_factory.mktemp("collection")
    zipped(folder / "epyc.zip", files)
    zipped(folder / "m4-32.zip", m4_max(files, 32, 36, 4))
    zipped(folder / "m4-40.zip", m4_max(files, 40, 128, 9))
    own = folder / "own"
    own.mkdir()
    for name, lines in honest(files, 6).items():
        every_line = [lines] if name == "machine.json" else lines
        (own / name).write_text("".join(f"{json.dumps(line)}\n" for line in every_line))
    assert main(["collect", "--folder", str(folder), "--run", str(own)]) == 0
    return folder


def text_of(pages, name):
    """Return the words of a device's page."""
    page_text = (pages / "devices" / f"{evidence.slug(name)}.html").read_text(encoding="utf-8")
    body = page_text[page_text.index("<body>") :]
    return html.unescape(re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", body)))


def test_sizes_of_a_chip_have_pages_of_their_own(pages):
    for cores, other, zip_name in ((32, 40, "m4-32.zip"), (40, 32, "m4-40.zip")):
        said = text_of(pages, f"M4 Max GPU ({cores} cores)")
        assert zip_name in said and "1 machine, 1 run, " in said and f"({other} cores)" in said
        assert ("m4-40.zip" in said) != ("m4-32.zip" in said)


def test_a_row_carries_its_proof(pages, files):
    said = text_of(pages, "M4 Max GPU (40 cores)")
    assert re.search(
        r"m4-40\.zip : 2026-\d\d-\d\d, commit [0-9a-f]{8}, profile quick, "
        r"self-check: \d+ of \d+ checks passed(, \d+ without a verdict here)?, "
        r"(\d+) of \2 GPU steps verified against the CPU by rule 1, 2 % of weights blind, "
        r"calibration [+-]\d+ % from first to last case",
        said,
    ), said[:900]
    assert "Checked for consistency, not for truth" in said


def test_what_a_device_does_is_found_on_its_page(pages):
    said = text_of(pages, "M3 Max GPU (40 cores)")
    # Published, with source, year and what is wrong with it; 64 texts, 100 steps, 73 s.
    assert "BERT-base" in said and "73 s" in said and "87.7 sequences/s" in said
    assert "bert-apple-silicon" in said and "2023" in said and "measured once" in said
    assert "ResNet-50 resnet50 64 224, fp32" in said and "images/s" in said
    # The T4 took 120 s and 145 s where it took 73 s and 84 s.
    assert "T4 0.594× (0.579 to 0.608)" in said
    link = (pages / "devices" / "m3-max-gpu-40-cores.html").read_text(encoding="utf-8")
    assert 'href="https://github.com/lucadiliello/' in link
    assert "no shared run yet" in said


def test_this_run_is_shown_next_to_the_others(pages, files):
    chip = honest(files, 6)["machine.json"]["chip"]
    said = text_of(pages, f"{check.cases.short_chip(chip)} CPU (8 cores)")
    assert "this run" in said and "1 machine, 1 run, " in said


def test_the_page_of_all_has_every_device_and_works_without_a_network(pages):
    text = (pages / "index.html").read_text(encoding="utf-8")
    listed = text[text.index('id="devices"') : text.index("<h2>")]
    assert listed.count("<li>") == len(list((pages / "devices").glob("*.html")))
    assert "AMD EPYC CPU (2 cores)" in listed and "Others" in listed
    (script,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and "src=" not in text
    assert "Runs accepted: 3, replaced: 0, refused: 0" in text
    assert "Checked for consistency, not for truth" in text


@pytest.mark.skipif(BROWSER is None, reason="needs a browser: " + " or ".join(BROWSERS))
def test_the_search_wants_all_words_and_ignores_hyphens_and_case(pages):
    playwright = pytest.importorskip("playwright.sync_api")
    named = {
        "h100 sxm": "H100 80 GB SXM",
        "SXM H100": "H100 80 GB SXM",
        "RTX-3090": "RTX 3090",
        "nvidia rtx4090": "RTX 4090",
        "m4-max 40 cores": "M4 Max GPU (40 cores)",
        "i7 8700": "Core i7-8700",
    }
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        window = browser.new_page()
        window.goto((pages / "index.html").as_uri())
        for words, name in named.items():
            window.fill("#search", words)
            shown = window.locator("#devices li:visible a").all_inner_texts()
            assert name in shown and len(shown) < 8, (words, shown)
        window.fill("#search", "h100 epyc")
        assert window.locator("#devices li:visible").count() == 0
        assert window.is_visible("#none")
        browser.close()


def shared_rows(text):
    """Return the rows of a page's shared times: the words, and the numbers of the linked runs."""
    table = text[text.index('id="shared"') :]
    table = table[: table.index("</table>")]
    rows = re.findall("<tr><td>(.*?)</tr>", table, re.DOTALL)
    return [(row.partition("<")[0], re.findall(r'href="#run-(\d+)"', row)) for row in rows]


def test_a_shared_time_links_to_its_runs(files, tmp_path):
    """The truth is which of two zips has which journal."""
    runs = {"full.zip": honest(files, 1), "small.zip": honest(files, 2)}
    del runs["small.zip"]["mlp_cnn_lstm.jsonl"]
    for name, run in runs.items():
        run["machine.json"] |= {"chip": "AMD Ryzen 9 5950X"}
        for each in every(run, ok=False):
            each["chip"] = "AMD Ryzen 9 5950X"
        zipped(tmp_path / name, run)
    page.build(tmp_path)
    text = (tmp_path / "devices" / "amd-ryzen-9-5950x-cpu-8-cores.html").read_text("utf-8")
    items = re.findall(r'<li id="run-(\d+)"><a href="[^"]*?(\w+\.zip)">.*?</a>: (.*?)</li>', text)
    zips = {number: name for number, name, _ in items}
    assert sorted(zips.values()) == ["full.zip", "small.zip"]
    assert all(re.match(r"2026-\d\d-\d\d, commit [0-9a-f]{8}", words) for *_, words in items)
    linked = [(workload, {zips[number] for number in of}) for workload, of in shared_rows(text)]
    of_vae = [names for workload, names in linked if "autoencoder" in workload.casefold()]
    others = [names for workload, names in linked if workload == "mlp_cnn_lstm"]
    assert set().union(*of_vae) == {"full.zip", "small.zip"}, linked
    assert others and all(names == {"full.zip"} for names in others), linked


def test_many_runs_of_a_time_are_folded():
    runs = [run_of(f"{n:02}.zip", 1.0 + n / 100, str(n)) for n in range(14)]
    (pooled,) = shared.pool(runs)
    device = evidence.Device("x", {}, [], [pooled], [], [])
    assert device.numbers(pooled) == list(range(1, 15))


def printed(name):
    """Return the cells of a device's published values without their numbers."""
    return [
        tuple(text for heading, text in row.cells.items() if heading not in NUMBERS)
        for row in evidence._published(name)
    ]


NUMBERS = ("As printed", "Per second")


def test_rows_of_published_values_differ_in_a_cell():
    for name in names.all_names():
        # Values in other units, of which a range has no unit, may share the other cells.
        (_, most) = (Counter(printed(name)).most_common(1) or [("", 1)])[0]
        assert most == 1, name
        values = evidence._published(name)
        assert sum(row.count for row in values) == len(pairs.speeds(name))


def test_values_that_differ_in_the_number_alone_are_a_range(pages):
    """The source has 877, 875, 866, 864 and 858 samples per second."""
    said = text_of(pages, "H100 80 GB SXM")
    assert "858 to 877 samples/s (5 values)" in said
    assert "818 to 863 samples/s (38 values)" in said


def test_a_long_page_has_links_to_its_workloads(pages):
    text = (pages / "devices" / "h100-80-gb-sxm.html").read_text(encoding="utf-8")
    links = re.findall(r'<a href="#(published-[^"]+)">(.*?)</a> \((\d+)\)', text)
    assert len(links) > 10 and text.index(links[0][0]) < text.index('<h2 id="published">')
    assert sum(int(count) for *_, count in links) == len(pairs.speeds("H100 80 GB SXM"))
    for anchor, title, _ in links:
        assert re.search(
            f'<tbody id="{anchor}">\\s*<tr class="published"><td[^>]*>{re.escape(title)}<', text
        )
    anchors = re.findall(r'\bid="([^"]+)"', text)
    assert len(set(anchors)) == len(anchors)


def test_no_link_between_pages_is_dead(pages):
    for path in (pages / "index.html", *(pages / "devices").glob("*.html")):
        for link in re.findall(r'href="([^"#:]+)"', path.read_text(encoding="utf-8")):
            target = (path.parent / link).resolve()
            # The folder of docs is next to that of the collection, in a checkout.
            docs = root() / "docs"
            there = [target, docs / target.name, docs / "how-to" / target.name]
            assert any(each.exists() for each in there), (path.name, link)


def test_every_device_is_in_a_family_that_fits():
    families = {name: evidence.family(name) for name in names.all_names()}
    for name, family in {
        "M4 Max GPU (40 cores)": "Apple M4",
        "M1 CPU": "Apple M1",
        "Quadro M4000": "NVIDIA workstations",
        "RTX 6000 Ada": "NVIDIA workstations",
        "RTX A6000": "NVIDIA workstations",
        "RTX 4090": "NVIDIA GeForce and Titan",
        "Titan V": "NVIDIA GeForce and Titan",
        "T4": "NVIDIA data centers",
        "GH200": "NVIDIA data centers",
        "H100 80 GB SXM": "NVIDIA data centers",
        "MI100": "AMD GPUs",
        "Radeon VII": "AMD GPUs",
        "Core i7-8700": "CPUs",
        "Titan V CPU": "CPUs",
    }.items():
        assert families[name] == family
    assert sorted(name for name in families if families[name] == "Others") == ["Arc A770"]


def time_of(seconds, experiment="vae"):
    values = [Estimate(seconds, "s")]
    common = {"settings": "batch size 64", "precision": "fp32", "framework": "PyTorch"}
    common |= {
        "version": "2.14.1",
        "what": "step",
        "samples": 64,
        "memory": "",
        "day": "2026-11-30",
        "flops_per_s": 0.0,
    }
    return shared.Time(device="M4 CPU (10 cores)", experiment=experiment, values=values, **common)


def run_of(name, seconds, machine, marks=()):
    proof = shared.Proof(40 * "a", "quick", (9, 11, 2), machine, 0, 0, 0, 0.0, None)
    return shared.Run(name, proof, list(marks), [time_of(seconds)])


def test_marked_runs_are_not_pooled_with_others():
    runs = [run_of("a", 1.0, "x"), run_of("b", 3.0, "y"), run_of("c", 9.0, "z", ["few cases"])]
    unmarked, marked = shared.pool(runs)
    assert (
        unmarked.mean.value == pytest.approx(3**0.5)
        and unmarked.counts == "2 machines, 2 runs, 2 processes"
    )
    assert unmarked.value == "1.73 s (1.00 to 3.00 s seen)" and unmarked.rate == "37.0 samples/s"
    assert marked.mean.value == 9.0 and marked.marks == ["few cases"]


def test_runs_of_one_machine_count_as_one_machine():
    runs = [run_of("a", 1.0, "x"), run_of("b", 3.0, "x"), run_of("c", 4.0, "y")]
    (pooled,) = shared.pool(runs)
    # The geometric mean of a machine's runs, and then of the machines.
    assert pooled.mean.value == pytest.approx((3**0.5 * 4) ** 0.5)
    assert pooled.counts == "2 machines, 3 runs, 3 processes"


def test_a_machine_is_the_same_by_its_gigabytes():
    machine = {"chip": "AMD EPYC", "cpu_cores": 2, "memory_bytes": 25_276_510_208, "gpus": []}
    other = machine | {"memory_bytes": 25_276_502_016}
    assert shared.machine_key(machine) == shared.machine_key(other)
    assert shared.machine_key(machine) != shared.machine_key(machine | {"memory_bytes": 2**35})
    cores = [{"name": "Apple M4 Max", "cores": count} for count in (32, 40)]
    keys = {shared.machine_key(machine | {"gpus": [gpu]}) for gpu in cores}
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("chip", "kind", "machine", "name"),
    [
        ("Apple M4 Max", "gpu", {"gpus": [{"name": "Apple M4 Max", "cores": 40}]}, "40 cores"),
        ("Apple M4 Max", "gpu", {"gpus": [{"name": "Apple M4 Max", "cores": None}]}, "M4 Max GPU"),
        ("Apple M4 Max", "cpu", {"cpu_cores": 16}, "M4 Max CPU (16 cores)"),
        ("A100-SXM4-80GB", "gpu", {"gpus": []}, "A100 80 GB SXM"),
        (
            "Tesla V100-SXM2",
            "gpu",
            {"gpus": [{"name": "Tesla V100-SXM2", "memory_bytes": 16 * GIB}]},
            "V100 16 GB",
        ),
        ("RTX 4090", "gpu", {"gpus": [{"name": "NVIDIA GeForce RTX 4090"}]}, "RTX 4090"),
        ("RTX 9999", "gpu", {"gpus": [{"name": "NVIDIA GeForce RTX 9999"}]}, "RTX 9999 GPU"),
        ("AMD EPYC 7B13", "cpu", {"cpu_cores": 8}, "AMD EPYC 7B13 CPU (8 cores)"),
        ("AMD EPYC", "cpu", {}, "AMD EPYC CPU"),
    ],
)
def test_a_measured_device_has_the_name_of_its_size(chip, kind, machine, name):
    assert name in names.measured(chip, kind, machine)


def test_a_larger_size_of_a_chip_is_never_predicted_to_be_slower():
    pairs_of_sizes = [
        ("M1 Max GPU (24 cores)", "M1 Max GPU (32 cores)"),
        ("M3 Max GPU (30 cores)", "M3 Max GPU (40 cores)"),
        ("RTX 4090", "RTX 5090"),
    ]
    for smaller, larger in pairs_of_sizes:
        assert all(ratio.value >= 1 for ratio in predicted.ratios(larger, smaller))
    assert all(predicted.steps(device) for device in names.sheets())


def test_a_ratio_is_the_inverse_of_the_reverse_one():
    every = [*names.all_names()]
    forth = {name: evidence.relatives(name, every) for name in ("Radeon RX 7700S", "GH200")}
    for name, relatives in forth.items():
        for relative in relatives:
            if relative.measured:
                (back,) = evidence.relatives(relative.device, [name])
                assert back.measured[0] * relative.measured[0] == pytest.approx(1)


def test_peaks_and_latencies_are_no_speed_of_training():
    for name in ("RTX 4090", "Quadro RTX 4000", "M2 Ultra GPU (76 cores)"):
        experiments = {speed.work[0] for speed in pairs.speeds(name)}
        assert experiments.isdisjoint({"costs", "kernel_launch", "hardware"})


def test_a_page_needs_no_zip(tmp_path):
    (tmp_path / "zips").mkdir()
    lines = page.build(tmp_path / "zips", tmp_path / "out")
    assert lines == ["Runs accepted: 0, replaced: 0, refused: 0"]
    assert (tmp_path / "out" / "devices" / "t4.html").exists()
    # Also in a folder of the reader's, links lead to the files of the checkout.
    for path in (tmp_path / "out" / "index.html", tmp_path / "out" / "devices" / "t4.html"):
        links = re.findall(r'href="([^"#:]+)["#]', path.read_text(encoding="utf-8"))
        assert "collection.md" in " ".join(links) or "prediction.md" in " ".join(links)
        assert all((path.parent / link).resolve().exists() for link in links), path.name


def test_a_zip_is_linked_from_pages_in_another_folder(tmp_path, files):
    (tmp_path / "zips").mkdir()
    zipped(tmp_path / "zips" / "epyc.zip", files)
    page.build(tmp_path / "zips", tmp_path / "a" / "out")
    path = tmp_path / "a" / "out" / "devices" / "amd-epyc-cpu-2-cores.html"
    (link,) = re.findall(r'href="([^"]+epyc\.zip)"', path.read_text(encoding="utf-8"))
    assert (path.parent / link).resolve() == tmp_path / "zips" / "epyc.zip"


def test_slow_processes_with_few_steps_are_not_left_out_alone(files):
    run = honest(files, 0)
    for each in every(run, "vae"):
        each["flags"] = ["few-steps"] if each["repeat"] > 0 else []
    one = check.Checked("x", run["machine.json"], [], [], set(), check.Traits("x"))
    one.cases.extend(check.checked_case(checked(each)) for each in every(run, "vae"))
    shown = [len(time.values) for time in shared.times(one) if time.experiment == "vae"]
    assert shown == [3, 3, 3]  # two batch sizes in PyTorch, one in MLX; all processes
    for case in one.cases:
        case.record.flags.append("few-steps")
    assert not [time for time in shared.times(one) if time.experiment == "vae"]


def test_a_smaller_variant_has_a_rate_of_work_and_synthetic_data_are_named(files):
    (one, *_) = every(honest(files, 0), "vae")
    one |= {"scaled": True, "data": "stand-in"}
    case = check.checked_case(checked(one))
    time = shared._time(case, {"cpu_cores": 8})
    assert time.settings.endswith("synthetic data, a smaller variant")
    assert not time.samples and time.flops_per_s == one["metrics"]["flops_per_s"]["value"]

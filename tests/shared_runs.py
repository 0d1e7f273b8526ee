"""Shared runs as parsed lines, and simulated ones of other machines."""

import json
import random
import zipfile
from datetime import datetime, timedelta

from pomology.extras.collection import check
from pomology.measure import clock
from pomology.results.record import checked

CHIPS = ("AMD Ryzen 9 5950X", "AMD EPYC 7B13", "Intel Xeon Gold 6148", "AMD Ryzen 7 5800X")


def zipped(place, files):
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            if name == "machine.json":
                archive.writestr(name, json.dumps(content, indent=1))
            else:
                archive.writestr(name, "".join(f"{json.dumps(line)}\n" for line in content))
    return place


def copied(files, journals=None):
    """Return a deep copy of a run's files, or of some of its journals."""
    kept = {name: files[name] for name in files if not journals or name.split(".")[0] in journals}
    return json.loads(json.dumps(kept | {"machine.json": files["machine.json"]}))


def every(files, experiment="", ok=True):
    names = [name for name in files if name != "machine.json" and name.startswith(experiment)]
    return [each for name in names for each in files[name] if not ok or each["status"] == "ok"]


def retime(record, speed, steps=True, noise=lambda: 1.0):
    """Make a record that of a machine of another speed, with all that follows from its raw times.

    A faster machine does more steps in the same seconds, or a whole loop in less (steps=False).
    """
    metrics = record["metrics"]
    more = steps and metrics.get("epoch_s", {}).get("how") != "measured"
    before = check.checked_case(checked(record))
    for raw in record.get("blocks", {}).values():
        for kind in ("warmup", "steady", "ready"):
            for place, (count, seconds) in enumerate(raw.get(kind) or ()):
                now = max(1, round(count * speed)) if more else count
                raw[kind][place] = [now, round(seconds * now / count / speed * noise(), 9)]
                ratio = raw[kind][place][1] / seconds
                for phase in (f"steady_{phase}" for phase in clock.PHASES if kind == "steady"):
                    if phase in raw:
                        raw[phase][place] *= ratio
                if kind != "ready" and "loss_first" in metrics and "epoch_steps" in raw:
                    for name in ("loss_first", "loss_last"):
                        metrics[name]["n"] = max(1, metrics[name]["n"] + now - count)
        for kind in ("first_step_s", "first_call_s", "last_step_s"):
            raw |= {kind: raw[kind] / speed} if raw.get(kind) else {}
    after = check.checked_case(checked(record))
    record["flags"] = sorted({*record["flags"], *after.flags})
    for name, metric in metrics.items():
        time = "step_s" if name == "epoch_s" else check.RATES.get(name)
        old, new = before.rate_s, after.rate_s
        if time:
            old, new = before.recomputed[time].value, after.recomputed[time].value
        factor = new / old if old else 1 / speed
        factor = 1 / factor if name in check.RATES else factor
        if name in after.recomputed and name not in ("epoch_s", "compute_epoch_s"):
            metrics[name] = after.recomputed[name].metric()
        elif name.endswith(("_s", "throughput")) and record["experiment"] != check.INSTRUMENT:
            ends = {end: metric[end] and metric[end] * factor for end in ("value", "low", "high")}
            metrics[name] = metric | ends
    return record


def honest(files, number, gpu=False):
    """Return a simulated run of another machine, with a speed and noise of its own."""
    files = copied(files)
    draw = random.Random(number)
    chip = draw.choice(CHIPS)
    # A chip has a speed, and its own ratios between experiments; its machines differ by little.
    of_chip = random.Random(chip)
    speed = of_chip.uniform(0.6, 4) * draw.lognormvariate(0, 0.05)
    files["machine.json"] |= {"chip": chip, "cpu_cores": 8, "memory_bytes": 2**36}
    if gpu:
        chip, speed = "NVIDIA A100-SXM4-80GB", 55
        files["machine.json"]["gpus"] = [{"name": chip, "memory_bytes": None, "cores": None}]
    for name in sorted(files.keys() - {"machine.json"}):
        usual = of_chip.lognormvariate(0, 0.2)
        own = speed if gpu else speed * usual * draw.lognormvariate(0, 0.05)
        for record in files[name]:
            if gpu:
                case = record["case"].replace("-cpu", "-cuda", 1)
                record |= {"backend": "cuda", "case": case, "device": "gpu"}
            before_s = check.checked_case(checked(record)).spent_s
            retime(record, own, noise=lambda: draw.lognormvariate(0, 0.01))
            more_s = check.checked_case(checked(record)).spent_s - before_s
            record |= {"chip": chip, "seconds": record["seconds"] + more_s}
            ratio = 1 + more_s / before_s if before_s else 1
            record["trace"] = [[row[0] * ratio, *row[1:]] for row in record.get("trace", ())]
    # Later than the run that it is made of, and not by more than a clock may be wrong.
    began = min(each["started"] for each in every(files, ok=False))
    now = datetime.fromisoformat(began) + timedelta(hours=number)
    for record in sorted(every(files, ok=False), key=lambda each: each["started"]):
        record["started"] = f"{now:%Y-%m-%dT%H:%M:%SZ}"
        now += timedelta(seconds=record["seconds"] + 0.5)
    return files

"""Published fine-tunings, rows of articles/data/finetuning.csv, as plans."""

from __future__ import annotations

from pomology.articles import published
from pomology.extras.fit import networks
from pomology.extras.fit.plan import Plan

FILE = "finetuning.csv"
# Names of the linear layers in the models of the Llama and Qwen families.
LINEAR = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
STATED = ("model", "method", "sequence", "batch", "precision", "tokens_per_s")


def rows() -> tuple[dict[str, str], ...]:
    """Return the rows as text."""
    return published.read(FILE)


def planned(row: dict[str, str]) -> Plan:
    """Return the plan of a row, with the command's defaults where it is empty."""
    return Plan(
        method=row["method"],
        rank=int(row["rank"] or 8),
        sequence=round(float(row["sequence"])),
        batch=int(row["batch"]),
        precision="fp32" if row["precision"] == "tf32" else row["precision"],
        checkpointing=row["checkpointing"] == "true",
        framework="mlx" if row["framework"] == "mlx" else "torch",
        targets=row["targets"].replace("all-linear", LINEAR),
        layers=int(row["layers"] or 0),
        dropout=float(row["dropout"] or 0),
        loss=row["loss"] or "default",
        amp=row["path"] == "amp",
        upcast=row["path"] == "k-bit",
        accumulation=int(row["accumulation"] or 1),
        # All are of transformers 4.
        small_experts=row["method"] == "qlora"
        and row["framework"] != "mlx"
        and networks.has_experts(row["model"]),
    )


def author(row: dict[str, str]) -> str:
    """Return the owner of a row's source: `github.com/QwenLM/Qwen`."""
    return "/".join(row["source"].split("/")[2:5])


def lora() -> list[dict[str, str]]:
    """Return the rows of LoRA that state what their prediction needs, and the device."""
    return [
        row
        for row in rows()
        if row["method"] == "lora" and row["device"] and all(row[name] for name in STATED)
    ]

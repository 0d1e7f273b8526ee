"""The trainings of all notebooks, small enough for the tests."""

from notebook_code import definitions

from pomology.data import photographs
from pomology.models.workload import Workload

# Notebook, with a word if it has several -> its workload, and the samples of a counted step.
WORKLOADS = {
    "vae": ("vae", 8),
    "siamese": ("siamese", 4),
    "dcgan": ("dcgan", 4),
    "transformer_lm": ("language_model(200, 2, 200)", 4),
    "rasbt_vgg16": ("rasbt_vgg16", 2),
    "sustained_load": ("transformer", 2),
    "resnet50": ("classifier()", 2),
    "bert_base": ("classifier(16)", 2),
    "gpt2_small": ("language_model(16)", 2),
    "model_sizes": ('workload("resnet18", 64)', 2),
    "simclr": ("simclr", 4),
    "device_check": ("perceptron", 4),
    "device_check-chart": ("network('resnet50', 'training')", 2),
    "capabilities": ("resnet(64, 0.01)", 4),
    "capabilities-article": ("article_workloads(0.01)['simclr'].workload", 4),
    "energy": ("workload(SMALL)", 2),
    "gpt2_pretraining": ('workload(gpt2.shape("gpt2-micro", 64, architecture))', 2),
    "gpt2_finetuning": ("workload('gpt2-smoke', False, 'none')", 2),
    "gpt2_finetuning-lora": ("workload('gpt2-smoke', True, 'none')", 2),
    "lora": ('workload("smoke", 16, "fp32")', 2),
    "memory": ("in_pytorch(64)", 64),
    "whisper_finetuning": ("workload(row('whisper-smoke', 2))", 2),
    "whisper_pretraining": ("workload({'model': 'whisper-smoke', 'precision': 'fp32'})", 2),
}
# Notebook -> the same workload in bf16 by autocast, and in fp32.
IN_HALF = {
    "resnet50": ("classifier('bf16', 'mps')", "classifier()"),
    "whisper_pretraining": (
        "workload({'model': 'whisper-smoke', 'precision': 'fp16'}, 'mps')",
        "workload({'model': 'whisper-smoke', 'precision': 'fp32'})",
    ),
    "bert_base": ("classifier(16, 'bf16', 'mps')", "classifier(16)"),
    "gpt2_small": ("language_model(16, 'bf16', 'mps')", "language_model(16)"),
}
SAMPLES = {"photographs": range(photographs.LSUN_CLASSROOM_IMAGES), "pairs": range(60_000)}
SAMPLES |= {"train_set": range(60_000)}


def of_notebook(name: str) -> tuple[Workload, int]:
    expression, batch_size = WORKLOADS[name]
    return eval(expression, definitions(name.partition("-")[0], **SAMPLES)), batch_size

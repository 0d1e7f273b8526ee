"""Which models fit a machine by count."""

from records import metric, record

from pomology.views import model_memory


def counted(model, needed_gb, free_gb=16.0, repeat=0, **more):
    sizes = {"needed_bytes": needed_gb, "free_bytes": free_gb, "theoretical_bytes": 1.0}
    metrics = {name: metric(1e9 * size, unit="B") for name, size in sizes.items()}
    config = {"model": model, "batch_size": 4}
    return record("model_memory", metrics, config, repeat=repeat, **more)


def test_models_that_fit_and_others_are_named_with_both_sizes_and_without_flags():
    sizes = {"whisper-medium": 12.0, "whisper-large": 30.0, "gpt2-large": 13.5, "gpt2-xl": 16.0}
    records = [counted(name, size, flags=["busy", "slowed"]) for name, size in sizes.items()]
    assert model_memory.fitting(records) == (
        "By count 3 of 4 models fit the free memory of the Apple M9 CPU: whisper-medium at batch "
        "size 4 (needs 12.0 GB, 16.0 GB free), gpt2-large at batch size 4 (needs 13.5 GB, 16.0 GB "
        "free) and gpt2-xl at batch size 4 (needs 16.0 GB, 16.0 GB free). Too large is "
        "whisper-large at batch size 4 (needs 30.0 GB, 16.0 GB free)."
    )


def test_free_memory_is_that_of_the_last_repeat_and_a_smoke_run_has_no_answer():
    repeats = [counted("gpt2-xl", 20.0, 24.0), counted("gpt2-xl", 20.0, 18.0, repeat=1)]
    assert model_memory.fitting(repeats) == (
        "By count none of 1 model fits the free memory of the Apple M9 CPU. Too large is gpt2-xl "
        "at batch size 4 (needs 20.0 GB, 18.0 GB free)."
    )
    assert model_memory.fitting([counted("gpt2-xl", 20.0, profile="smoke")]) == ""

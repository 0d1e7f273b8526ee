"""The lines of a journal: what is known before a case begins, and of a finished one."""

METRIC = {"value": 2.5, "unit": "s", "low": 2.25, "high": 2.75, "n": 40, "how": "estimated"}
STARTED = {"event": "start", "schema": 1, "experiment": "vae", "article": "003", "case": "a"}
STARTED |= {"config": {"lr": 1}, "framework": "torch", "framework_version": "2.13.0"}
STARTED |= {"backend": "cpu", "device": None, "chip": "Apple M2", "precision": "fp32"}
STARTED |= {"profile": "quick", "data": "stand-in", "scaled": False, "repeat": 0, "threads": 24}
STARTED |= {"power_source": "ac", "started": "2026-01-02T03:04:05Z"}
ENDED = STARTED | {"event": "end", "device": "cpu", "parameters": 652824}
ENDED |= {"flops_per_step": 501350400, "flags": ["few-steps"], "status": "ok", "reason": None}
ENDED |= {"seconds": 12.5, "metrics": {"epoch_s": METRIC}}

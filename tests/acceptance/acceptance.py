"""What `make acceptance` runs: the accuracy figures that the jobs rest on. About a minute; exit 1 on a miss.

- twenty quickstart sweeps, fresh secrets: every winner at least 82%, at least 17 of 20 at least 83.5% (exact hold-out accuracy);
- Adult logistic without tuning at epsilon 2: at least 83.5%;
- Fashion-MNIST softmax without tuning at epsilon 2, clip norm 1: at least 82.5%.
Trials run in this process through the worker that Ray runs; Ray itself is tested in tests/e2e. Exact accuracies are read from
sealed diagnostics, which is fair on benchmarks and would not be on private data.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from sweeper import seeds
from sweeper.catalog import load_spec
from sweeper.launch.candidate import trial_spec
from sweeper.launch.open_data import OpenData
from sweeper.launch.worker import Worker
from sweeper.planning import Plan, plan
from sweeper.seeds import SWEEP, Streams
from sweeper.store.home import Home

ROOT = Path(__file__).resolve().parents[2]


def opened(job: str) -> tuple[Plan, Worker]:
    priced = plan(load_spec(ROOT / "jobs" / job))
    home = Home().ensure()
    source = priced.spec.data.source
    source.fetch(str(home.cache))
    return priced, Worker(OpenData.of(priced.spec.data, source.load(str(home.cache))))


def winner(priced: Plan, worker: Worker, secret: bytes) -> float:
    """Exact hold-out accuracy of the trial with the best noisy score."""
    sweep = Streams(secret, SWEEP)
    count = priced.spec.protocol.draw_count(sweep.bits(seeds.COUNT).uniforms())
    uniforms = sweep.bits(seeds.CANDIDATES).uniforms()
    results = []
    for index in range(count):
        trial = trial_spec(priced.spec, priced.noise_multiplier, index, priced.spec.space.draw(uniforms))
        results.append(worker.run(trial, Streams(secret, index)))
    best = max(results, key=lambda r: -1.0 if r.released["score"] is None else r.released["score"])
    return float(best.sealed["correct"]) / priced.holdout_rows


def main() -> int:
    torch.set_num_threads(1)
    wrong = []
    priced, worker = opened("adult_logistic_clip.yaml")
    found = []
    for turn in range(20):
        found.append(winner(priced, worker, seeds.new_secret()))
        print(f"quickstart sweep {turn + 1:2}: {found[-1]:.4f}", flush=True)
    good = sum(accuracy >= 0.835 for accuracy in found)
    print(f"quickstart: lowest {min(found):.4f}, {good} of 20 at least 0.835")
    if min(found) < 0.82 or good < 17:
        wrong.append("quickstart")
    for job, least in (("adult_logistic_no_tuning.yaml", 0.835), ("fashion_softmax_no_tuning.yaml", 0.825)):
        priced, worker = opened(job)
        accuracies = [winner(priced, worker, seeds.new_secret()) for _ in range(3)]
        print(f"{job}: {', '.join(f'{a:.4f}' for a in accuracies)} (at least {least})", flush=True)
        if min(accuracies) < least:
            wrong.append(job)
    print("missed: " + ", ".join(wrong) if wrong else "all reached")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

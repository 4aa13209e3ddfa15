"""Folders for the tests of the report: real short runs, and a comparison's file by its contract."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np

import biadam
from biadam import record, solvers, tasks

METHODS = ("biadam_tracked", "soba")
SEEDS = (0, 1)


def runs(folder):
    """Real runs of both methods and seeds in folder/METHOD/seedN; they share a program a method."""
    task = tasks.hyper_cleaning("digits", train=60, validation=40, batch=16)
    for name in METHODS:
        method = task.build(name, getattr(solvers, name))
        for seed in SEEDS:
            result = biadam.run(
                task.problem,
                method,
                task.source_for(name),
                task.x0,
                task.y0,
                steps=60,
                every=10,
                key=jax.random.key(seed),
                metrics=task.curves,
            )
            record.save(folder / name / f"seed{seed}", task, name, {}, seed, result)
    return folder


def alter(folder, change, **arrays):
    """Rewrite a run with another summary and other arrays."""
    run = record.load(folder)
    (folder / "run.json").write_text(json.dumps({**run.summary, **change}))
    np.savez_compressed(folder / "arrays.npz", **{**run.arrays, **arrays})


def spread(*values):
    return {
        "mean": float(np.mean(values)),
        "low": min(values),
        "high": max(values),
        "values": list(values),
    }


def comparison(real, folder, noise=0.6, **change):
    """A comparison of real runs, one method that diverged, one refused and one that is lost."""
    shutil.copytree(real, folder)
    for seed in SEEDS:
        shutil.copytree(real / "soba" / f"seed{seed}", folder / "vr_biadam" / f"seed{seed}")
        gone = np.full(7, np.nan)
        gone[0] = 2.3
        alter(
            folder / "vr_biadam" / f"seed{seed}",
            {"outcome": "diverged", "metrics": {"validation_loss": None}},
            curve_validation_loss=gone,
        )
    methods = [
        {
            "solver": name,
            "group": group,
            "setting": {"step_size": "(0.1, 0.1)"},
            "tried": tried,
            "diverged_settings": 3,
            "refused": "",
            "note": "",
            "metrics": {
                "validation_loss": spread(loss, loss + 0.02),
                "test_accuracy": spread(accuracy, accuracy + 0.002),
            },
            "steps_per_second": 12_345.6,
            "seconds": 2.0,
            "compile_seconds": 1.25,
            "other_seconds": 7.0,
            "diverged": 0,
            "targets": [
                {"value": 1.0, "seconds": 0.25, "oracle_calls": 1000},
                {"value": 0.5, "seconds": None, "oracle_calls": None},
            ],
            "equal_calls": {"calls": 4_000.0, **spread(loss + 0.1, loss + 0.14)},
            "runs": [f"{name}/seed{seed}" for seed in SEEDS],
        }
        for name, group, tried, loss, accuracy in (
            ("soba", "other", 9, 0.50, 0.880),
            ("biadam_tracked", "paper", 25, 0.40, 0.900),
        )
    ]
    methods += [
        {
            "solver": "vr_biadam",
            "group": "paper",
            "setting": {"step_size": "(1.0, 1.0)"},
            "tried": 25,
            "diverged_settings": 25,
            "metrics": {"validation_loss": {"mean": None, "low": None, "high": None}},
            "steps_per_second": None,
            "diverged": 2,
            "runs": ["vr_biadam/seed0", "vr_biadam/seed1"],
        },
        {"solver": "stable", "group": "paper", "refused": "its matrix has no room", "runs": []},
        {
            "solver": "f2sa",
            "group": "other",
            "note": "judged at y*(x)",
            "metrics": {"validation_loss": spread(0.45, 0.45)},
            "runs": ["f2sa/seed0"],
        },
    ]
    summary = {
        "kind": "comparison",
        "format": 1,
        "task": "hyper-cleaning",
        "data": "digits",
        "options": {"noise": noise, "validation": 5000},
        "metric": "validation_loss",
        "largest": False,
        "budget": {"kind": "seconds", "amount": 2.0},
        "tuning_seeds": [100, 101],
        "seeds": list(SEEDS),
        "command": f"biadam compare hyper-cleaning --noise {noise}",
        "environment": {"biadam": "0.1.0", "cores": 2},
        "references": [
            {"name": "uniform weights", "metrics": {"validation_loss": 1.5, "test_accuracy": 0.7}},
            {
                "name": "the clean set alone",
                "metrics": {"validation_loss": 0.3, "test_accuracy": 0.905},
            },
        ],
        "methods": methods,
        **change,
    }
    (folder / "comparison.json").write_text(json.dumps(summary))
    return folder


def edit(folder, **change):
    """Rewrite fields of a comparison."""
    file = Path(folder) / "comparison.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    return folder

"""Fuzzes for as long as wanted: ``scripts/fuzz --help``.

Three targets, each in processes of its own, so that a fault of any kind is seen and kept:

``list``    a dispatch list's bytes, guided by coverage (atheris)
``pte``     a ``.pte`` file's bytes, guided by coverage (atheris)
``replay``  valid lists, mutated by their structure, loaded and run on the default device

A fault is what is no named error: another exception, a crash, more than 10 s for one input, more
than 1.5 GB. Its input goes to the folder ``--out``; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

#: Mutated lists that one process replays.
BATCH = 2000
SECONDS_AN_INPUT = 10
MEGABYTES = 1500


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--target", choices=("list", "pte", "replay"), action="append")
    parser.add_argument("--minutes", type=float, default=10, help="for each target (10)")
    parser.add_argument("--seed", type=int, default=0, help="first seed of replay")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="corpus and faults")
    options = parser.parse_args()
    faults = 0
    for target in options.target or ("list", "pte", "replay"):
        out = options.out / target
        (out / "corpus").mkdir(parents=True, exist_ok=True)
        run = replay if target == "replay" else guided
        inputs, found = run(target, out, options.minutes * 60, options.seed)
        print(f"{target}: {inputs} inputs, {found} faults" + (f", in {out}" if found else ""))
        faults += found
    return 1 if faults else 0


def guided(target: str, out: Path, seconds: float, seed: int) -> tuple[int, int]:
    """(inputs, faults) of a target under atheris, started again after each fault."""
    from seeds import seeds

    for i, data in enumerate(seeds(target)):
        (out / "corpus" / f"seed-{i}").write_bytes(data)
    inputs = faults = 0
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 1:
        done = subprocess.run(
            [
                *(sys.executable, __file__, "--worker", target, str(out / "corpus")),
                *(f"-max_total_time={int(left)}", f"-timeout={SECONDS_AN_INPUT}"),
                *(f"-rss_limit_mb={MEGABYTES}", "-max_len=65536", "-print_final_stats=1"),
                f"-artifact_prefix={out}/",
            ],
            capture_output=True,
            text=True,
            errors="replace",
        )
        counted = [int(n) for n in re.findall(r"(?:units:|^#)\s*(\d+)", done.stderr, re.M)]
        inputs += max(counted, default=0)
        if done.returncode == 0:
            break
        if not counted:
            raise SystemExit(f"the fuzzer did not start:\n{done.stdout}\n{done.stderr[-2000:]}")
        faults += 1
        print(done.stdout[-2000:], done.stderr[-1500:])
    return inputs, faults


def guided_worker(target: str, arguments: list[str]) -> None:
    """One process of atheris."""
    import atheris

    with atheris.instrument_imports(
        include=["executorch_wgpu.serialization", "executorch_wgpu.runtime", "flatbuffers"]
    ):
        import targets

    atheris.Setup([sys.argv[0], *arguments], getattr(targets.TARGETS, target))
    atheris.Fuzz()


def replay(target: str, out: Path, seconds: float, seed: int) -> tuple[int, int]:
    """(inputs, faults) of mutated lists on the default device."""
    inputs = faults = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            state = Path(folder) / "input"
            worker = subprocess.Popen(
                [sys.executable, __file__, "--worker", target, str(seed), str(BATCH), str(state)],
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            try:
                _, errors = worker.communicate(timeout=max(60, min(end - time.monotonic(), 600)))
            except subprocess.TimeoutExpired:
                worker.kill()
                errors = "no end"
                worker.wait()
                if time.monotonic() >= end:
                    break
            done = BATCH
            if worker.returncode:
                last = int(state.with_suffix(".seed").read_text())
                done = last - seed + 1
                faults += 1
                if state.exists():
                    (out / f"replay-{last}").write_bytes(state.read_bytes())
                (out / f"replay-{last}.txt").write_text(errors)
                print(f"seed {last}: {errors[-1500:]}")
            inputs += done
            seed += done
    return inputs, faults


def replay_worker(seed: int, count: int, state: Path) -> None:
    """One process that replays ``count`` lists; ``state`` has the one at hand."""
    from mutations import mutate
    from seeds import seed_programs
    from targets import replay as replay_one

    from executorch_wgpu.runtime.device import default_device
    from executorch_wgpu.serialization import InvalidProgramError, serialize

    device, bases = default_device(), seed_programs()
    for number in range(seed, seed + count):
        rng = random.Random(number)
        base = rng.choice(bases)
        program = mutate(base, rng)
        state.with_suffix(".seed").write_text(str(number))
        state.unlink(missing_ok=True)
        try:
            data = serialize(program)
        except InvalidProgramError:
            continue
        state.write_bytes(data)
        # A shader that was mutated may never end: it is compiled, not run.
        replay_one(program, device, run=program.shaders == base.shaders)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        kind, rest = sys.argv[2], sys.argv[3:]
        if kind == "replay":
            replay_worker(int(rest[0]), int(rest[1]), Path(rest[2]))
        else:
            guided_worker(kind, rest)
    else:
        sys.exit(main())

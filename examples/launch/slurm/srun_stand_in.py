"""Stands in for Slurm's srun, on one host: it starts each task of a step here.

It knows those options of srun that waybill.sbatch gives, and refuses nodes that the job has not got. It appends its
arguments, as JSON, to the file SRUN_LOG.
"""

import argparse
import json
import os
import signal
import subprocess
import sys


def parse(arguments):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--kill-on-bad-exit", type=int, choices=[0, 1], default=0)
    parser.add_argument("--relative", type=int, default=0)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--ntasks", type=int, required=True)
    parser.add_argument("--ntasks-per-node", type=int, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    step = parser.parse_args(arguments)
    if step.relative + step.nodes > int(os.environ["SLURM_JOB_NUM_NODES"]):
        parser.error("more nodes than the job has got")
    if step.ntasks != step.nodes * step.ntasks_per_node:
        parser.error("--ntasks is not --nodes times --ntasks-per-node")
    return step


def start(step, index):
    node, local = divmod(index, step.ntasks_per_node)
    environment = {
        "SLURM_LOCALID": local,
        "SLURM_NODEID": node,
        "SLURM_NTASKS": step.ntasks,
        "SLURM_NTASKS_PER_NODE": step.ntasks_per_node,
        "SLURM_PROCID": index,
    }
    texts = {name: str(value) for name, value in environment.items()}
    return subprocess.Popen(step.command, env={**os.environ, **texts})


def main():
    with open(os.environ["SRUN_LOG"], "a") as log:
        log.write(json.dumps(sys.argv[1:]) + "\n")
    step = parse(sys.argv[1:])
    tasks = {}
    ending = []

    def end(*_):
        ending.append(True)
        for task in list(tasks.values()):
            task.terminate()

    signal.signal(signal.SIGTERM, end)
    for index in range(step.ntasks):
        task = start(step, index)
        tasks[task.pid] = task
        if ending:
            task.terminate()
    worst = 0
    for _ in range(step.ntasks):
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        tasks.pop(pid).returncode = code
        worst = worst or (code if code >= 0 else 128 - code)
        if code != 0 and step.kill_on_bad_exit:
            end()
    return worst


if __name__ == "__main__":
    sys.exit(main())

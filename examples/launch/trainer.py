"""Trains on several ranks, each of which has some rows of the weights: start `python trainer.py` once per rank.

WAYBILL_CONTROLLER says where the controller is, WAYBILL_TOKEN is the job's secret, and RANK and WORLD_SIZE say who this is.
"""

import os
from array import array

import waybill

ROWS, COLUMNS = 64, 256


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    begin, end = rank * ROWS // world, (rank + 1) * ROWS // world
    weights = array("f", [0.0] * ((end - begin) * COLUMNS))
    rows = memoryview(weights).cast("B").cast("f", (end - begin, COLUMNS))
    controller = os.environ["WAYBILL_CONTROLLER"]
    with waybill.Trainer(controller) as trainer:
        trainer.add("w", rows, box=[(begin, end), (0, COLUMNS)], shape=(ROWS, COLUMNS))
        trainer.join()
        first = (
            waybill.query(controller)["committed_version"] + 1
        )  # 1, or where a restarted job goes on.
        for version in range(first, int(os.environ.get("VERSIONS", "3")) + 1):
            for i in range(len(weights)):
                weights[i] = version / 2  # A real trainer takes a step here.
            publish = trainer.publish(version, deadline=120.0)
            publish.committed.wait()
            if rank == 0:
                print(f"trainers: version {version} is shown", flush=True)
        rows.release()


if __name__ == "__main__":
    main()

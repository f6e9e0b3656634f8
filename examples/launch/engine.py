"""Serves on several ranks, each of which has some columns of the weights: start `python engine.py` once per rank.

WAYBILL_CONTROLLER says where the controller is, WAYBILL_TOKEN is the job's secret, and RANK and WORLD_SIZE say who this is in
its group, WAYBILL_GROUP. The ranks of a group switch versions together. A real engine is a group.
"""

import os

import waybill

ROWS, COLUMNS = 64, 256


def main():
    group = os.environ["WAYBILL_GROUP"]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    begin, end = rank * COLUMNS // world, (rank + 1) * COLUMNS // world
    box = [(0, ROWS), (begin, end)]
    with waybill.Worker(os.environ["WAYBILL_CONTROLLER"], group=group, ask=["commit"]) as worker:
        worker.add(
            "w",
            shape=(ROWS, end - begin),
            dtype="float32",
            parts=[waybill.Part("w", (ROWS, COLUMNS), box)],
        )
        worker.join()
        for event in worker.events():  # Until the job ends.
            if isinstance(event, waybill.Commit):
                with worker.snapshot() as snapshot:
                    found = set(snapshot.memory("w").cast("f"))
                print(f"{group}, rank {rank}: version {event.version}: {found}", flush=True)
                event.shown()
                if event.version == int(os.environ.get("VERSIONS", "0")):
                    break


if __name__ == "__main__":
    main()

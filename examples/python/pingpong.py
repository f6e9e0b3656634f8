"""Moves four floats: `pingpong.py trainer HOST:PORT` sends, `pingpong.py worker HOST:PORT` shows."""

import sys
import time
from array import array

import waybill


def main(role, address):
    weights = array("f", [0.0] * 4)
    if role == "trainer":
        with waybill.Trainer(address) as trainer:
            trainer.add("w", weights)
            trainer.join()
            for i in range(4):
                weights[i] = i + 0.5
            trainer.publish(version=int(time.time())).committed.wait()
    else:
        with waybill.Worker(address, mode="in-place") as worker:
            worker.add("w", weights)
            worker.join()
            for event in worker.events():
                if isinstance(event, waybill.Prepare):
                    event.ready()
                elif isinstance(event, waybill.Commit):
                    event.shown()
                    break
    print(f"{role}:", *weights)  # The rank has left, and the memory is ours again.


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: pingpong.py trainer|worker HOST:PORT")
    main(*sys.argv[1:])

"""A trainer and a worker in one process: a tensor changes here, and then it has changed there.

python ping.py
"""

import threading

import numpy
import waybill

weights = numpy.zeros((4, 3), dtype=numpy.float32)  # The trainer's; never copied to be sent.
shown = numpy.zeros((4, 3), dtype=numpy.float32)  # The worker's; written to directly.


def serve(worker):
    """What an inference engine does between its requests."""
    worker.join()
    for event in worker.events():
        if isinstance(event, waybill.Prepare):
            event.ready()  # Nobody reads `shown` from here on,
        elif isinstance(event, waybill.Commit):
            print(f"version {event.version}:", *shown[0])
            event.shown()  # and now they do again.


def main():
    with (
        waybill.Controller(listen="127.0.0.1:0") as controller,
        waybill.Trainer(controller.address) as trainer,
        waybill.Worker(controller.address, mode="in-place") as worker,
    ):
        trainer.add("weights", weights)
        worker.add("weights", shown)
        serving = threading.Thread(target=serve, args=[worker])
        serving.start()
        trainer.join()
        for version in (1, 2, 3):
            weights[:] += 1.5
            trainer.publish(version, deadline=30).committed.wait()
        worker.leave()
        serving.join()


if __name__ == "__main__":
    main()

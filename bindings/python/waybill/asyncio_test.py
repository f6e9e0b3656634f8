# SPDX-License-Identifier: Apache-2.0
"""On a loop of asyncio, joining, publishing and events let everything else run."""

import asyncio

import numpy
import pytest
from one_process_job import PATIENCE, Job

import waybill


def pair(job, **options):
    trainer, worker = job.trainer(), job.worker(**options)
    weights, shown = numpy.zeros((8, 4), numpy.float32), numpy.zeros((8, 4), numpy.float32)
    trainer.add("w", weights)
    worker.add("w", shown)
    return trainer, worker, weights, shown


async def serve(worker, seen, last):
    async for event in worker:
        seen.append((type(event), event.version))
        if isinstance(event, waybill.Prepare):
            event.ready()
        elif isinstance(event, waybill.Arrived):
            event.accept()
        elif isinstance(event, waybill.Commit):
            event.shown()
            if event.version == last:
                return


async def run(job):
    asked = ("prepare", "arrived", "commit")
    trainer, worker, weights, shown = pair(job, mode="in-place", ask=asked)
    await asyncio.gather(trainer.join_async(PATIENCE), worker.join_async(PATIENCE))
    seen = []
    serving = asyncio.ensure_future(serve(worker, seen, 3))
    for version in (1, 2, 3):
        weights[:] = version
        publish = trainer.publish_async(version)
        await publish.sent
        await publish.committed
        assert publish.sent.done and publish.committed.done
        assert shown.min() == shown.max() == version
    await serving
    kinds = [waybill.Prepare, waybill.Arrived, waybill.Commit]
    assert seen == [(kind, version) for version in (1, 2, 3) for kind in kinds]


def test_a_job_on_one_loop():
    with Job() as job:
        asyncio.run(asyncio.wait_for(run(job), PATIENCE))


def test_a_refusal_reaches_who_waits_for_the_commit():
    async def refuse(job):
        trainer, worker, _, _ = pair(job, mode="in-place", ask=("prepare",))
        await asyncio.gather(trainer.join_async(), worker.join_async())
        publish = trainer.publish_async(1)
        async for event in worker:
            if isinstance(event, waybill.Prepare):
                event.refuse("warming up")
            else:
                assert isinstance(event, waybill.Abort)
                assert "warming up" in str(event.reason)
                break
        with pytest.raises(waybill.WaybillError, match="warming up"):
            await publish.committed
        with pytest.raises(waybill.WaybillError, match="warming up"):
            await publish.sent

    with Job() as job:
        asyncio.run(asyncio.wait_for(refuse(job), PATIENCE))


def test_a_cancelled_publish():
    async def cancel(job):
        trainer, worker, _, _ = pair(job, mode="in-place", ask=("prepare",))
        await asyncio.gather(trainer.join_async(), worker.join_async())
        publish = trainer.publish_async(1)
        async for event in worker:
            if isinstance(event, waybill.Prepare):
                publish.cancel()
            else:
                break
        with pytest.raises(waybill.Cancelled) as cancelled:
            await publish.sent
        assert cancelled.value.scope is waybill.Scope.UPDATE

    with Job() as job:
        asyncio.run(asyncio.wait_for(cancel(job), PATIENCE))


def test_a_lost_controller_is_an_event():
    async def lose(job):
        trainer, worker, _, _ = pair(job, mode="shadow-copy")
        await asyncio.gather(trainer.join_async(), worker.join_async())
        job.controller.close()
        for rank in (trainer, worker):
            async for event in rank:
                if isinstance(event, waybill.GroupJoined):
                    continue
                assert isinstance(event, waybill.Disconnected)
                assert isinstance(event.reason, waybill.Unavailable)
                break

    with Job() as job:
        asyncio.run(asyncio.wait_for(lose(job), PATIENCE))

// SPDX-License-Identifier: Apache-2.0

//! Who may touch lent memory when.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;

use waybill::*;

use crate::job::*;

#[test]
fn memory_that_is_being_written_is_not_published() {
    let job = Job::joined(JobOptions::default());
    let writing = job.memory[0].write().unwrap();
    assert_says(
        job.trainers[0].publish(1, &committed()),
        Code::FailedPrecondition,
        r#"region "trained": it is being written"#,
    );
    drop(writing);
    let _reading = job.memory[0].read().unwrap(); // Does not disturb.
    job.trainers[0].publish(1, &committed()).unwrap();
}

#[test]
fn a_guard_that_is_leaked_keeps_the_memory() {
    let job = Job::joined(JobOptions::default());
    std::mem::forget(job.memory[0].write().unwrap());
    let published = job.trainers[0].publish(1, &committed());
    assert_says(published, Code::FailedPrecondition, "it is being written");
}

#[test]
fn who_writes_waits_for_the_end_of_a_publish() {
    let job = Job::joined(JobOptions {
        ask: Ask::PREPARE,
        ..Default::default()
    });
    job.fill(1);
    let update = job.trainers[0].publish_async(1, &committed()).unwrap();
    let Some(Event::Prepare(asked)) = job.workers[0].next_event(PATIENCE) else {
        panic!();
    };
    let written = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            job.fill(2);
            written.store(true, Ordering::SeqCst);
        });
        assert!(!written.load(Ordering::SeqCst));
        asked.accept().unwrap();
        assert!(update.wait().is_ok());
    });
    job.assert_shows(0, 1);
}

#[test]
fn a_workers_memory_is_its_own_until_it_and_its_snapshots_are_gone() {
    let mut job = Job::joined(JobOptions {
        mode: Mode::InPlace,
        ..Default::default()
    });
    job.publish(2).unwrap();
    let refused = Code::FailedPrecondition;
    assert_says(job.regions[0].read(), refused, "take a snapshot");
    assert_says(job.regions[0].write(), refused, "alone writes it");
    let who = rank(&job.address, 0, 1);
    let held = manifest(0, ROWS);
    let lent = [job.regions[0].lend()];
    let trainer = Trainer::new(&who, &held, &lent, &Default::default());
    assert_says(trainer, refused, "it is a worker's");

    let snapshot = job.workers[0].snapshot("test").unwrap();
    job.workers.clear();
    assert_says(job.regions[0].write(), refused, "alone writes it");
    drop(snapshot);
    assert_eq!(job.regions[0].read().unwrap()[1], element(2, 1));
}

#[test]
fn what_a_trainer_has_no_worker_gets() {
    let job = Job::new(JobOptions::default());
    let in_place = WorkerOptions {
        mode: Mode::InPlace,
        ..Default::default()
    };
    let lent = [job.memory[0].lend()];
    let worker = Worker::new(&rank("", 0, 1), &manifest(0, ROWS), &lent, &in_place);
    assert_says(worker, Code::FailedPrecondition, "another rank has it");
}

struct Owner(Arc<AtomicBool>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn an_owner_lives_until_the_last_rank_is_gone() {
    let dropped = Arc::new(AtomicBool::new(false));
    let mut memory = vec![0u16; ROWS * COLUMNS];
    let raw = RawMemory {
        data: memory.as_mut_ptr(),
        length: memory.len(),
        kind: MemoryKind::Host,
        read_only: false,
    };
    let owner = (memory, Owner(dropped.clone()));
    // SAFETY: The owner has the memory, and nobody else knows it.
    let region = unsafe { Region::from_raw(None, "raw", raw, owner) }.unwrap();
    let who = rank("", 0, 1);
    let held = manifest(0, ROWS);
    let trainer = Trainer::new(&who, &held, &[region.lend()], &Default::default()).unwrap();
    drop(region);
    assert!(!dropped.load(Ordering::SeqCst));
    drop(trainer);
    assert!(dropped.load(Ordering::SeqCst));
}

#[test]
fn shared_memory_is_only_read() {
    let memory: Arc<[u16]> = vec![7; ROWS * COLUMNS].into();
    let region = Region::shared("shared", memory.clone()).unwrap();
    assert_eq!(region.read().unwrap()[..], memory[..]);
    assert_eq!((region.len(), region.is_empty()), (memory.len(), false));
    assert_says(region.write(), Code::FailedPrecondition, "it is read-only");
    let empty = Region::<u8>::new("empty", vec![]).unwrap();
    assert!(empty.read().unwrap().is_empty() && empty.write().unwrap().is_empty());
}

/// Once it has ended, every use is refused with an error, and none with worse.
#[test]
fn calls_may_race_with_close() {
    for _ in 0..5 {
        let job = Job::joined(JobOptions {
            mode: Mode::ShadowCopy,
            ..Default::default()
        });
        job.publish(1).unwrap();
        let (worker, trainer) = (&job.workers[0], &job.trainers[0]);
        thread::scope(|scope| {
            scope.spawn(|| (0..50).for_each(|_| drop(worker.state())));
            scope.spawn(|| (0..50).for_each(|_| drop(trainer.publish_async(1, &committed()))));
            scope.spawn(|| {
                for _ in 0..50 {
                    if let Ok(snapshot) = worker.snapshot("race") {
                        assert_holds(&snapshot, 1);
                    }
                }
            });
            scope.spawn(|| while worker.next_event(PATIENCE).is_some() {});
            scope.spawn(|| worker.close());
            scope.spawn(|| worker.close());
            scope.spawn(|| trainer.close());
        });
        let gone = "is no such handle: it was destroyed";
        assert_says(worker.state(), Code::InvalidArgument, gone);
    }
}

/// All of it may go to other threads, and be used by several.
#[test]
fn everything_is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<Context>();
    check::<Controller>();
    check::<Error>();
    check::<Event>();
    check::<Layout>();
    check::<Manifest>();
    check::<Plan>();
    check::<Region<f32>>();
    check::<Snapshot>();
    check::<Trainer>();
    check::<Update>();
    check::<Worker>();
}

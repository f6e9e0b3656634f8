// SPDX-License-Identifier: Apache-2.0

//! What is logged comes from the library's threads, with its level; a sink that panics harms nobody.

use std::sync::mpsc;
use std::sync::Mutex;
use std::thread::{self, ThreadId};

use waybill::*;

use crate::job::{manifest, rank, Job, JobOptions, COLUMNS, PATIENCE, ROWS};

/// A job with one trainer and one worker of `context`, which loses its controller.
fn lose_the_controller(context: Context) -> (Trainer, Worker) {
    let mut job = Job::new(JobOptions {
        trainers: 0,
        workers: 0,
        ..Default::default()
    });
    let region = Region::new("trained", vec![0u16; ROWS * COLUMNS]).unwrap();
    let (who, held) = (rank(&job.address, 0, 1), manifest(0, ROWS));
    let options = TrainerOptions {
        context: Some(context.clone()),
        ..Default::default()
    };
    let trainer = Trainer::new(&who, &held, &[region.lend()], &options).unwrap();
    let options = WorkerOptions {
        context: Some(context),
        ..Default::default()
    };
    let worker = Worker::new(&who, &held, &[], &options).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| trainer.join(PATIENCE).unwrap());
        worker.join(PATIENCE).unwrap();
    });
    job.controller.take();
    (trainer, worker)
}

#[test]
fn joining_and_losing_the_controller_are_logged_from_other_threads() {
    let (sender, lines) = mpsc::channel::<(LogLevel, String, ThreadId)>();
    let sender = Mutex::new(sender);
    let context = Context::with_log(move |level, line| {
        let line = (level, line.to_string(), thread::current().id());
        let _ = sender.lock().unwrap().send(line);
    });
    let _ranks = lose_the_controller(context.unwrap());
    let mut wanted = vec![
        (
            LogLevel::Information,
            "trainer 0 of 1",
            "has joined; worker 0: ",
        ),
        (
            LogLevel::Information,
            "worker 0 of 1",
            "has joined; trainer 0: ",
        ),
        (
            LogLevel::Warning,
            "trainer 0 of 1",
            "has lost the controller",
        ),
        (
            LogLevel::Warning,
            "worker 0 of 1",
            "has lost the controller",
        ),
    ];
    while !wanted.is_empty() {
        let (level, line, thread) = lines.recv_timeout(PATIENCE).unwrap();
        assert_ne!(thread, thread::current().id());
        wanted.retain(|w| w.0 != level || !line.starts_with(w.1) || !line.contains(w.2));
    }
}

#[test]
fn a_sink_that_panics_loses_its_line_and_nothing_else() {
    let (sender, panics) = mpsc::channel();
    let sender = Mutex::new(sender);
    let context = Context::with_log(move |_, line| {
        let _ = sender.lock().unwrap().send(line.to_string());
        panic!("a test's");
    });
    let _ranks = lose_the_controller(context.unwrap()); // They have joined, whatever the sink does.
    while !panics.recv_timeout(PATIENCE).unwrap().contains("has lost") {}
}

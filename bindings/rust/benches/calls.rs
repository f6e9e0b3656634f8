// SPDX-License-Identifier: Apache-2.0

//! What calls cost over C: cargo bench. Medians over rounds of many calls.

use std::hint::black_box;
use std::mem;
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use waybill::*;

#[allow(clippy::all, dead_code, non_camel_case_types)]
mod ffi {
    include!(concat!(env!("OUT_DIR"), "/waybill.rs"));
}

fn measure(name: &str, mut call: impl FnMut()) {
    const ROUNDS: usize = 101;
    const CALLS: u32 = 2000;
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            (0..CALLS).for_each(|_| call());
            begin.elapsed() / CALLS
        })
        .collect();
    times.sort();
    let (median, spread) = (times[ROUNDS / 2], times[ROUNDS * 9 / 10]);
    println!("{name:<16} {median:?} (90 % within {spread:?})");
}

fn main() -> Result<()> {
    let patience = Duration::from_secs(30);
    let controller = Controller::start(&ControllerOptions {
        listen: "127.0.0.1:0".into(),
        ..Default::default()
    })?;
    let rank = RankOptions {
        controller: controller.address().into(),
        ..Default::default()
    };
    let mut manifest = Manifest::new()?;
    manifest.add_region("memory", 4096)?;
    manifest.add_tensor("w", DType::F32, &[1024])?;
    manifest.add_shard(&Shard::default())?;
    let memory = Region::new("memory", vec![0f32; 1024])?;
    let trainer = Trainer::new(&rank, &manifest, &[memory.lend()], &Default::default())?;
    let worker = Worker::new(&rank, &manifest, &[], &Default::default())?;
    thread::scope(|scope| {
        scope.spawn(|| trainer.join(patience).unwrap());
        worker.join(patience)
    })?;

    let raw: *mut ffi::waybill_worker_t = worker.as_raw().cast();
    measure("state, C", || {
        // SAFETY: Zero is a value of every field.
        let mut state: ffi::waybill_worker_state_t = unsafe { mem::zeroed() };
        state.struct_size = size_of_val(&state);
        let status = unsafe { ffi::waybill_worker_state(raw, &mut state, null_mut()) };
        assert!(status == 0 && black_box(state).joined == 1);
    });
    measure("state, Rust", || {
        assert!(black_box(worker.state().unwrap()).joined);
    });
    measure("refusal, C", || {
        let mut error = null_mut();
        // SAFETY: The error is destroyed once.
        unsafe {
            assert!(ffi::waybill_worker_join(raw, 0, 1, &mut error) != 0);
            black_box(ffi::waybill_error_message(error));
            ffi::waybill_error_destroy(error);
        }
    });
    measure("refusal, Rust", || {
        assert!(worker.join(Deadline::default()).is_err());
    });
    let options = PublishOptions::default();
    let mut version = 0;
    let mut publishes: Vec<Duration> = (0..200)
        .map(|_| {
            version += 1;
            let begin = Instant::now();
            let update = trainer.publish_async(version, &options).unwrap();
            let taken = begin.elapsed();
            update.wait().unwrap();
            while !matches!(trainer.next_event(patience), Some(Event::Outcome { .. })) {}
            taken
        })
        .collect();
    publishes.sort();
    println!("publish, Rust    {:?}", publishes[publishes.len() / 2]);
    Ok(())
}

//! What calls cost over C: cargo bench. Medians over rounds of many calls.

use std::ffi::{c_char, c_void};
use std::hint::black_box;
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use waybill::*;

/// waybill_worker_state_t.
#[repr(C)]
#[derive(Default)]
struct State {
    struct_size: usize,
    shown_version: u64,
    flags: [u32; 4],
    counts: [u64; 3],
}

unsafe extern "C" {
    fn waybill_worker_state(worker: *mut c_void, state: *mut State, error: *mut *mut c_void)
        -> i32;
    fn waybill_worker_join(
        worker: *mut c_void,
        deadline_ns: i64,
        token: u64,
        error: *mut *mut c_void,
    ) -> i32;
    fn waybill_error_message(error: *const c_void) -> *const c_char;
    fn waybill_error_destroy(error: *mut c_void);
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

    let raw = worker.as_raw();
    measure("state, C", || {
        let mut state = State {
            struct_size: size_of::<State>(),
            ..Default::default()
        };
        // SAFETY: The struct is as C has it.
        let status = unsafe { waybill_worker_state(raw, &mut state, null_mut()) };
        assert!(status == 0 && black_box(state).flags[0] == 1);
    });
    measure("state, Rust", || {
        assert!(black_box(worker.state().unwrap()).joined);
    });
    measure("refusal, C", || {
        let mut error = null_mut();
        // SAFETY: The error is destroyed once.
        unsafe {
            assert!(waybill_worker_join(raw, 0, 1, &mut error) != 0);
            black_box(waybill_error_message(error));
            waybill_error_destroy(error);
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

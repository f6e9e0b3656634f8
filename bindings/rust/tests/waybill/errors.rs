// SPDX-License-Identifier: Apache-2.0

//! What is wrong is said, in the library's words.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use waybill::*;

use crate::job::*;

fn worker(rank: &RankOptions, manifest: &Manifest, lent: &[Lent], mode: Mode) -> Result<Worker> {
    let options = WorkerOptions {
        mode,
        ..Default::default()
    };
    Worker::new(rank, manifest, lent, &options)
}

#[test]
fn of_manifests() {
    let mut m = Manifest::new().unwrap();
    let invalid = Code::InvalidArgument;
    assert_says(m.add_region("", 8), invalid, "name");
    assert_says(m.add_region("a\0b", 8), invalid, "not UTF-8");
    assert_says(m.add_tensor("w", DType::F32, &[-1]), invalid, "-1");
    assert_says(m.add_tensor("w", DType::F32, &[1; 9]), invalid, "9");
    let uneven = Shard {
        ranges: &[0..1, 0..1],
        strides: &[1],
        ..Default::default()
    };
    assert_says(m.add_shard(&uneven), invalid, "2 and 1");
    let uneven = Padding {
        extents: &[1],
        strides: &[1, 1],
        ..Default::default()
    };
    assert_says(m.add_padding(&uneven), invalid, "1 and 2");
    assert_says(Manifest::decode(b"manifest"), invalid, "manifest");
    assert_says(quantisation_named("fp7"), invalid, "mxfp8");

    m.add_region("memory", 8).unwrap();
    m.add_tensor("w", DType::F32, &[i64::MAX, 8]).unwrap();
    m.add_shard(&Shard::default()).unwrap();
    let made = worker(&RankOptions::default(), &m, &[], Mode::Shadow);
    assert_says(made, invalid, "\"w\"");
}

#[test]
fn of_regions() {
    let invalid = Code::InvalidArgument;
    let raw = |data: *mut u8, length| {
        let memory = RawMemory {
            data,
            length,
            kind: MemoryKind::Host,
            read_only: false,
        };
        // SAFETY: The library refuses both.
        unsafe { Region::from_raw(None, "raw", memory, ()) }
    };
    assert_says(
        raw(std::ptr::null_mut(), 8),
        invalid,
        r#""raw": data is NULL and size_bytes 8"#,
    );
    assert_says(
        raw(std::ptr::dangling_mut(), usize::MAX),
        invalid,
        r#""raw": 18446744073709551615 bytes from there go beyond the address space"#,
    );

    let who = RankOptions::default();
    let held = manifest(0, ROWS);
    let short = Region::new("short", vec![0u8; 7]).unwrap().lend();
    assert_says(
        worker(&who, &held, &[short], Mode::InPlace),
        invalid,
        r#"regions[0], "short" for "memory": it has 7 bytes, the manifest says 4096"#,
    );
    let shared = Region::shared("shared", vec![0u8; BYTES].into()).unwrap();
    let made = worker(&who, &held, &[shared.lend()], Mode::InPlace);
    assert_says(made, invalid, "it is read-only");
    let region = Region::new("lent", vec![0u8; BYTES]).unwrap();
    let made = worker(&who, &held, &[region.lend()], Mode::Shadow);
    assert_says(made, invalid, "shows buffers that Waybill allocates");
    let made = worker(&who, &held, &[], Mode::ShadowCopy);
    assert_says(made, invalid, "none are given: give one for each region");
    let made = worker(&who, &Manifest::new().unwrap(), &[], Mode::Shadow);
    assert_says(made, invalid, "the worker holds nothing");

    let mut two = Manifest::new().unwrap();
    for (index, name) in ["a", "b"].into_iter().enumerate() {
        two.add_region(name, BYTES as u64).unwrap();
        two.add_padding(&Padding {
            region: index as u32,
            extents: &[BYTES as i64],
            ..Default::default()
        })
        .unwrap();
    }
    let twice = [region.lend(), region.lend()];
    let made = worker(&who, &two, &twice, Mode::InPlace);
    assert_says(made, invalid, r#"regions "lent" and "lent" overlap"#);
    let made = worker(&who, &two, &[region.lend()], Mode::InPlace);
    assert_says(made, invalid, "the manifest has 2 regions, 1 are given");
}

#[test]
fn of_options() {
    let invalid = Code::InvalidArgument;
    let held = manifest(0, ROWS);
    let beyond = rank("", 3, 2);
    assert_says(
        worker(&beyond, &held, &[], Mode::Shadow),
        invalid,
        "rank.rank is 3, rank.world 2: ranks begin at 0",
    );
    let nowhere = RankOptions {
        fabric: "smoke".into(),
        ..Default::default()
    };
    let made = worker(&nowhere, &held, &[], Mode::Shadow);
    assert_says(made, invalid, "smoke");
    let open = ControllerOptions {
        listen: "0.0.0.0:0".into(),
        ..Default::default()
    };
    assert_says(Controller::start(&open), invalid, "token");
    assert_says(Layout::of_model("gpt0", 0), invalid, "gpt0");
    let nobody = query_controller("127.0.0.1:1", "", PATIENCE);
    assert_says(nobody, Code::Unavailable, "127.0.0.1:1");
}

#[test]
fn of_calls_out_of_order() {
    let job = Job::new(JobOptions::default());
    let (trainer, worker) = (&job.trainers[0], &job.workers[0]);
    let early = Code::FailedPrecondition;
    let publish = |version| trainer.publish(version, &committed());
    assert_says(publish(1), early, "publish: version 1: it has not joined");
    let nothing = "nothing is shown: it has not joined";
    assert_says(worker.snapshot("test"), early, nothing);
    let past = Instant::now() - Duration::from_secs(1);
    let late = Code::DeadlineExceeded;
    assert_says(
        trainer.join(past),
        late,
        "join as a trainer: the deadline was",
    );

    job.join();
    assert_says(
        trainer.join(PATIENCE),
        early,
        "it has joined, or is joining",
    );
    assert_says(worker.snapshot("test"), early, "no version is shown yet");
    job.publish(2).unwrap();
    for version in [1, 2] {
        assert_says(publish(version), early, "version 2 was published");
    }
    assert_says(publish(0), Code::InvalidArgument, "0");
    let too_late = PublishOptions {
        deadline: past.into(),
        ..Default::default()
    };
    let published = trainer.publish(3, &too_late);
    assert_says(published, late, "publish: version 3: the deadline was");
    let mut nothing = 0; // It is not looked at: the regions are the host's.
    let after = PublishOptions {
        after_event: Some(unsafe { CudaEvent::from_raw(NonNull::from(&mut nothing).cast()) }),
        ..Default::default()
    };
    let not_there = "no region is memory of a device";
    assert_says(trainer.publish(3, &after), Code::InvalidArgument, not_there);

    trainer.leave().unwrap();
    assert_says(publish(3), early, "it has left");
    let anew = "it has left: a rank that joins again is made anew";
    assert_says(trainer.join(PATIENCE), early, anew);
    trainer.close();
    let gone = "trainer is no such handle: it was destroyed, or is of another kind";
    assert_says(publish(3), Code::InvalidArgument, gone);
    assert_says(trainer.progress(), Code::InvalidArgument, gone);
}

#[test]
fn of_joins() {
    let job = Job::new(JobOptions {
        workers: 2,
        ..Default::default()
    });
    let twin = worker(
        &rank(&job.address, 0, 2),
        &manifest(0, ROWS),
        &[],
        Mode::Shadow,
    )
    .unwrap();
    let (ended, first) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for w in [&job.workers[0], &twin] {
            let ended = ended.clone();
            scope.spawn(move || ended.send(w.join(PATIENCE)).unwrap());
        }
        // The trainer and the other worker are not there: only a refusal ends a join.
        assert_says(first.recv().unwrap(), Code::AlreadyExists, "0");
        job.workers[0].close();
        twin.close();
    });

    let mut stranger = rank(&job.address, 1, 2);
    stranger.token = "a guess of the secret".into();
    let stranger = worker(&stranger, &manifest(0, ROWS), &[], Mode::Shadow).unwrap();
    assert_says(stranger.join(PATIENCE), Code::Unauthenticated, "token");
    let alone = &job.workers[1];
    let joined = alone.join(Duration::from_millis(200));
    assert_says(joined, Code::DeadlineExceeded, "is not whole: waiting for");
}

#[test]
fn errors_have_names() {
    let error = Manifest::new().unwrap().add_region("", 8).unwrap_err();
    assert_eq!(error.scope(), Scope::Call);
    let text = format!("INVALID_ARGUMENT: {}", error.message());
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_publish_waits_for_the_decision_about_the_one_before() {
    let job = Job::joined(JobOptions {
        ask: Ask::ARRIVED,
        ..Default::default()
    });
    job.trainers[0].publish(1, &Default::default()).unwrap();
    let soon = PublishOptions {
        deadline: Duration::from_millis(50).into(),
        ..Default::default()
    };
    let late = job.trainers[0].publish(2, &soon);
    assert_says(late, Code::DeadlineExceeded, "publish version 2");
    let next = job.trainers[0].publish_async(3, &committed()).unwrap();
    let mut shown = Vec::new();
    while shown.len() < 2 {
        match job.workers[0].next_event(PATIENCE).unwrap() {
            Event::Arrived(notice) => notice.accept().unwrap(),
            Event::Commit(notice) => shown.push(notice.version()),
            _ => {}
        }
    }
    next.wait().unwrap();
    assert_eq!(shown, [1, 3]);
}

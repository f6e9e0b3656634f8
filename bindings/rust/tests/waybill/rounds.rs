// SPDX-License-Identifier: Apache-2.0

//! Jobs from end to end.

use std::thread;
use std::time::{Duration, Instant};

use waybill::*;

use crate::job::*;

fn rounds(mode: Mode) {
    let job = Job::joined(JobOptions {
        trainers: 2,
        workers: 2,
        mode,
        ..Default::default()
    });
    for version in [1, 2, 7] {
        job.publish(version).unwrap();
        job.assert_shows(0, version);
        job.assert_shows(1, version);
    }
}

#[test]
fn a_worker_gets_the_newest_version_when_it_asks() {
    let job = Job::joined(JobOptions {
        fetches: true,
        ..Default::default()
    });
    let worker = &job.workers[0];
    let soon = worker.fetch(0, Duration::from_millis(50));
    assert_says(soon, Code::DeadlineExceeded, "no version can be had yet");
    for version in [2, 4] {
        job.publish(version - 1).unwrap();
        job.publish(version).unwrap();
        assert_eq!(worker.fetch(version, PATIENCE).unwrap(), version);
        job.assert_shows(0, version);
    }
}

#[test]
fn versions_arrive_in_shadow() {
    rounds(Mode::Shadow);
}

#[test]
fn versions_arrive_in_shadow_copy() {
    rounds(Mode::ShadowCopy);
}

#[test]
fn versions_arrive_in_place() {
    rounds(Mode::InPlace);
}

fn notice(event: Event) -> (Notice, &'static str) {
    match event {
        Event::Prepare(notice) => (notice, "prepare"),
        Event::Arrived(notice) => (notice, "arrived"),
        Event::Commit(notice) => (notice, "commit"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_version_that_is_held_is_released_before_the_next_is_published() {
    let job = Job::joined(JobOptions::default());
    job.fill(1);
    let held = PublishOptions {
        hold: true,
        ..committed()
    };
    job.trainers[0].publish(1, &held).unwrap();
    job.assert_shows(0, 1);
    assert_says(
        job.trainers[0].publish(2, &committed()),
        Code::FailedPrecondition,
        "version 1 is held; release it first",
    );
    job.trainers[0].release().unwrap();
    job.publish(2).unwrap();
    job.assert_shows(0, 2);
}

#[test]
fn a_version_that_waits_for_its_word_is_shown_once_it_is_accepted() {
    let job = Job::joined(JobOptions::default());
    let held = PublishOptions {
        hold_commit: true,
        ..Default::default()
    };
    job.fill(1);
    job.trainers[0].publish(1, &held).unwrap();
    let asked = loop {
        match job.trainers[0].next_event(PATIENCE).unwrap() {
            Event::Arrived(asked) => break asked,
            _ => continue,
        }
    };
    assert_eq!(asked.version(), 1);
    assert_eq!(job.workers[0].state().unwrap().shown_version, 0);
    asked.accept().unwrap();
    loop {
        match job.trainers[0].next_event(PATIENCE).unwrap() {
            Event::Decided { result, .. } => break result.unwrap(),
            _ => continue,
        }
    }
    job.assert_shows(0, 1);
}

#[test]
fn a_publish_that_one_group_refuses_says_which_groups_show_it() {
    let job = Job::joined(JobOptions::default());
    let who = RankOptions {
        group: "b".into(),
        ..rank(&job.address, 0, 1)
    };
    let how = WorkerOptions {
        ask: Ask::ARRIVED,
        ..Default::default()
    };
    let other = Worker::new(&who, &manifest(0, ROWS), &[], &how).unwrap();
    other.join(PATIENCE).unwrap();
    job.fill(1);
    let update = job.trainers[0].publish_async(1, &committed()).unwrap();
    let asked = loop {
        match other.next_event(PATIENCE).unwrap() {
            Event::Arrived(asked) => break asked,
            _ => continue,
        }
    };
    asked.refuse("not today").unwrap();
    let ended = update.wait_until(PATIENCE).unwrap();
    assert_says(ended, Code::FailedPrecondition, "not today");
    let mut outcomes = update.outcomes();
    assert_eq!(outcomes.len(), 2);
    outcomes.remove("all").unwrap().unwrap();
    let refused = outcomes.remove("b").unwrap();
    assert_says(refused, Code::FailedPrecondition, "not today");
    job.assert_shows(0, 1);
}

#[test]
fn a_trainer_is_told_of_a_worker_that_its_group_has_lost() {
    let job = Job::joined(JobOptions {
        workers: 2,
        ..Default::default()
    });
    job.workers[1].close();
    let (group, error) = loop {
        match job.trainers[0].next_event(PATIENCE).unwrap() {
            Event::WorkerLost { group, error } => break (group, error),
            _ => continue,
        }
    };
    assert_eq!(group, "all");
    assert!(error.to_string().contains("worker 1"), "{error}");
}

#[test]
fn a_version_with_the_bytes_of_the_one_before_is_unchanged() {
    let job = Job::joined(JobOptions::default());
    for version in [1, 2] {
        job.trainers[0].publish(version, &committed()).unwrap();
        let unchanged = loop {
            match job.trainers[0].next_event(PATIENCE).unwrap() {
                Event::Outcome { unchanged, .. } => break unchanged,
                _ => continue,
            }
        };
        assert_eq!(unchanged, version == 2);
    }
    assert_eq!(job.workers[0].state().unwrap().unchanged_versions, 1);
}

#[test]
fn a_version_of_a_part_of_the_tensors_is_not_exact() {
    let job = Job::joined(JobOptions {
        changes: Changes::Always,
        ..Default::default()
    });
    let publish = |version, tensors: &[&str], at_most_ppm| {
        let options = PublishOptions {
            tensors: tensors.iter().map(|name| name.to_string()).collect(),
            at_most_ppm,
            ..committed()
        };
        job.trainers[0].publish(version, &options)?;
        Ok::<bool, Error>(job.workers[0].state()?.exact)
    };
    assert!(!job.workers[0].state().unwrap().exact); // None is shown.
    assert!(publish(1, &[], 0).unwrap());
    assert!(!publish(2, &["weight"], 0).unwrap());
    assert!(!publish(3, &[], 500_000).unwrap());
    assert!(publish(4, &[], 0).unwrap());
    let unknown = publish(5, &["weight", "none"], 0).unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument);
}

#[test]
fn a_workers_user_is_asked_in_order() {
    let job = Job::joined(JobOptions {
        ask: Ask::PREPARE | Ask::ARRIVED | Ask::COMMIT,
        ..Default::default()
    });
    job.fill(3);
    let update = job.trainers[0].publish_async(3, &committed()).unwrap();
    for step in ["prepare", "arrived", "commit"] {
        let (asked, found) = notice(job.workers[0].next_event(PATIENCE).unwrap());
        assert_eq!(
            (found, asked.version(), asked.answer_wanted()),
            (step, 3, true)
        );
        asked.accept().unwrap();
        assert_says(asked.accept(), Code::FailedPrecondition, "was answered");
    }
    update.wait().unwrap();
    job.assert_shows(0, 3);
    match job.trainers[0].next_event(PATIENCE) {
        Some(Event::GroupJoined { group }) => assert_eq!(group, "all"),
        other => panic!("{other:?}"),
    }
    match job.trainers[0].next_event(PATIENCE) {
        Some(Event::Outcome {
            version: 3,
            group,
            result: Ok(()),
            unchanged: false,
            committed: true,
        }) => assert_eq!(group, "all"),
        other => panic!("{other:?}"),
    }
}

fn nobody_shows_what_one_refuses(step: &str) {
    let job = Job::joined(JobOptions {
        workers: 2,
        ask: Ask::PREPARE | Ask::ARRIVED,
        ..Default::default()
    });
    job.fill(1);
    let update = job.trainers[0].publish_async(1, &committed()).unwrap();
    thread::scope(|scope| {
        for (w, worker) in job.workers.iter().enumerate() {
            scope.spawn(move || loop {
                let event = worker.next_event(PATIENCE).unwrap();
                if matches!(event, Event::Abort { .. }) {
                    break; // The other one's word was faster.
                }
                let (asked, found) = notice(event);
                if found == step && w == 1 {
                    break asked.refuse("warming up").unwrap();
                }
                asked.accept().unwrap();
                if found == step {
                    break;
                }
            });
        }
    });
    assert_says(update.wait(), Code::FailedPrecondition, "warming up");
    for worker in &job.workers {
        assert_eq!(worker.state().unwrap().shown_version, 0);
    }
}

#[test]
fn nobody_shows_what_one_refuses_to_prepare() {
    nobody_shows_what_one_refuses("prepare");
}

#[test]
fn nobody_shows_what_one_vetoes() {
    nobody_shows_what_one_refuses("arrived");
}

#[test]
fn an_update_that_is_dropped_is_given_up_and_its_version_can_come_again() {
    let job = Job::joined(JobOptions {
        ask: Ask::PREPARE,
        ..Default::default()
    });
    let update = job.trainers[0].publish_async(5, &committed()).unwrap();
    let (asked, _) = notice(job.workers[0].next_event(PATIENCE).unwrap());
    assert!(update.wait_until(Duration::ZERO).is_none());
    drop(update);
    match job.workers[0].next_event(PATIENCE) {
        Some(Event::Abort { version: 5, error }) => {
            assert_eq!(error.code(), Code::Cancelled);
        }
        other => panic!("{other:?}"),
    }
    asked.accept().unwrap(); // Nobody waits for it any more.

    job.fill(5); // Waits until nothing reads it.
    let again = job.trainers[0].publish_async(5, &committed()).unwrap();
    let (asked, _) = notice(job.workers[0].next_event(PATIENCE).unwrap());
    asked.accept().unwrap();
    again.wait().unwrap();
    job.assert_shows(0, 5);
}

#[test]
fn an_update_that_is_cancelled_says_so() {
    let job = Job::joined(JobOptions {
        ask: Ask::PREPARE,
        ..Default::default()
    });
    let update = job.trainers[0].publish_async(1, &committed()).unwrap();
    let _asked = job.workers[0].next_event(PATIENCE).unwrap();
    update.cancel();
    let error = update.wait().unwrap_err();
    assert_eq!(
        (error.code(), error.scope()),
        (Code::Cancelled, Scope::Update)
    );
}

#[test]
fn a_wait_for_an_event_ends_with_its_deadline() {
    let job = Job::new(JobOptions::default());
    assert!(job.workers[0].next_event(Instant::now()).is_none());
    assert!(job.workers[0]
        .next_event(Duration::from_millis(1))
        .is_none());
}

#[test]
fn a_publish_ends_with_its_deadline_and_says_who_is_late() {
    let job = Job::joined(JobOptions {
        ask: Ask::PREPARE,
        ..Default::default()
    });
    let soon = PublishOptions {
        deadline: Duration::from_millis(50).into(),
        ..Default::default()
    };
    let published = job.trainers[0].publish(1, &soon); // Nobody accepts.
    assert_says(published, Code::DeadlineExceeded, "worker 0");
}

#[test]
fn a_snapshot_outlives_its_worker_and_its_regions() {
    for mode in [Mode::Shadow, Mode::ShadowCopy] {
        let mut job = Job::joined(JobOptions {
            mode,
            ..Default::default()
        });
        job.publish(4).unwrap();
        let snapshot = job.workers[0].snapshot("eval").unwrap();
        job.workers.clear();
        job.regions.clear();
        assert_holds(&snapshot, 4);
        assert_says(snapshot.region(1), Code::OutOfRange, "region 1 of 1");
    }
}

#[test]
fn a_worker_that_is_paused_takes_no_update_until_it_is_resumed() {
    let job = Job::joined(JobOptions {
        mode: Mode::InPlace,
        ..Default::default()
    });
    job.publish(1).unwrap();
    job.workers[0].pause().unwrap();
    assert_says(
        job.workers[0].snapshot("eval"),
        Code::FailedPrecondition,
        "the worker is paused",
    );
    assert_says(
        job.publish(2),
        Code::FailedPrecondition,
        "the worker is paused",
    );
    job.workers[0].resume(true).unwrap();
    assert_holds(&job.workers[0].snapshot("eval").unwrap(), 1);
    job.publish(3).unwrap();
}

#[test]
fn closing_ends_what_waits() {
    let job = Job::new(JobOptions::default());
    thread::scope(|scope| {
        let joining = scope.spawn(|| job.trainers[0].join(PATIENCE)); // No worker comes.
        let waiting = scope.spawn(|| job.trainers[0].next_event(PATIENCE));
        job.trainers[0].close();
        assert!(waiting.join().unwrap().is_none());
        // Closed before it began to join, or while it did.
        let code = joining.join().unwrap().unwrap_err().code();
        assert!(
            code == Code::Cancelled || code == Code::InvalidArgument,
            "{code}"
        );
    });
}

#[test]
fn ranks_live_through_a_restart_of_the_controller() {
    let mut job = Job::joined(JobOptions::default());
    job.publish(1).unwrap();
    job.controller = None;
    let next = |of: &dyn Fn() -> Option<Event>| loop {
        match of().unwrap() {
            Event::Prepare(_) | Event::Arrived(_) | Event::Commit(_) | Event::Outcome { .. } => {}
            Event::GroupJoined { group } => assert_eq!(group, "all"),
            other => return other,
        }
    };
    let of_trainer = || job.trainers[0].next_event(PATIENCE);
    let of_worker = || job.workers[0].next_event(PATIENCE);
    for lost in [next(&of_trainer), next(&of_worker)] {
        match lost {
            Event::Disconnected { error } => assert_eq!(error.code(), Code::Unavailable),
            other => panic!("{other:?}"),
        }
    }
    job.assert_shows(0, 1);
    let _controller = Controller::start(&ControllerOptions {
        listen: job.address.clone(),
        job: "rust".into(),
        token: "a secret of the job".into(),
        ..Default::default()
    })
    .unwrap();
    job.publish(2).unwrap();
    for back in [next(&of_trainer), next(&of_worker)] {
        assert!(matches!(back, Event::Reconnected), "{back:?}");
    }
    job.assert_shows(0, 2);
}

#[test]
fn who_left_can_still_be_read() {
    let job = Job::joined(JobOptions::default());
    job.publish(1).unwrap();
    job.workers[0].leave().unwrap();
    job.assert_shows(0, 1);
    let left = "it has left";
    assert_says(job.workers[0].leave(), Code::FailedPrecondition, left);
    job.trainers[0].leave().unwrap();
}

#[test]
fn progress_and_descriptions_are_of_what_happened() {
    let job = Job::joined(JobOptions {
        trainers: 2,
        ..Default::default()
    });
    job.publish(6).unwrap();
    let sent = job.trainers[0].progress().unwrap();
    assert_eq!((sent.version, sent.bytes), (6, BYTES as u64 / 2));
    assert_eq!(sent.planned_bytes, sent.bytes);
    let staged = Stage::Stage as usize;
    assert!(0 < sent.begin_ns[staged] && sent.begin_ns[staged] <= sent.end_ns[staged]);
    assert!(sent.end_ns[staged] <= now_ns());
    assert_eq!(job.workers[0].progress().unwrap().bytes, BYTES as u64);
    let controller = job.controller.as_ref().unwrap();
    for (said, words) in [
        (job.trainers[1].describe(), r#""role":"trainer""#),
        (job.trainers[1].describe(), r#""rack":"leaf-1""#),
        (job.workers[0].describe(), r#""shown_version":6"#),
        (controller.status(), r#""committed_version":6"#),
    ] {
        let said = said.unwrap();
        assert!(said.contains(words), "{said}");
    }
    let tensors = job_tensors(&job.address, "a secret of the job", PATIENCE).unwrap();
    assert!(tensors.contains("\"shape\":["), "{tensors}");
    // Ranks report when they like, also between these two.
    let from_afar = || query_controller(&job.address, "a secret of the job", PATIENCE).unwrap();
    let end = Instant::now() + PATIENCE;
    while from_afar() != controller.status().unwrap() {
        assert!(Instant::now() < end, "they never agree: {}", from_afar());
    }
    let state = job.workers[0].state().unwrap();
    assert!(state.joined && state.shown_version == 6, "{state:?}");
}

#[test]
fn a_context_tells_what_the_host_can_do_and_logs() {
    let context = Context::with_log(|_, _| {}).unwrap();
    assert!(context.describe().unwrap().contains("fabrics"));
    let options = WorkerOptions {
        context: Some(context.clone()),
        ..Default::default()
    };
    let worker = Worker::new(&RankOptions::default(), &manifest(0, ROWS), &[], &options).unwrap();
    drop(context); // It lives as long as the worker.
    assert!(!worker.state().unwrap().joined);
}

// SPDX-License-Identifier: Apache-2.0

//! The programs of examples/rust, which `cargo test` has built beside the tests.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use waybill::Deadline;

use crate::job::*;

fn program(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().and_then(|deps| deps.parent()).unwrap();
    Command::new(profile.join("examples").join(name))
}

#[test]
fn a_ping_arrives() {
    let said = program("ping").output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&said.stdout),
        "version 1: [0, 0, 40, 66]\n",
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
}

#[test]
fn the_readme_shows_ping() {
    let ping = concat!("```rust\n", include_str!("../../examples/ping.rs"), "```\n");
    assert!(include_str!("../../README.md").contains(ping));
}

fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let offset: u64 = 0xcbf2_9ce4_8422_2325;
    bytes.into_iter().fold(offset, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn a_worker_program_tells_what_it_shows() {
    let mut job = Job::new(JobOptions::default());
    job.workers.clear(); // The program is it.
    let file = std::env::temp_dir().join(format!("waybill-manifest-{}", std::process::id()));
    std::fs::write(&file, manifest(0, ROWS).encode().unwrap()).unwrap();
    let mut worker = program("worker")
        .args(["--controller", &job.address, "--job", "rust"])
        .args(["--versions", "2", "--manifest"])
        .arg(&file)
        .env("WAYBILL_TOKEN", "a secret of the job")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines();
    job.trainers[0].join(Deadline::from(PATIENCE)).unwrap();
    std::fs::remove_file(&file).unwrap();
    for version in 1..=2 {
        job.publish(version).unwrap();
        let bytes = (0..ROWS * COLUMNS).flat_map(|i| element(version, i).to_ne_bytes());
        let line = lines.next().unwrap().unwrap();
        assert_eq!(line, format!("shown {version} {:016x}", fnv1a(bytes)));
    }
    assert!(worker.wait().unwrap().success());
}

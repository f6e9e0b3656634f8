// SPDX-License-Identifier: Apache-2.0

//! A job in this process: one tensor, its rows over the trainers, whole at each worker.

use std::thread;
use std::time::Duration;

use waybill::*;

pub const ROWS: usize = 64;
pub const COLUMNS: usize = 32;
pub const BYTES: usize = ROWS * COLUMNS * 2;
pub const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy)]
pub struct JobOptions {
    pub trainers: usize,
    pub workers: usize,
    pub mode: Mode,
    pub ask: Ask,
    pub fetches: bool, // Workers get versions when they ask, and trainers keep images.
    pub changes: Changes,
}

impl Default for JobOptions {
    fn default() -> JobOptions {
        JobOptions {
            trainers: 1,
            workers: 1,
            mode: Mode::Shadow,
            ask: Ask::NOTHING,
            fetches: false,
            changes: Changes::default(),
        }
    }
}

pub struct Job {
    pub controller: Option<Controller>,
    pub address: String,
    pub memory: Vec<Region<u16>>,
    pub trainers: Vec<Trainer>,
    pub workers: Vec<Worker>,
    pub regions: Vec<Region<u16>>, // The workers'.
}

pub fn manifest(begin: usize, end: usize) -> Manifest {
    let mut m = Manifest::new().unwrap();
    m.add_region("memory", ((end - begin) * COLUMNS * 2) as u64)
        .unwrap();
    m.add_tensor("weight", DType::BF16, &[ROWS as i64, COLUMNS as i64])
        .unwrap();
    m.add_shard(&Shard {
        ranges: &[begin as i64..end as i64, 0..COLUMNS as i64],
        ..Default::default()
    })
    .unwrap();
    m
}

pub fn element(version: u64, i: usize) -> u16 {
    (version * 1000 + i as u64) as u16
}

pub fn rank(address: &str, rank: usize, world: usize) -> RankOptions {
    RankOptions {
        controller: address.into(),
        job: "rust".into(),
        token: "a secret of the job".into(),
        rank: rank as u32,
        world: world as u32,
        rack: "leaf-1".into(),
        ..Default::default()
    }
}

/// To be published until all groups have decided.
pub fn committed() -> PublishOptions {
    PublishOptions {
        deadline: PATIENCE.into(),
        until_committed: true,
        ..Default::default()
    }
}

impl Job {
    pub fn new(options: JobOptions) -> Job {
        let controller = Controller::start(&ControllerOptions {
            listen: "127.0.0.1:0".into(),
            job: "rust".into(),
            token: "a secret of the job".into(),
            ..Default::default()
        })
        .unwrap();
        let address = controller.address().to_string();
        let mut job = Job {
            controller: Some(controller),
            address,
            memory: vec![],
            trainers: vec![],
            workers: vec![],
            regions: vec![],
        };
        for t in 0..options.trainers {
            let (begin, end) = (
                ROWS * t / options.trainers,
                ROWS * (t + 1) / options.trainers,
            );
            let region = Region::new("trained", vec![0; (end - begin) * COLUMNS]).unwrap();
            let who = rank(&job.address, t, options.trainers);
            let held = manifest(begin, end);
            let how = TrainerOptions {
                images: options.fetches,
                changes: options.changes,
                ..Default::default()
            };
            let trainer = Trainer::new(&who, &held, &[region.lend()], &how);
            job.trainers.push(trainer.unwrap());
            job.memory.push(region);
        }
        for w in 0..options.workers {
            let mut lent = vec![];
            if options.mode != Mode::Shadow {
                let region = Region::new("served", vec![0; ROWS * COLUMNS]).unwrap();
                lent.push(region.lend());
                job.regions.push(region);
            }
            let who = rank(&job.address, w, options.workers);
            let how = WorkerOptions {
                mode: options.mode,
                ask: options.ask,
                updates_when_asked: options.fetches,
                ..Default::default()
            };
            job.workers
                .push(Worker::new(&who, &manifest(0, ROWS), &lent, &how).unwrap());
        }
        job
    }

    pub fn joined(options: JobOptions) -> Job {
        let job = Job::new(options);
        job.join();
        job
    }

    pub fn join(&self) {
        thread::scope(|scope| {
            for t in &self.trainers {
                scope.spawn(|| t.join(PATIENCE).unwrap());
            }
            for w in &self.workers {
                scope.spawn(|| w.join(PATIENCE).unwrap());
            }
        });
    }

    pub fn fill(&self, version: u64) {
        let mut i = 0;
        for region in &self.memory {
            for value in region.write().unwrap().iter_mut() {
                *value = element(version, i);
                i += 1;
            }
        }
    }

    /// By all trainers; each returns when its group has decided.
    pub fn publish(&self, version: u64) -> Result<()> {
        self.fill(version);
        thread::scope(|scope| {
            let publish = |t: &Trainer| t.publish(version, &committed());
            let publishing: Vec<_> = self
                .trainers
                .iter()
                .map(|t| scope.spawn(move || publish(t)))
                .collect();
            publishing.into_iter().try_for_each(|p| p.join().unwrap())
        })
    }

    pub fn assert_shows(&self, worker: usize, version: u64) {
        assert_eq!(self.workers[worker].verify().unwrap(), version);
        assert_holds(&self.workers[worker].snapshot("test").unwrap(), version);
    }
}

pub fn assert_holds(snapshot: &Snapshot, version: u64) {
    assert_eq!(snapshot.version(), version);
    let shown = snapshot.elements::<u16>(0).unwrap();
    assert_eq!(snapshot.region(0).unwrap().len(), BYTES);
    assert_eq!(shown.len(), ROWS * COLUMNS);
    for (i, found) in shown.iter().enumerate() {
        assert_eq!(*found, element(version, i), "{i}");
    }
}

/// What is said has that code, and these words in it.
#[track_caller]
pub fn assert_says<T>(result: Result<T>, code: Code, words: &str) {
    let Err(error) = result else {
        panic!("it went well, instead of {code:?} {words:?}");
    };
    assert_eq!(error.code(), code, "{error}");
    assert!(error.message().contains(words), "{error}, not {words:?}");
}

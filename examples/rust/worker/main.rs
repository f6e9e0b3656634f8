//! An inference rank that shows what trainers publish: for each version it prints
//! "shown VERSION DIGEST", FNV-1a in 64 bits over all the bytes that it holds.
//!
//! usage: worker --controller HOST:PORT [--job NAME] [--group NAME] [--rank N]
//!               [--world N] (--manifest FILE | --checkpoint DIR [--sharding tp=2]) [--versions N]
//!
//! A manifest is read as `Manifest::encode` makes it. It leaves after so many versions; without
//! --versions it serves until it is stopped.

use std::collections::HashMap;
use std::error::Error;
use std::str::FromStr;

use waybill::*;

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let flags = Flags::read()?;
    let manifest = read_manifest(&flags)?;
    let rank = RankOptions {
        controller: flags.text("--controller"),
        job: flags.text("--job"),
        token: std::env::var("WAYBILL_TOKEN").unwrap_or_default(),
        group: flags.text("--group"),
        rank: flags.number("--rank")?,
        world: flags.number("--world")?,
        ..Default::default()
    };
    // The next version waits until this one's digest is known.
    let options = WorkerOptions {
        ask: Ask::COMMIT,
        ..Default::default()
    };
    let worker = Worker::new(&rank, &manifest, &[], &options)?;
    worker.join(Deadline::default())?;
    let (versions, mut shown): (u64, u64) = (flags.number("--versions")?, 0);
    while let Some(event) = worker.next_event(Deadline::default()) {
        match event {
            Event::Commit(notice) => {
                report(&worker, manifest.region_count())?;
                notice.accept()?;
                shown += 1;
                if shown == versions {
                    worker.leave()?;
                    break;
                }
            }
            Event::Ended { error } => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

fn read_manifest(flags: &Flags) -> std::result::Result<Manifest, Box<dyn Error>> {
    let file = flags.text("--manifest");
    if !file.is_empty() {
        return Ok(Manifest::decode(&std::fs::read(file)?)?);
    }
    let sharding = flags.text("--sharding");
    let served = WorkerLayout {
        sharding: &sharding,
        ..Default::default()
    };
    let layout = Layout::of_checkpoint(&flags.text("--checkpoint"))?;
    Ok(layout.worker_manifest(&served, flags.number("--rank")?)?)
}

fn report(worker: &Worker, regions: u32) -> Result<()> {
    let snapshot = worker.snapshot("digest")?;
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    for region in 0..regions {
        for byte in snapshot.region(region)? {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    println!("shown {} {digest:016x}", snapshot.version());
    Ok(())
}

/// The words of the command line: each name is followed by its value.
struct Flags(HashMap<String, String>);

impl Flags {
    fn read() -> std::result::Result<Flags, String> {
        let mut flags = HashMap::new();
        let mut words = std::env::args().skip(1);
        while let Some(name) = words.next() {
            let value = words.next().ok_or(format!("{name} has no value"))?;
            flags.insert(name, value);
        }
        Ok(Flags(flags))
    }

    fn text(&self, name: &str) -> String {
        self.0.get(name).cloned().unwrap_or_default()
    }

    fn number<T: FromStr + Default>(&self, name: &str) -> std::result::Result<T, String> {
        match self.0.get(name) {
            None => Ok(T::default()),
            Some(text) => text
                .parse()
                .map_err(|_| format!("{name} {text}: not a number")),
        }
    }
}

//! Moves four floats: `pingpong trainer HOST:PORT` sends, `pingpong worker HOST:PORT` shows.

use waybill::*;

fn main() -> Result<()> {
    let role = std::env::args().nth(1).unwrap();
    let rank = RankOptions {
        controller: std::env::args().nth(2).unwrap(),
        token: std::env::var("WAYBILL_TOKEN").unwrap_or_default(),
        ..Default::default()
    };
    let weights = Region::new("weights", vec![0f32; 4])?;
    let (mut manifest, patience) = (Manifest::new()?, std::time::Duration::from_secs(60));
    manifest.add_region("weights", 16)?;
    manifest.add_tensor("w", DType::F32, &[4])?;
    manifest.add_shard(&Shard::default())?; // All of tensor 0, at the start of region 0.
    if role == "trainer" {
        let trainer = Trainer::new(&rank, &manifest, &[weights.lend()], &Default::default())?;
        trainer.join(patience)?;
        weights.write()?.copy_from_slice(&[0.5, 1.5, 2.5, 3.5]);
        let committed = PublishOptions {
            until_committed: true,
            ..Default::default()
        };
        let now = std::time::UNIX_EPOCH.elapsed().unwrap();
        trainer.publish(now.as_secs(), &committed)?;
    } else {
        let in_place = WorkerOptions {
            mode: Mode::InPlace,
            ask: Ask::COMMIT,
            ..Default::default()
        };
        let worker = Worker::new(&rank, &manifest, &[weights.lend()], &in_place)?;
        worker.join(patience)?;
        let next = || worker.next_event(patience).expect("news within a minute");
        while !matches!(next(), Event::Commit(notice) if notice.accept().is_ok()) {}
    }
    let w = weights.read()?; // The rank has left, and the memory is ours again.
    println!("{role}: {} {} {} {}", w[0], w[1], w[2], w[3]);
    Ok(())
}

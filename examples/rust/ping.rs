//! Moves a tensor from a trainer to a worker, both of them in this program.

use std::thread;
use std::time::Duration;

use waybill::*;

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
    let weights = Region::new("weights", vec![0f32; 1 << 20])?;
    let mut manifest = Manifest::new()?;
    manifest.add_region("weights", 4 << 20)?;
    manifest.add_tensor("w", DType::F32, &[1024, 1024])?;
    manifest.add_shard(&Shard::default())?; // All of tensor 0, at the begin of region 0.
    let trainer = Trainer::new(&rank, &manifest, &[weights.lend()], &Default::default())?;
    let worker = Worker::new(&rank, &manifest, &[], &Default::default())?;
    thread::scope(|scope| {
        let joining = scope.spawn(|| worker.join(patience));
        trainer.join(patience).and(joining.join().unwrap())
    })?;
    weights.write()?[0] = 42.0;
    let committed = PublishOptions {
        until_committed: true,
        ..Default::default()
    };
    trainer.publish(1, &committed)?;
    let shown = worker.snapshot("ping")?;
    println!("version {}: {:?}", shown.version(), &shown.region(0)?[..4]);
    Ok(())
}

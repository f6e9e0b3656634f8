//! Manifests made from a model.

use crate::ffi;
use crate::{Manifest, Result};

/// A model's tensors, and how frameworks name, fuse and shard them. It never changes.
pub struct Layout(u64);

/// How workers hold a model as vLLM loads it.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerLayout<'a> {
    /// `"tp=2,dp=1"`; what is not named is 1.
    pub sharding: &'a str,
    /// `"bf16"` or a name for [`quantisation_named`](crate::quantisation_named); `""`: what
    /// config.json says.
    pub format: &'a str,
    /// The dtype of what is not quantised (`"BF16"`); `""`: as stored.
    pub dtype: &'a str,
}

impl Drop for Layout {
    fn drop(&mut self) {
        ffi::layout_destroy(self.0);
    }
}

impl Layout {
    /// Opens a Hugging Face directory: config.json, safetensors.
    pub fn of_checkpoint(folder: &str) -> Result<Layout> {
        Layout::open(folder, "", 0)
    }

    /// Opens a made-up model, which has no data: `"qwen3-0.6b"`, `"gpt2"`, ..., cut to so many layers;
    /// 0: all.
    pub fn of_model(name: &str, layers: u32) -> Result<Layout> {
        Layout::open("", name, layers)
    }

    fn open(checkpoint: &str, model: &str, layers: u32) -> Result<Layout> {
        let mut handle = 0;
        ffi::layout_open(checkpoint, model, layers, &mut handle).into_result()?;
        Ok(Layout(handle))
    }

    /// Returns what trainer `rank` holds, in one region "weights". `sharding`: `"fsdp=2,tp=2,pp=1,dp=1"`.
    pub fn trainer_manifest(&self, sharding: &str, rank: u32) -> Result<Manifest> {
        Manifest::made(|handle| ffi::layout_trainer_manifest(self.0, sharding, rank, handle))
    }

    /// Returns what worker `rank` holds, in one region "weights".
    pub fn worker_manifest(&self, layout: &WorkerLayout, rank: u32) -> Result<Manifest> {
        let WorkerLayout {
            sharding,
            format,
            dtype,
        } = layout;
        Manifest::made(|handle| {
            ffi::layout_worker_manifest(self.0, sharding, rank, format, dtype, handle)
        })
    }

    /// The engine's parameters of that worker, in its order, as JSON: name, dtype, shape, region,
    /// offset.
    pub fn worker_parameters(&self, layout: &WorkerLayout, rank: u32) -> Result<String> {
        let WorkerLayout {
            sharding,
            format,
            dtype,
        } = layout;
        let mut json = String::new();
        ffi::layout_worker_parameters(self.0, sharding, rank, format, dtype, &mut json)
            .into_result()?;
        Ok(json)
    }

    /// Fills region 0 of the manifest, which `data` is, from the checkpoint.
    pub fn load(&self, manifest: &Manifest, data: &mut [u8]) -> Result<()> {
        ffi::layout_load(self.0, manifest.handle(), data).into_result()
    }
}

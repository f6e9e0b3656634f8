// SPDX-License-Identifier: Apache-2.0

//! Manifests made from a model.

use std::ffi::CString;

use crate::ffi::{self, c_text, Handle};
use crate::{Manifest, Result};

/// A model's tensors, and how frameworks name, fuse and shard them. It never changes.
pub struct Layout(Handle<ffi::waybill_layout_t>);

/// How workers hold a model as vLLM or SGLang loads it.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerLayout<'a> {
    /// `"tp=2,dp=4,ep=8,engine=sglang"`; what is not named is 1.
    pub sharding: &'a str,
    /// `"bf16"` or a name for [`quantisation_named`](crate::quantisation_named); `""`: what
    /// config.json says.
    pub format: &'a str,
    /// The dtype of what is not quantised (`"BF16"`); `""`: as stored.
    pub dtype: &'a str,
}

impl WorkerLayout<'_> {
    fn c_texts(&self) -> [CString; 3] {
        [self.sharding, self.format, self.dtype].map(c_text)
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
        let (checkpoint, model) = (c_text(checkpoint), c_text(model));
        let options = ffi::waybill_layout_options_t {
            checkpoint: checkpoint.as_ptr(),
            model: model.as_ptr(),
            layers,
            ..Default::default()
        };
        ffi::make(|out, error| unsafe { ffi::waybill_layout_open(&options, out, error) })
            .map(Layout)
    }

    /// Returns what trainer `rank` holds, in one region "weights". `sharding`:
    /// `"fsdp=2,replicas=4"` or `"megatron,tp=4,pp=2,ep=8"`.
    pub fn trainer_manifest(&self, sharding: &str, rank: u32) -> Result<Manifest> {
        let sharding = c_text(sharding);
        Manifest::made(|out, error| unsafe {
            ffi::waybill_layout_trainer_manifest(self.0.get(), sharding.as_ptr(), rank, out, error)
        })
    }

    /// Returns what worker `rank` holds, in one region "weights".
    pub fn worker_manifest(&self, layout: &WorkerLayout, rank: u32) -> Result<Manifest> {
        let [sharding, format, dtype] = layout.c_texts();
        Manifest::made(|out, error| unsafe {
            ffi::waybill_layout_worker_manifest(
                self.0.get(),
                sharding.as_ptr(),
                rank,
                format.as_ptr(),
                dtype.as_ptr(),
                out,
                error,
            )
        })
    }

    /// The engine's parameters of that worker, in its order, as JSON: name, dtype, shape, region,
    /// offset.
    pub fn worker_parameters(&self, layout: &WorkerLayout, rank: u32) -> Result<String> {
        let [sharding, format, dtype] = layout.c_texts();
        ffi::make_text(|out, error| unsafe {
            ffi::waybill_layout_worker_parameters(
                self.0.get(),
                sharding.as_ptr(),
                rank,
                format.as_ptr(),
                dtype.as_ptr(),
                out,
                error,
            )
        })
    }

    /// Fills region 0 of the manifest, which `data` is, from the checkpoint.
    pub fn load(&self, manifest: &Manifest, data: &mut [u8]) -> Result<()> {
        let (size, data) = (data.len() as u64, data.as_mut_ptr().cast());
        ffi::check(|error| unsafe {
            ffi::waybill_layout_load(self.0.get(), manifest.handle(), data, size, error)
        })
    }
}

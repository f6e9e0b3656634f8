//! What one rank holds.

use std::fmt;

use crate::ffi;
use crate::{Code, Error, Quantisation, Result};

/// The type of a tensor's elements. The numbers never change.
#[allow(missing_docs, non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DType {
    F32 = 1,
    F16 = 2,
    BF16 = 3,
    /// OCP E4M3 without infinities: `torch.float8_e4m3fn`.
    F8_E4M3 = 4,
    F8_E5M2 = 5,
    E8M0 = 6,
    I8 = 7,
    U8 = 8,
    I16 = 9,
    U16 = 10,
    I32 = 11,
    U32 = 12,
    I64 = 13,
    U64 = 14,
    F64 = 15,
    Bool = 16,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        ffi::dtype_size(self as u32) as usize
    }
}

impl fmt::Display for DType {
    /// As safetensors spells it: `"BF16"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ffi::dtype_name(*self as u32))
    }
}

/// What of a tensor a shard holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Content {
    /// Its elements.
    #[default]
    Plain = 0,
    /// Its elements, quantised.
    Quantised = 1,
    /// The scales of its quantised elements; the box counts scales.
    Scales = 2,
}

/// A box of a tensor, and where this rank holds it. The default is all of tensor 0, dense, at the
/// begin of region 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shard<'a> {
    /// The tensor's index.
    pub tensor: u32,
    /// The region's index.
    pub region: u32,
    /// Of the box's first element in the region.
    pub offset_bytes: u64,
    /// None: the tensor's, or the quantisation's.
    pub dtype: Option<DType>,
    /// What it holds.
    pub content: Content,
    /// None for plain content.
    pub quantisation: Option<Quantisation>,
    /// The box, half-open, slowest dimension first; empty: the whole tensor.
    pub begin: &'a [i64],
    /// As many.
    pub end: &'a [i64],
    /// In elements; empty: dense, last dimension fastest.
    pub strides: &'a [i64],
}

/// Elements of a region that no tensor fills: zeros, outside of the plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct Padding<'a> {
    /// The region's index.
    pub region: u32,
    /// 0: 1.
    pub element_bytes: u32,
    /// Of the first element in the region.
    pub offset_bytes: u64,
    /// Of the box of elements, slowest first.
    pub extents: &'a [i64],
    /// In elements; empty: dense.
    pub strides: &'a [i64],
}

/// What one rank holds. Whatever takes it copies it: it may be changed and used again. What needs
/// the whole manifest is checked where it is used.
pub struct Manifest(u64);

impl Drop for Manifest {
    fn drop(&mut self) {
        ffi::manifest_destroy(self.0);
    }
}

impl Manifest {
    /// An empty one.
    pub fn new() -> Result<Manifest> {
        Manifest::made(ffi::manifest_create)
    }

    pub(crate) fn made(make: impl FnOnce(&mut u64) -> ffi::Status) -> Result<Manifest> {
        let mut handle = 0;
        make(&mut handle).into_result()?;
        Ok(Manifest(handle))
    }

    pub(crate) fn handle(&self) -> u64 {
        self.0
    }

    /// Adds a region; returns its index.
    pub fn add_region(&mut self, name: &str, size_bytes: u64) -> Result<u32> {
        added(|index| ffi::manifest_add_region(self.0, name, size_bytes, index))
    }

    /// Adds a tensor; returns its index.
    pub fn add_tensor(&mut self, name: &str, dtype: DType, shape: &[i64]) -> Result<u32> {
        added(|index| ffi::manifest_add_tensor(self.0, name, dtype as u32, shape, index))
    }

    /// Adds a shard; returns its index.
    pub fn add_shard(&mut self, shard: &Shard) -> Result<u32> {
        // The library cannot see how long slices are.
        check_lengths("shard", shard.begin, shard.end)?;
        if !shard.strides.is_empty() {
            check_lengths("shard", shard.begin, shard.strides)?;
        }
        let config = ffi::ShardConfig {
            tensor_index: shard.tensor,
            region_index: shard.region,
            offset_bytes: shard.offset_bytes,
            dtype: shard.dtype.map_or(0, |dtype| dtype as u32),
            content: shard.content as u32,
            quantisation: shard.quantisation.as_slice(),
            begin: shard.begin,
            end: shard.end,
            strides: shard.strides,
        };
        added(|index| ffi::manifest_add_shard(self.0, &config, index))
    }

    /// Adds padding; returns its index.
    pub fn add_padding(&mut self, padding: &Padding) -> Result<u32> {
        if !padding.strides.is_empty() {
            check_lengths("padding", padding.extents, padding.strides)?;
        }
        let config = ffi::PaddingConfig {
            region_index: padding.region,
            element_bytes: padding.element_bytes,
            offset_bytes: padding.offset_bytes,
            extents: padding.extents,
            strides: padding.strides,
        };
        added(|index| ffi::manifest_add_padding(self.0, &config, index))
    }

    /// Adds another name of a tensor (a tied head), for which nothing moves; returns its index.
    pub fn add_alias(&mut self, name: &str, tensor: u32) -> Result<u32> {
        added(|index| ffi::manifest_add_alias(self.0, name, tensor, index))
    }

    /// How many regions there are.
    pub fn region_count(&self) -> u32 {
        ffi::manifest_region_count(self.0)
    }

    /// 0 for an index that is none.
    pub fn region_size(&self, region: u32) -> u64 {
        ffi::manifest_region_size(self.0, region)
    }

    /// As it travels; equal manifests give equal bytes on every host.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        ffi::manifest_encode(self.0, &mut bytes).into_result()?;
        Ok(bytes)
    }

    /// What `encode` made.
    pub fn decode(bytes: &[u8]) -> Result<Manifest> {
        Manifest::made(|handle| ffi::manifest_decode(bytes, handle))
    }

    /// As JSON.
    pub fn describe(&self) -> Result<String> {
        let mut json = String::new();
        ffi::manifest_describe(self.0, &mut json).into_result()?;
        Ok(json)
    }
}

fn added(add: impl FnOnce(&mut u32) -> ffi::Status) -> Result<u32> {
    let mut index = 0;
    add(&mut index).into_result()?;
    Ok(index)
}

fn check_lengths(what: &str, one: &[i64], other: &[i64]) -> Result<()> {
    if one.len() == other.len() {
        return Ok(());
    }
    let lengths = format!("{} and {}", one.len(), other.len());
    let message = format!("add a {what}: slices of different lengths: {lengths}");
    Err(Error::new(Code::InvalidArgument, message))
}

/// Knows `"fp8-block"`, `"fp8-row"`, `"fp8-tensor"`, `"mxfp8"`; the error lists them.
pub fn quantisation_named(name: &str) -> Result<Quantisation> {
    let mut quantisation = Quantisation::default();
    ffi::quantisation_named(name, &mut quantisation).into_result()?;
    Ok(quantisation)
}

// SPDX-License-Identifier: Apache-2.0

//! What one rank holds.

use std::fmt;
use std::ops::Range;
use std::ptr::null;

use crate::ffi::{self, c_text, Handle, OutError};
use crate::{Code, Error, Result};

/// The type of a tensor's elements. The numbers never change.
#[allow(missing_docs, non_camel_case_types)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DType {
    F32 = ffi::WAYBILL_F32,
    F16 = ffi::WAYBILL_F16,
    BF16 = ffi::WAYBILL_BF16,
    /// OCP E4M3 without infinities: `torch.float8_e4m3fn`.
    F8_E4M3 = ffi::WAYBILL_F8_E4M3,
    F8_E5M2 = ffi::WAYBILL_F8_E5M2,
    E8M0 = ffi::WAYBILL_E8M0,
    I8 = ffi::WAYBILL_I8,
    U8 = ffi::WAYBILL_U8,
    I16 = ffi::WAYBILL_I16,
    U16 = ffi::WAYBILL_U16,
    I32 = ffi::WAYBILL_I32,
    U32 = ffi::WAYBILL_U32,
    I64 = ffi::WAYBILL_I64,
    U64 = ffi::WAYBILL_U64,
    F64 = ffi::WAYBILL_F64,
    Bool = ffi::WAYBILL_BOOL,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        unsafe { ffi::waybill_dtype_size(self as u32) as usize }
    }
}

impl fmt::Display for DType {
    /// As safetensors spells it: `"BF16"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: The text is static.
        f.write_str(unsafe { ffi::static_text(ffi::waybill_dtype_name(*self as u32)) })
    }
}

/// What of a tensor a shard holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Content {
    /// Its elements.
    #[default]
    Plain = ffi::WAYBILL_CONTENT_PLAIN,
    /// Its elements, quantised.
    Quantised = ffi::WAYBILL_CONTENT_QUANTISED,
    /// The scales of its quantised elements; the box counts scales.
    Scales = ffi::WAYBILL_CONTENT_SCALES,
}

/// How elements of a matrix are stored in few bits with a scale for each block. The default is
/// what DeepSeek-V3's checkpoints have. Types are numbers of [`DType`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantisation {
    /// The dtype of the elements; 0: `F8_E4M3`.
    pub dtype: u32,
    /// Elements are rounded to this first; 0: `BF16`.
    pub from_dtype: u32,
    /// 0: `F32`.
    pub scale_dtype: u32,
    /// How scales are rounded; 0 or 1: not at all; 2: up to a power of two; 3: as MX does it.
    pub rounding: u32,
    /// 0 or 1: `x * (1 / s)`; 2: `x * (largest / magnitude)`; 3: `x / s`.
    pub division: u32,
    /// `1 / s` is stored instead of `s`.
    pub stores_reciprocal: bool,
    /// The lower bound of a block's largest magnitude; 0: 1e-4. Negative: no bound.
    pub epsilon: f32,
    /// 0: 128; `u32::MAX`: the whole matrix.
    pub block_rows: u32,
    /// Likewise.
    pub block_columns: u32,
    /// A scale is stored for each so many rows; 0: the block's.
    pub scale_rows: u32,
    /// Likewise.
    pub scale_columns: u32,
}

impl Quantisation {
    fn from_c(c: &ffi::waybill_quantisation_t) -> Quantisation {
        Quantisation {
            dtype: c.dtype,
            from_dtype: c.from_dtype,
            scale_dtype: c.scale_dtype,
            rounding: c.rounding,
            division: c.division,
            stores_reciprocal: c.stores_reciprocal != 0,
            epsilon: c.epsilon,
            block_rows: c.block_rows,
            block_columns: c.block_columns,
            scale_rows: c.scale_rows,
            scale_columns: c.scale_columns,
        }
    }

    fn to_c(self) -> ffi::waybill_quantisation_t {
        ffi::waybill_quantisation_t {
            dtype: self.dtype,
            from_dtype: self.from_dtype,
            scale_dtype: self.scale_dtype,
            rounding: self.rounding,
            division: self.division,
            stores_reciprocal: self.stores_reciprocal.into(),
            epsilon: self.epsilon,
            block_rows: self.block_rows,
            block_columns: self.block_columns,
            scale_rows: self.scale_rows,
            scale_columns: self.scale_columns,
            ..Default::default()
        }
    }
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
    /// The box: a range in each dimension, slowest first; empty: the whole tensor.
    pub ranges: &'a [Range<i64>],
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
pub struct Manifest(Handle<ffi::waybill_manifest_t>);

impl Manifest {
    /// An empty one.
    pub fn new() -> Result<Manifest> {
        Manifest::made(|out, error| unsafe { ffi::waybill_manifest_create(out, error) })
    }

    pub(crate) fn made(
        call: impl FnOnce(*mut *mut ffi::waybill_manifest_t, OutError) -> ffi::waybill_status_t,
    ) -> Result<Manifest> {
        ffi::make(call).map(Manifest)
    }

    pub(crate) fn handle(&self) -> *mut ffi::waybill_manifest_t {
        self.0.get()
    }

    /// Adds a region; returns its index.
    pub fn add_region(&mut self, name: &str, size_bytes: u64) -> Result<u32> {
        let name = c_text(name);
        ffi::fill(|index, error| unsafe {
            ffi::waybill_manifest_add_region(self.handle(), name.as_ptr(), size_bytes, index, error)
        })
    }

    /// Adds a tensor; returns its index.
    pub fn add_tensor(&mut self, name: &str, dtype: DType, shape: &[i64]) -> Result<u32> {
        let name = c_text(name);
        ffi::fill(|index, error| unsafe {
            ffi::waybill_manifest_add_tensor(
                self.handle(),
                name.as_ptr(),
                dtype as u32,
                ffi::begin(shape),
                shape.len() as u32,
                index,
                error,
            )
        })
    }

    /// Adds a shard; returns its index.
    pub fn add_shard(&mut self, shard: &Shard) -> Result<u32> {
        // The library cannot see how long slices are.
        let (begin, end): (Vec<i64>, Vec<i64>) =
            shard.ranges.iter().map(|r| (r.start, r.end)).unzip();
        if !shard.strides.is_empty() {
            check_lengths("shard", &begin, shard.strides)?;
        }
        let quantisation = shard.quantisation.map(Quantisation::to_c);
        let shard = ffi::waybill_shard_t {
            tensor_index: shard.tensor,
            region_index: shard.region,
            offset_bytes: shard.offset_bytes,
            dtype: shard.dtype.map_or(0, |dtype| dtype as u32),
            content: shard.content as u32,
            quantisation: quantisation.as_ref().map_or(null(), |q| q),
            dimensions: begin.len() as u32,
            begin: ffi::begin(&begin),
            end: ffi::begin(&end),
            strides: ffi::begin(shard.strides),
            ..Default::default()
        };
        ffi::fill(|index, error| unsafe {
            ffi::waybill_manifest_add_shard(self.handle(), &shard, index, error)
        })
    }

    /// Adds padding; returns its index.
    pub fn add_padding(&mut self, padding: &Padding) -> Result<u32> {
        if !padding.strides.is_empty() {
            check_lengths("padding", padding.extents, padding.strides)?;
        }
        let padding = ffi::waybill_padding_t {
            region_index: padding.region,
            element_bytes: padding.element_bytes,
            offset_bytes: padding.offset_bytes,
            dimensions: padding.extents.len() as u32,
            extents: ffi::begin(padding.extents),
            strides: ffi::begin(padding.strides),
            ..Default::default()
        };
        ffi::fill(|index, error| unsafe {
            ffi::waybill_manifest_add_padding(self.handle(), &padding, index, error)
        })
    }

    /// Adds another name of a tensor (a tied head), for which nothing moves; returns its index.
    pub fn add_alias(&mut self, name: &str, tensor: u32) -> Result<u32> {
        let name = c_text(name);
        ffi::fill(|index, error| unsafe {
            ffi::waybill_manifest_add_alias(self.handle(), name.as_ptr(), tensor, index, error)
        })
    }

    /// How many regions there are.
    pub fn region_count(&self) -> u32 {
        unsafe { ffi::waybill_manifest_region_count(self.handle()) }
    }

    /// 0 for an index that is none.
    pub fn region_size(&self, region: u32) -> u64 {
        unsafe { ffi::waybill_manifest_region_size(self.handle(), region) }
    }

    /// As it travels; equal manifests give equal bytes on every host.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let blob = ffi::make(|out, error| unsafe {
            ffi::waybill_manifest_encode(self.handle(), out, error)
        })?;
        Ok(blob.bytes().to_vec())
    }

    /// What `encode` made.
    pub fn decode(bytes: &[u8]) -> Result<Manifest> {
        Manifest::made(|out, error| unsafe {
            ffi::waybill_manifest_decode(bytes.as_ptr().cast(), bytes.len(), out, error)
        })
    }

    /// As JSON.
    pub fn describe(&self) -> Result<String> {
        ffi::make_text(|out, error| unsafe {
            ffi::waybill_manifest_describe(self.handle(), out, error)
        })
    }
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
    let name = c_text(name);
    let c = ffi::fill(|out, error| unsafe {
        ffi::waybill_quantisation_named(name.as_ptr(), out, error)
    })?;
    Ok(Quantisation::from_c(&c))
}

// SPDX-License-Identifier: Apache-2.0

//! Memory that is lent to Waybill.
//!
//! A region owns its memory, so that no leaked value can leave Waybill with memory that is gone. Who
//! may touch it when is held here as well: Waybill reads a trainer's regions from a publish to its
//! end, and writes a worker's as long as the worker, or a snapshot of it, is there.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::ffi::{self, c_text, Handle};
use crate::{Code, Context, Error, Result};

mod sealed {
    pub trait Sealed {}
}

/// What weights are made of: numbers of which every pattern of bits is one. Types that Rust has not
/// (bfloat16, FP8) go as their bits.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {}

macro_rules! elements {
    ($($t:ty)*) => { $(impl sealed::Sealed for $t {} impl Element for $t {})* };
}
elements!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

/// The kind of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum MemoryKind {
    /// The host's.
    #[default]
    Host = ffi::WAYBILL_MEMORY_HOST,
    /// A device's: it can be lent, and not be read or written here.
    Device = ffi::WAYBILL_MEMORY_DEVICE,
}

/// Memory of another owner than a region knows.
#[derive(Clone, Copy, Debug)]
pub struct RawMemory<T> {
    /// The first element.
    pub data: *mut T,
    /// How many there are.
    pub length: usize,
    /// Where they are.
    pub kind: MemoryKind,
    /// Nobody writes them, so no worker may use them.
    pub read_only: bool,
}

/// Who has the memory at the moment.
#[derive(Default)]
struct Holders {
    trainers: usize,
    publishes: usize,
    workers: usize,
    readers: usize,
    written: bool,
}

pub(crate) struct Inner {
    // The first field is dropped first. Nothing of Waybill touches the memory afterwards.
    handle: Handle<ffi::waybill_region_t>,
    name: String,
    data: *mut u8,
    kind: MemoryKind,
    read_only: bool,
    holders: Mutex<Holders>,
    changed: Condvar,
    _owner: Box<dyn Any + Send>,
    _context: Context,
}

// SAFETY: `data` is memory of _owner's, which is Send, and everyone who touches it is in `holders`.
unsafe impl Send for Inner {}
unsafe impl Sync for Inner {}

impl Inner {
    fn holders(&self) -> MutexGuard<'_, Holders> {
        self.holders.lock().unwrap()
    }

    fn release(&self, change: impl FnOnce(&mut Holders)) {
        change(&mut self.holders());
        self.changed.notify_all();
    }

    fn check_host(&self) -> Result<()> {
        match self.kind {
            MemoryKind::Device => self.refuse("its elements are on a device"),
            _ => Ok(()),
        }
    }

    fn refuse<T>(&self, why: &str) -> Result<T> {
        let message = format!("region {:?}: {why}", self.name);
        Err(Error::new(Code::FailedPrecondition, message))
    }
}

/// Memory of `T`s for trainers to read and workers to write. Nothing is copied.
pub struct Region<T: Element> {
    inner: Arc<Inner>,
    length: usize,
    elements: PhantomData<T>,
}

/// A region as ranks take it; it keeps the memory alive.
#[derive(Clone)]
pub struct Lent(Arc<Inner>);

impl<T: Element> Region<T> {
    /// Lends a vector. `name` is for errors.
    pub fn new(name: &str, mut memory: Vec<T>) -> Result<Region<T>> {
        let raw = RawMemory {
            data: memory.as_mut_ptr(),
            length: memory.len(),
            kind: MemoryKind::Host,
            read_only: false,
        };
        // SAFETY: A vector that nobody touches keeps its elements where they are.
        unsafe { Self::from_raw(None, name, raw, memory) }
    }

    /// Lends memory that others may read at the same time; no worker may use it.
    pub fn shared(name: &str, memory: Arc<[T]>) -> Result<Region<T>> {
        let raw = RawMemory {
            data: memory.as_ptr().cast_mut(),
            length: memory.len(),
            kind: MemoryKind::Host,
            read_only: true,
        };
        // SAFETY: What an Arc has lent out does not change, and `read_only` keeps writers away.
        unsafe { Self::from_raw(None, name, raw, memory) }
    }

    /// Lends memory of another owner: a mapping, a tensor, pinned memory. `owner` is dropped when
    /// nothing touches the memory any more. No context is the default one.
    ///
    /// # Safety
    ///
    /// Until then the memory is there, initialised, and nobody reads or writes it but through this
    /// region (where it is read-only: nobody writes it).
    pub unsafe fn from_raw(
        context: Option<Context>,
        name: &str,
        memory: RawMemory<T>,
        owner: impl Any + Send,
    ) -> Result<Region<T>> {
        let context = Context::or_default(&context)?;
        let RawMemory {
            data,
            length,
            kind,
            read_only,
        } = memory;
        let size = (length as u64).saturating_mul(size_of::<T>() as u64);
        let data = data.cast::<u8>();
        let c_name = c_text(name);
        let options = ffi::waybill_region_options_t {
            data: data.cast(),
            size_bytes: size,
            kind: kind as u32,
            read_only: read_only.into(),
            name: c_name.as_ptr(),
            ..Default::default()
        };
        // SAFETY: `owner` is dropped behind the handle, and Holders keeps others away.
        let handle = ffi::make(|out, error| unsafe {
            ffi::waybill_region_create(context.handle(), &options, out, error)
        })?;
        let inner = Arc::new(Inner {
            handle,
            name: name.into(),
            data,
            kind,
            read_only,
            holders: Mutex::default(),
            changed: Condvar::new(),
            _owner: Box::new(owner),
            _context: context,
        });
        Ok(Region {
            inner,
            length,
            elements: PhantomData,
        })
    }

    /// For the options of trainers and workers.
    pub fn lend(&self) -> Lent {
        Lent(self.inner.clone())
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The elements, to read. Waits until nobody writes them here.
    ///
    /// `FailedPrecondition`: it is a worker's (a snapshot shows what it holds), or a device's.
    pub fn read(&self) -> Result<Reading<'_, T>> {
        self.inner.check_host()?;
        let mut holders = self.inner.holders();
        while holders.written {
            holders = self.inner.changed.wait(holders).unwrap();
        }
        if holders.workers > 0 {
            return self.inner.refuse("it is a worker's: take a snapshot");
        }
        holders.readers += 1;
        Ok(Reading(self))
    }

    /// The elements, to fill with the next version. Waits until every publish that reads them has
    /// ended, and everyone who reads or writes them here.
    ///
    /// `FailedPrecondition`: it is a worker's, read-only, or a device's.
    pub fn write(&self) -> Result<Writing<'_, T>> {
        self.inner.check_host()?;
        if self.inner.read_only {
            return self.inner.refuse("it is read-only");
        }
        let mut holders = self.inner.holders();
        while holders.publishes > 0 || holders.readers > 0 || holders.written {
            holders = self.inner.changed.wait(holders).unwrap();
        }
        if holders.workers > 0 {
            return self.inner.refuse("it is a worker's, which alone writes it");
        }
        holders.written = true;
        Ok(Writing(self))
    }
}

/// Elements of a region that are being read.
pub struct Reading<'a, T: Element>(&'a Region<T>);

impl<T: Element> Deref for Reading<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        elements(self.0)
    }
}

impl<T: Element> Drop for Reading<'_, T> {
    fn drop(&mut self) {
        self.0.inner.release(|holders| holders.readers -= 1);
    }
}

/// Elements of a region that are being written. A publish meanwhile is refused.
pub struct Writing<'a, T: Element>(&'a Region<T>);

impl<T: Element> Deref for Writing<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        elements(self.0)
    }
}

impl<T: Element> DerefMut for Writing<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if self.0.length == 0 {
            return &mut [];
        }
        // SAFETY: `written` keeps all others away until this guard is dropped.
        unsafe { std::slice::from_raw_parts_mut(self.0.inner.data.cast::<T>(), self.0.length) }
    }
}

impl<T: Element> Drop for Writing<'_, T> {
    fn drop(&mut self) {
        self.0.inner.release(|holders| holders.written = false);
    }
}

fn elements<T: Element>(region: &Region<T>) -> &[T] {
    if region.length == 0 {
        return &[];
    }
    // SAFETY: Those who write are kept away by the guard that asks, and every pattern of bits is a T.
    unsafe { std::slice::from_raw_parts(region.inner.data.cast::<T>(), region.length) }
}

/// How somebody holds regions.
type Count = fn(&mut Holders) -> &mut usize;

/// Regions that are held, until it is dropped.
pub(crate) struct Held {
    regions: Vec<Lent>,
    count: Count,
}

impl Held {
    fn new(regions: &[Lent], count: Count, refused: fn(&Holders) -> Option<&str>) -> Result<Held> {
        let mut held = Held {
            regions: Vec::with_capacity(regions.len()),
            count,
        };
        for Lent(region) in regions {
            let mut holders = region.holders();
            if let Some(why) = refused(&holders) {
                return region.refuse(why);
            }
            *count(&mut holders) += 1;
            drop(holders);
            held.regions.push(Lent(region.clone()));
        }
        Ok(held)
    }

    /// Of a trainer, as long as it is there.
    pub(crate) fn by_trainer(regions: &[Lent]) -> Result<Held> {
        Held::new(
            regions,
            |h| &mut h.trainers,
            |h| (h.workers > 0).then_some("it is a worker's, which writes it"),
        )
    }

    /// Of a publish, until it has ended.
    pub(crate) fn by_publish(&self) -> Result<Held> {
        Held::new(
            &self.regions,
            |h| &mut h.publishes,
            |h| {
                h.written
                    .then_some("it is being written: drop the guard of write() first")
            },
        )
    }

    /// Of a worker and its snapshots.
    pub(crate) fn by_worker(regions: &[Lent]) -> Result<Held> {
        Held::new(
            regions,
            |h| &mut h.workers,
            |h| {
                if h.trainers > 0 || h.workers > 0 {
                    return Some("another rank has it; a worker's are its own");
                }
                (h.written || h.readers > 0).then_some("it is in use: drop the guard first")
            },
        )
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for Lent(region) in &self.regions {
            region.release(|holders| *(self.count)(holders) -= 1);
        }
    }
}

pub(crate) fn handles(regions: &[Lent]) -> Vec<*mut ffi::waybill_region_t> {
    regions
        .iter()
        .map(|Lent(region)| region.handle.get())
        .collect()
}

// SPDX-License-Identifier: Apache-2.0

//! The C ABI, as build.rs generates it from waybill.h, and what every call of it needs.
//!
//! A call is safe because the library checks handles and never dereferences them, because any thread
//! may call any function at any time, and because texts, slices and outputs are borrowed for the call
//! only. An unsafe block that relies on more than that says so.

use std::ffi::{c_char, CStr, CString};
use std::mem;
use std::ptr::{null, null_mut};
use std::slice;
use std::time::Duration;

use crate::{Error, Result};

#[allow(clippy::all, dead_code, non_camel_case_types)]
mod raw {
    include!(concat!(env!("OUT_DIR"), "/waybill.rs"));
}

pub(crate) use raw::*;

/// The place where a call stores its error.
pub(crate) type OutError = *mut *mut waybill_error_t;

/// A kind of object that the library makes.
pub(crate) trait Object {
    /// Destroys the object. It does nothing to an object that was destroyed before.
    const DESTROY: unsafe extern "C" fn(*mut Self);
}

macro_rules! objects {
    ($($object:ident: $destroy:ident,)*) => {
        $(impl Object for $object {
            const DESTROY: unsafe extern "C" fn(*mut Self) = $destroy;
        })*
    };
}
objects! {
    waybill_error_t: waybill_error_destroy,
    waybill_blob_t: waybill_blob_destroy,
    waybill_context_t: waybill_context_destroy,
    waybill_queue_t: waybill_queue_destroy,
    waybill_region_t: waybill_region_destroy,
    waybill_manifest_t: waybill_manifest_destroy,
    waybill_layout_t: waybill_layout_destroy,
    waybill_plan_t: waybill_plan_destroy,
    waybill_controller_t: waybill_controller_destroy,
    waybill_trainer_t: waybill_trainer_destroy,
    waybill_worker_t: waybill_worker_destroy,
    waybill_update_t: waybill_update_destroy,
    waybill_snapshot_t: waybill_snapshot_destroy,
}

/// An object of the library, or NULL. Dropping it destroys the object.
#[derive(Debug)]
pub(crate) struct Handle<T: Object>(*mut T);

// SAFETY: A handle is a number in the form of a pointer, and any thread may use it.
unsafe impl<T: Object> Send for Handle<T> {}
unsafe impl<T: Object> Sync for Handle<T> {}

impl<T: Object> Drop for Handle<T> {
    fn drop(&mut self) {
        if !self.is_null() {
            unsafe { T::DESTROY(self.0) }
        }
    }
}

impl<T: Object> Handle<T> {
    pub(crate) fn null() -> Handle<T> {
        Handle(null_mut())
    }

    /// # Safety
    ///
    /// The caller must own the object, and gives it away.
    pub(crate) unsafe fn from_raw(object: *mut T) -> Handle<T> {
        Handle(object)
    }

    /// Returns the handle for a call. This value keeps the object.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }
}

impl Handle<waybill_blob_t> {
    /// Returns no bytes for NULL.
    pub(crate) fn bytes(&self) -> &[u8] {
        let size = unsafe { waybill_blob_size(self.0) };
        if size == 0 {
            return &[];
        }
        // SAFETY: A blob never changes, and its bytes live until it is destroyed.
        unsafe { slice::from_raw_parts(waybill_blob_data(self.0).cast(), size) }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

impl Handle<waybill_error_t> {
    pub(crate) fn scope(&self) -> u32 {
        unsafe { waybill_error_scope(self.0) }
    }

    /// Returns "" for NULL.
    pub(crate) fn message(&self) -> String {
        // SAFETY: The text lives until the error is destroyed.
        let message = unsafe { CStr::from_ptr(waybill_error_message(self.0)) };
        message.to_string_lossy().into_owned()
    }
}

macro_rules! sized {
    ($($name:ident)*) => {
        $(impl Default for $name {
            /// The struct as its _INIT macro makes it: its size, and zeros.
            fn default() -> Self {
                // SAFETY: The fields are numbers, pointers and optional functions, which may be zero.
                let zeros = unsafe { mem::zeroed() };
                $name { struct_size: size_of::<$name>(), ..zeros }
            }
        })*
    };
}
sized! {
    waybill_context_options_t
    waybill_event_t
    waybill_region_options_t
    waybill_quantisation_t
    waybill_shard_t
    waybill_padding_t
    waybill_layout_options_t
    waybill_plan_options_t
    waybill_plan_summary_t
    waybill_controller_options_t
    waybill_rank_options_t
    waybill_progress_t
    waybill_trainer_options_t
    waybill_publish_options_t
    waybill_worker_options_t
    waybill_worker_state_t
}

/// Calls a function that can fail.
pub(crate) fn check(call: impl FnOnce(OutError) -> waybill_status_t) -> Result<()> {
    let mut error = Handle::null();
    let status = call(&mut error.0);
    Error::check(status, &error)
}

/// Calls a function that makes an object.
pub(crate) fn make<T: Object>(
    call: impl FnOnce(*mut *mut T, OutError) -> waybill_status_t,
) -> Result<Handle<T>> {
    let mut made = Handle::null();
    check(|error| call(&mut made.0, error))?;
    Ok(made)
}

/// Calls a function that makes text.
pub(crate) fn make_text(
    call: impl FnOnce(*mut *mut waybill_blob_t, OutError) -> waybill_status_t,
) -> Result<String> {
    Ok(make(call)?.text())
}

/// Calls a function that fills a number or a struct.
pub(crate) fn fill<T: Default>(
    call: impl FnOnce(*mut T, OutError) -> waybill_status_t,
) -> Result<T> {
    let mut filled = T::default();
    check(|error| call(&mut filled, error))?;
    Ok(filled)
}

/// Returns the text for C. A zero byte would end it early, so a byte that is not UTF-8 takes its place,
/// and the library refuses the text.
pub(crate) fn c_text(text: &str) -> CString {
    let bytes: Vec<u8> = text
        .bytes()
        .map(|b| if b == 0 { 0xff } else { b })
        .collect();
    CString::new(bytes).expect("there is no zero byte")
}

/// The texts that an options struct of C points to.
#[derive(Default)]
pub(crate) struct Texts(Vec<CString>);

impl Texts {
    /// Returns a text for C, which lives as long as this value.
    pub(crate) fn lend(&mut self, text: &str) -> *const c_char {
        let text = c_text(text);
        let begin = text.as_ptr();
        self.0.push(text);
        begin
    }
}

/// Returns a duration for C, as long as C can count.
pub(crate) fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// Reads a text of the library.
///
/// # Safety
///
/// The text must live as long as the program.
pub(crate) unsafe fn static_text(text: *const c_char) -> &'static str {
    // SAFETY: The caller guarantees it.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().expect("the library's texts are UTF-8")
}

/// Returns where a slice begins, NULL if it is empty.
pub(crate) fn begin<T>(slice: &[T]) -> *const T {
    if slice.is_empty() {
        null()
    } else {
        slice.as_ptr()
    }
}

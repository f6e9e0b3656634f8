//! Waybill moves updated model weights from trainers to inference workers; this is its C ABI for Rust.

#[cxx::bridge(namespace = "waybill::rust_shim")]
mod ffi {
    unsafe extern "C++" {
        include!("waybill/src/shim.h");

        fn version() -> &'static str;
    }
}

/// The version of the library that is loaded: `"0.1.0"`.
pub fn version() -> &'static str {
    ffi::version()
}

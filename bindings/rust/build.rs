// SPDX-License-Identifier: Apache-2.0

//! Finds libwaybill, by WAYBILL_LIB_DIR and WAYBILL_INCLUDE_DIR or else by pkg-config, and generates
//! the declarations of its C ABI from waybill.h.

use std::env;
use std::path::Path;
use std::process::Command;

fn pkg_config(variable: &str) -> Option<String> {
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let said = Command::new("pkg-config")
        .args([&format!("--variable={variable}"), "waybill"])
        .output()
        .ok()?;
    let folder = String::from_utf8(said.stdout).ok()?.trim().to_string();
    (said.status.success() && !folder.is_empty()).then_some(folder)
}

fn folder(environment: &str, variable: &str) -> String {
    println!("cargo:rerun-if-env-changed={environment}");
    env::var(environment)
        .ok()
        .or_else(|| pkg_config(variable))
        .unwrap_or_else(|| {
            panic!(
                "libwaybill is not to be found: set WAYBILL_LIB_DIR and WAYBILL_INCLUDE_DIR to lib \
                 and include of the SDK, or PKG_CONFIG_PATH to its lib/pkgconfig"
            )
        })
}

/// Writes OUT_DIR/waybill.rs, which src/ffi.rs includes.
fn generate(include: &str) {
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    bindgen::builder()
        .header(format!("{include}/waybill/waybill.h"))
        .allowlist_item("(waybill|WAYBILL)_.*")
        .rust_target(bindgen::RustTarget::stable(88, 0).expect("bindgen knows Rust 1.88"))
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new())) // Run again if it changes.
        .generate()
        .expect("waybill.h can be parsed")
        .write_to_file(Path::new(&out).join("waybill.rs"))
        .expect("OUT_DIR can be written to");
}

fn main() {
    let lib = folder("WAYBILL_LIB_DIR", "libdir");
    generate(&folder("WAYBILL_INCLUDE_DIR", "includedir"));

    println!("cargo:rustc-link-search=native={lib}");
    println!("cargo:rustc-link-lib=dylib=waybill");
    // For this package's own tests and programs; another package's build.rs reads DEP_WAYBILL_LIB.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
    println!("cargo:lib={lib}");
}

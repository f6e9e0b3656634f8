//! Finds libwaybill, by WAYBILL_LIB_DIR and WAYBILL_INCLUDE_DIR or else by pkg-config, and compiles
//! the shim against it.

use std::env;
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

fn main() {
    let lib = folder("WAYBILL_LIB_DIR", "libdir");
    let include = folder("WAYBILL_INCLUDE_DIR", "includedir");

    for file in [
        "ffi.rs",
        "shim.cc",
        "shim.h",
        "shim_calls.h",
        "shim_ranks.cc",
    ] {
        println!("cargo:rerun-if-changed=src/{file}");
    }
    cxx_build::bridge("src/ffi.rs")
        .files(["src/shim.cc", "src/shim_ranks.cc"])
        .include(&include)
        .std("c++20")
        .compile("waybill_shim");

    println!("cargo:rustc-link-search=native={lib}");
    println!("cargo:rustc-link-lib=dylib=waybill");
    // For this package's own tests and programs; another package's build.rs reads DEP_WAYBILL_LIB.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
    println!("cargo:lib={lib}");
}

//! The crate and the library that it found are of one version.

#[test]
fn the_library_has_the_version_of_the_crate() {
    assert_eq!(waybill::version(), env!("CARGO_PKG_VERSION"));
}

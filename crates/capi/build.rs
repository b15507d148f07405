//! Names the shared library, so that programs that were linked with it find one that they understand.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libwhimbrel.so.0");
}

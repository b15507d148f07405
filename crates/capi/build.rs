//! Names the shared library, so that programs that were linked with it find one that they understand.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libwhimbrel.so.0");
    link_as_named();
}

/// Programs that are linked in the build tree look for that name there as well, beside the library: in the folder of
/// the profile, which is three above what this script may write to, and where tests find it.
fn link_as_named() {
    let out = std::env::var_os("OUT_DIR").map(std::path::PathBuf::from).unwrap_or_default();
    let Some(profile) = out.ancestors().nth(3) else { return };
    for folder in [profile.to_owned(), profile.join("deps")] {
        let named = folder.join("libwhimbrel.so.0");
        if named.symlink_metadata().is_err()
            && let Err(error) = std::os::unix::fs::symlink("libwhimbrel.so", &named)
        {
            println!("cargo:warning=cannot link {}: {error}", named.display());
        }
    }
}

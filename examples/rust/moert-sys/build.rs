//! Finds libmoert with pkg-config (PKG_CONFIG_PATH says where, if it is not installed system-wide).
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let output = Command::new("pkg-config")
        .args(["--libs", "moert"])
        .output()
        .expect("pkg-config is not installed");
    if !output.status.success() {
        panic!(
            "pkg-config does not find moert; install libmoert or set PKG_CONFIG_PATH: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    for word in String::from_utf8_lossy(&output.stdout).split_whitespace() {
        if let Some(dir) = word.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={dir}");
        } else if let Some(lib) = word.strip_prefix("-l") {
            println!("cargo:rustc-link-lib=dylib={lib}");
        }
    }
}

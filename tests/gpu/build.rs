//! Lets the archive for machines with a GPU (`bundle.sh`) choose the libraries that its program is linked with: those in the folder
//! `TENSORC_GPU_LINK` come before others of the same name.

fn main() {
    println!("cargo::rerun-if-env-changed=TENSORC_GPU_LINK");
    if let Ok(folder) = std::env::var("TENSORC_GPU_LINK") {
        println!("cargo::rustc-link-search=native={folder}");
    }
}

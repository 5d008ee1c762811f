//! Artifacts that were made once and kept (`tests/artifacts/`): every version of the format since is held to them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use flate2::read::ZlibDecoder;
use tensorc::DType;
use tensorc::aot::link::{LinkOutput, Tools, link};
use tensorc::runtime::artifact::{Artifact, ArtifactError, LoadOptions, Manifest};
use tensorc::runtime::{Pool, TensorMut, TensorRef};
use tensorc_abi::artifact::status;
use tensorc_abi::image::{ImageVersion, MAGIC, VERSION};
use tensorc_abi::seal;
use tensorc_data::formats::read_arrays;
use tensorc_tests::cache::visible;

use super::exists;

/// Files by their paths in an archive.
type Files = BTreeMap<String, Vec<u8>>;

/// The archives, by the version that their names state.
fn archives() -> Vec<(ImageVersion, Files)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<(ImageVersion, Files)> = vec![];
    for path in paths.filter(|path| path.extension().is_some_and(|e| e == "zip")) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let (major, minor) = name.split_once('.').unwrap();
        let version = ImageVersion { major: major.parse().unwrap(), minor: minor.parse().unwrap() };
        let mut zip = zip::ZipArchive::new(std::fs::File::open(&path).unwrap()).unwrap();
        let mut files = Files::new();
        for i in 0..zip.len() {
            let mut file = zip.by_index(i).unwrap();
            let mut bytes = vec![];
            file.read_to_end(&mut bytes).unwrap();
            files.insert(file.name().to_owned(), bytes);
        }
        found.push((version, files));
    }
    found
}

/// The newest archive that readers of this version know.
fn newest() -> Files {
    let mut known: Vec<_> = archives().into_iter().filter(|(version, _)| VERSION.reads(*version)).collect();
    known.sort_by_key(|(version, _)| version.word());
    known.pop().unwrap().1
}

/// Whether code for x86-64 can be linked and run here.
fn runs() -> bool {
    let runs = cfg!(target_arch = "x86_64") && exists("cc");
    if !runs {
        visible("skipped: stored artifacts need an x86-64 processor and the C compiler `cc`");
    }
    runs
}

/// Writes a network's library and its weights. What is stored as an object is linked with the run-time library of today.
fn library(network: &str, files: &Files, dir: &Path) -> PathBuf {
    let path = dir.join(format!("{network}.so"));
    match files.get(&format!("{network}/{network}.o")) {
        Some(object) => {
            link(LinkOutput::SharedLibrary, network, object, "x86_64".parse().unwrap(), &Tools::default(), &path)
                .unwrap()
        }
        None => std::fs::write(&path, &files[&format!("{network}/{network}.so")]).unwrap(),
    }
    std::fs::write(path.with_extension("weights"), &files[&format!("{network}/{network}.weights")]).unwrap();
    path
}

/// Shape and bytes of a stored array.
fn array(npy: &[u8]) -> (Vec<u64>, Vec<u8>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, npy).unwrap();
    let (_, array) = read_arrays(&file).unwrap().remove(0);
    (array.dims().to_vec(), array.bytes().to_vec())
}

/// Runs a library on a stored input and compares every output.
fn check(network: &str, batch: u64, artifact: &Artifact, files: &Files) {
    let stored = |name: &str| array(&files[&format!("{network}/batch{batch}/{name}.npy")]);
    let pool = Pool::new(2).unwrap();
    let mut context = artifact.context(&pool).unwrap();
    let (dims, input) = stored("input");
    let described = context.outputs(&[(DType::F32, &dims)]).unwrap();
    let manifest = artifact.manifest().unwrap();
    let expected: Vec<(Vec<u64>, Vec<u8>)> = manifest.outputs.iter().map(|output| stored(&output.name)).collect();
    let types = manifest.outputs.iter().map(|output| DType::from_name(&output.dtype).unwrap());
    let shapes: Vec<(DType, Vec<u64>)> = types.zip(&expected).map(|(dtype, (dims, _))| (dtype, dims.clone())).collect();
    let mut data: Vec<Vec<u8>> = expected.iter().map(|(_, bytes)| vec![0xff; bytes.len()]).collect();
    let mut outputs: Vec<TensorMut<'_>> =
        shapes.iter().zip(&mut data).map(|((t, dims), data)| TensorMut::new(*t, dims, data)).collect();
    context.run(&[TensorRef::new(DType::F32, &dims, &input)], &mut outputs).unwrap();
    let found =
        shapes.iter().zip(context.found_shapes()).map(|((dtype, _), dims)| (*dtype, dims.clone())).collect::<Vec<_>>();
    let (known, from) = if found.is_empty() { (described, "described") } else { (found, "found") };
    assert_eq!(known, shapes, "{network}, batch {batch}, {from}");
    for (got, (_, bytes)) in data.iter().zip(&expected) {
        assert!(got == bytes, "{network}, batch {batch}: other bits than when it was made");
    }
}

#[test]
fn artifacts_of_this_and_older_minor_versions_compute_what_they_did() {
    let archives = archives();
    let of_major = |version: &ImageVersion| (version.major == VERSION.major).then_some(version.minor);
    let minors: BTreeSet<u32> = archives.iter().filter_map(|(version, _)| of_major(version)).collect();
    assert!(minors.contains(&VERSION.minor), "tests/artifacts/make.py has not been run for format {VERSION:?}");
    if !runs() {
        return;
    }
    for (version, files) in archives.into_iter().filter(|(version, _)| VERSION.reads(*version)) {
        let dir = tempfile::tempdir().unwrap();
        let networks: BTreeSet<&str> = files.keys().map(|path| path.split('/').next().unwrap()).collect();
        assert!(networks.len() >= 3, "{networks:?}");
        for network in networks {
            let artifact = Artifact::load(library(network, &files, dir.path()), &LoadOptions::default()).unwrap();
            assert_eq!(artifact.manifest().unwrap().format, (version.major, version.minor), "{network}");
            for batch in [1, 2] {
                check(network, batch, &artifact, &files);
            }
        }
    }
}

/// The versions that come next: what an older reader will meet.
fn newer() -> [ImageVersion; 2] {
    [ImageVersion { minor: VERSION.minor + 1, ..VERSION }, ImageVersion { major: VERSION.major + 1, minor: 0 }]
}

/// Where the compressed manifest of a library lies.
fn manifest_section(library: &[u8]) -> Range<usize> {
    let starts = library.windows(2).enumerate().filter(|(_, window)| *window == [0x78, 0xda]);
    let section = |at: usize| {
        let mut decoder = ZlibDecoder::new(&library[at..]);
        let mut json = vec![];
        decoder.read_to_end(&mut json).ok()?;
        Manifest::from_json(&json).ok()?;
        Some(at..at + decoder.total_in() as usize)
    };
    starts.map(|(at, _)| at).find_map(section).unwrap()
}

/// The library with another version in its manifest, sealed again.
fn with_format(library: &[u8], format: ImageVersion) -> Vec<u8> {
    let mut bytes = seal::open(library).unwrap().to_vec();
    // Without its kernels the manifest is shorter than what it replaces, and zeros close the gap.
    let manifest = Manifest::of_elf(&bytes).unwrap();
    let changed = Manifest { format: (format.major, format.minor), kernels: vec![], ..manifest };
    let place = manifest_section(&bytes);
    let mut section = changed.to_section();
    section.resize(place.len(), 0);
    bytes[place].copy_from_slice(&section);
    seal::close(&mut bytes);
    bytes
}

#[test]
fn libraries_of_newer_versions_are_refused_by_name() {
    if !runs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = library("scaled", &newest(), dir.path());
    let whole = std::fs::read(&path).unwrap();
    for version in newer() {
        std::fs::write(&path, with_format(&whole, version)).unwrap();
        let error = Artifact::load(&path, &LoadOptions::default()).err().unwrap();
        let ImageVersion { major, minor } = version;
        assert!(matches!(error, ArtifactError::Version { .. }), "{error}");
        let known = format!("{}.0 to {}.{}", VERSION.major, VERSION.major, VERSION.minor);
        assert_eq!(
            error.to_string(),
            format!("the compiled model has format {major}.{minor}, this version of tensorc reads {known}")
        );
    }
    // The same change without a newer version is no obstacle.
    std::fs::write(&path, with_format(&whole, VERSION)).unwrap();
    Artifact::load(&path, &LoadOptions::default()).unwrap();
}

/// What the run-time library says to an object whose image is of another version, and to a file of weights that is.
#[test]
fn images_and_weights_of_newer_versions_are_refused() {
    if !runs() {
        return;
    }
    let files = newest();
    let says = status::text(status::VERSION).to_string_lossy();
    for version in newer() {
        let dir = tempfile::tempdir().unwrap();
        let mut image = files.clone();
        let object = image.get_mut("planes/planes.o").unwrap();
        let magic = MAGIC.to_le_bytes();
        let at = object.windows(8).position(|window| window == magic).unwrap() + 8;
        assert_eq!(object[at..at + 8], VERSION.word().to_le_bytes());
        object[at..at + 8].copy_from_slice(&version.word().to_le_bytes());
        let error = Artifact::load(library("planes", &image, dir.path()), &LoadOptions::default()).err().unwrap();
        assert!(error.to_string().ends_with(&*says), "{version:?}: {error}");

        let mut weights = files.clone();
        let file = weights.get_mut("planes/planes.weights").unwrap();
        file[8..16].copy_from_slice(&version.word().to_le_bytes());
        let error = Artifact::load(library("planes", &weights, dir.path()), &LoadOptions::default()).err().unwrap();
        assert!(error.to_string().ends_with(&*says), "{version:?}: {error}");
    }
}
